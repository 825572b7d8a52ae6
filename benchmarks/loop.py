"""How long the event loop stands still while long prompts are rendered and encoded in worker threads.

``python -m benchmarks.loop [TOKENIZER] [--quick]`` prints, for texts of growing length, the longest time that a task
which only wakes up every millisecond had to wait. The second column is the same work on the loop itself.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import trio
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.render import conversation
from trio_sessions.render.load import load_renderer
from trio_sessions.render.template import TemplateRenderer
from trio_sessions.service.offload import Offloader

LENGTHS = (100_000, 400_000, 1_000_000, 4_000_000)


@dataclass(frozen=True, slots=True)
class Stall:
    """Medians for a text of one length.

    Attributes:
        characters: of one appended tool result.
        tokens: that it became.
        offloaded_ms: longest wait of another task while it was extended in a thread.
        inline_ms: the same while it was extended on the loop.
    """

    characters: int
    tokens: int
    offloaded_ms: float
    inline_ms: float


def measure(renderer: TemplateRenderer, *, lengths: tuple[int, ...] = LENGTHS, repeats: int = 5) -> list[Stall]:
    """One row a length; the two ways alternate, so that both meet the same noise."""
    return [_row(renderer, length, repeats) for length in track(lengths, description="measuring", transient=True)]


def _row(renderer: TemplateRenderer, length: int, repeats: int) -> Stall:
    history = conversation(2)
    stored = renderer.canonical(history, tools=None, kwargs={})
    line = "12:04:11 build: <ok> 318 targets, 2 warnings | see report [4] for what changed and why\n"
    appended = [{"role": "user", "content": (line * (length // len(line) + 1))[:length]}]

    def extend() -> int:
        extension = renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})
        return len(extension.token_ids)

    pairs = [(trio.run(_longest_wait, extend, 1 << 30), trio.run(_longest_wait, extend, 0)) for _ in range(repeats)]
    return Stall(
        characters=length,
        tokens=extend(),
        offloaded_ms=statistics.median(pair[0] for pair in pairs),
        inline_ms=statistics.median(pair[1] for pair in pairs),
    )


async def _longest_wait(work: Callable[[], int], size: int) -> float:
    """How late, in ms, a task that wakes up every ms is at most while ``work`` runs; a big ``size`` means a thread."""
    longest = 0.0

    async def wake() -> None:
        nonlocal longest
        while True:
            due = trio.current_time() + 0.001
            await trio.sleep_until(due)
            longest = max(longest, trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        await trio.sleep(0.01)
        await Offloader().run(work, size=size)
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return longest * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", nargs="?", default="builtin", help="builtin, a folder, or a hub id")
    parser.add_argument("--quick", action="store_true", help="one short text, to see that it runs")
    options: Mapping[str, Any] = vars(parser.parse_args())
    quick = bool(options["quick"])
    rows = measure(
        load_renderer(str(options["tokenizer"])), lengths=LENGTHS[:1] if quick else LENGTHS, repeats=1 if quick else 5
    )
    table = Table("characters", "tokens", "in a thread, ms", "on the loop, ms", title=f"stall: {options['tokenizer']}")
    for row in rows:
        table.add_row(f"{row.characters:,}", f"{row.tokens:,}", f"{row.offloaded_ms:.1f}", f"{row.inline_ms:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
