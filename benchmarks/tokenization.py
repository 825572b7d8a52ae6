"""Rendering and encoding the whole conversation against only what is new, over the length of the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.conversations import conversation, said
from benchmarks.figures import Row, Table, figure, ratio
from benchmarks.options import Options
from benchmarks.timing import seconds
from benchmarks.tokenizers import qwen3_tokenizer, unpack
from trio_sessions.render.base import Renderer
from trio_sessions.render.load import load_renderer

__all__ = ["measure"]

PART: Final = "tokenize"
_REPEATS: Final = 9
_LENGTHS: Final = (2, 10, 50, 200, 400)
_QUICK_LENGTHS: Final = (2, 10)
_UNPACKED: Final = ("qwen-3.5", "deepseek-v3", "glm-4.7-flash")


def measure(options: Options) -> list[Table]:
    """A table of tokenizers and lengths."""
    rows: list[Row] = []
    with _tokenizers(quick=options.quick) as tokenizers:
        for name, source in tokenizers.items():
            options.show.step(f"loading {name}")
            rows += _rows(name, load_renderer(source), options)
    return [Table(PART, "a turn that appends two messages: everything anew, or only them", tuple(rows))]


def _rows(name: str, renderer: Renderer, options: Options) -> Iterator[Row]:
    lengths = _QUICK_LENGTHS if options.quick else _LENGTHS
    for index, length in enumerate(lengths):
        options.show.step(f"{name}: {length} messages", len(lengths))
        options.show.done(index)
        history = conversation(length)
        appended = [said("user", length), said("user", length + 1)]
        stored = renderer.canonical(history, tools=None, kwargs={})

        whole = partial(renderer.render, [*history, *appended], tools=None, kwargs={})
        splice = partial(renderer.extend, stored, stored_messages=history, appended=appended, tools=None, kwargs={})
        pairs = []
        for _ in range(options.times(_REPEATS)):
            whole_seconds = seconds(whole)
            # What the first call after a long one costs is the processor's cold caches.
            splice()
            pairs.append((whole_seconds, seconds(splice)))
        everything, only_new = figure(1000 * pair[0] for pair in pairs), figure(1000 * pair[1] for pair in pairs)
        yield Row(
            {"tokenizer": name, "messages": str(length), "tokens": f"{len(stored):,}"},
            {"whole_ms": everything, "splice_ms": only_new, "splice_to_whole": ratio(only_new, everything)},
        )


@contextmanager
def _tokenizers(*, quick: bool) -> Iterator[dict[str, str]]:
    with TemporaryDirectory() as folder:
        unpacked = {} if quick else {model: str(unpack(model, Path(folder))) for model in _UNPACKED}
        yield {"builtin": "builtin", "qwen-3": str(qwen3_tokenizer()), **unpacked}
