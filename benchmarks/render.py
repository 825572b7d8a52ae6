"""Rendering the whole conversation against rendering only what is new.

``python -m benchmarks.render [TOKENIZER] [--quick]`` prints medians: the first column grows with the conversation, the
second must not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from trio_sessions.core.tokens import as_token_ids
from trio_sessions.render.base import Renderer
from trio_sessions.render.load import load_renderer

LENGTHS = (2, 10, 50, 200, 400)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians at one length of history.

    Attributes:
        messages: in the history.
        tokens: of the history.
        whole_ms: to render and encode everything.
        suffix_ms: to render and encode what two appended messages add.
    """

    messages: int
    tokens: int
    whole_ms: float
    suffix_ms: float


def measure(renderer: Renderer, *, lengths: tuple[int, ...] = LENGTHS, repeats: int = 15) -> list[Row]:
    """One row a length; the two ways alternate, so that both meet the same noise."""
    rows = []
    for length in track(lengths, description="measuring", transient=True):
        history = conversation(length)
        stored = renderer.canonical(history, tools=None, kwargs={})
        appended = [_user(length), _user(length + 1)]

        def whole(history: list[dict[str, Any]] = history, appended: list[dict[str, Any]] = appended) -> None:
            renderer.render([*history, *appended], tools=None, kwargs={})

        def suffix(
            stored: Any = stored, history: list[dict[str, Any]] = history, appended: list[dict[str, Any]] = appended
        ) -> None:
            renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})

        samples = []
        for _ in range(repeats):
            whole_ms = _milliseconds(whole)
            # What the first call after a long one costs is the processor's cold caches.
            suffix()
            samples.append((whole_ms, _milliseconds(suffix)))
        rows.append(
            Row(
                messages=length,
                tokens=len(as_token_ids(stored)),
                whole_ms=statistics.median(sample[0] for sample in samples),
                suffix_ms=statistics.median(sample[1] for sample in samples),
            )
        )
    return rows


def conversation(length: int) -> list[dict[str, Any]]:
    """A user and an assistant in turn, about 150 tokens a message, the assistant last."""
    return [_user(i) if i % 2 == 0 else {**_user(i), "role": "assistant"} for i in range(length)]


def _user(number: int) -> dict[str, Any]:
    text = f"Message {number}: " + "the build is green, the tests passed, and the report says why. " * 10
    return {"role": "user", "content": text}


def _milliseconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", nargs="?", default="builtin", help="builtin, a folder, or a hub id")
    parser.add_argument("--quick", action="store_true", help="two short lengths, to see that it runs")
    options: Mapping[str, Any] = vars(parser.parse_args())
    quick = bool(options["quick"])
    rows = measure(
        load_renderer(str(options["tokenizer"])), lengths=LENGTHS[:2] if quick else LENGTHS, repeats=3 if quick else 15
    )
    table = Table("messages", "tokens", "whole, ms", "suffix, ms", "ratio", title=f"render: {options['tokenizer']}")
    for row in rows:
        table.add_row(
            str(row.messages),
            str(row.tokens),
            f"{row.whole_ms:.2f}",
            f"{row.suffix_ms:.2f}",
            f"{row.whole_ms / row.suffix_ms:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
