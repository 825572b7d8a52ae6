"""How long the event loop stands still while long prompts are rendered and encoded in worker threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from benchmarks.conversations import conversation
from benchmarks.figures import Row, Table, figure, ratio
from benchmarks.options import Options
from benchmarks.timing import watched
from benchmarks.tokenizers import qwen3_tokenizer
from trio_sessions.render.load import load_renderer
from trio_sessions.render.template import TemplateRenderer
from trio_sessions.service.offload import Offloader

__all__ = ["measure"]

PART: Final = "loop"
_REPEATS: Final = 5
_LENGTHS: Final = (100_000, 400_000, 1_000_000, 4_000_000)
_QUICK_LENGTHS: Final = (50_000,)
_IN_A_THREAD: Final = 1 << 30


def measure(options: Options) -> list[Table]:
    """One row a length of an appended text; the two ways alternate, so that both meet the same noise."""
    options.show.step("loading qwen-3")
    renderer = load_renderer(str(qwen3_tokenizer()))
    lengths = _QUICK_LENGTHS if options.quick else _LENGTHS
    rows = [_row(renderer, length, options) for length in lengths]
    return [Table(PART, "longest wait of another task while a text is encoded", tuple(rows))]


def _row(renderer: TemplateRenderer, length: int, options: Options) -> Row:
    options.show.step(f"a text of {length:,} characters")
    history = conversation(2)
    stored = renderer.canonical(history, tools=None, kwargs={})
    line = "12:04:11 build: <ok> 318 targets, 2 warnings | see report [4] for what changed and why\n"
    appended = [{"role": "user", "content": (line * (length // len(line) + 1))[:length]}]

    def extend() -> int:
        extension = renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})
        return len(extension.token_ids)

    pairs = [
        (trio.run(_longest_wait, extend, _IN_A_THREAD), trio.run(_longest_wait, extend, 0))
        for _ in range(options.times(_REPEATS))
    ]
    offloaded, inline = figure(pair[0] for pair in pairs), figure(pair[1] for pair in pairs)
    return Row(
        {"characters": f"{length:,}", "tokens": f"{extend():,}"},
        {
            "stall_in_a_thread_ms": offloaded,
            "stall_on_the_loop_ms": inline,
            "thread_to_loop": ratio(offloaded, inline),
        },
    )


async def _longest_wait(work: Callable[[], int], size: int) -> float:
    async with watched() as stall:
        await Offloader().run(work, size=size)
    return stall.milliseconds
