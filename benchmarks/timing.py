"""How long a function takes, and how long the event loop stands still."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from benchmarks.figures import Figure

__all__ = ["Stall", "microseconds", "seconds", "watched"]

# What is shorter is called several times in a row: the clock itself takes a while.
_SHORTEST_SECONDS: Final = 0.001
_WAKE_SECONDS: Final = 0.001


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def microseconds(function: Callable[[], object], *, repeats: int) -> Figure:
    """How long a call takes, once it has been called before; a value a repeat."""
    calls = 1 + int(_SHORTEST_SECONDS / max(seconds(function), 1e-7))
    return Figure(tuple(1e6 * seconds(lambda: _call(function, calls)) / calls for _ in range(repeats)))


def _call(function: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        function()


@dataclass(slots=True)
class Stall:
    """What a task that only wakes up every millisecond met.

    Attributes:
        milliseconds: the longest that it was late.
    """

    milliseconds: float = 0.0


@asynccontextmanager
async def watched() -> AsyncIterator[Stall]:
    """Watch the event loop while the block runs."""
    stall = Stall()

    async def wake() -> None:
        while True:
            due = trio.current_time() + _WAKE_SECONDS
            await trio.sleep_until(due)
            stall.milliseconds = max(stall.milliseconds, 1000 * (trio.current_time() - due))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        await trio.sleep(10 * _WAKE_SECONDS)
        yield stall
        # What held it until now is only seen when it wakes up.
        await trio.sleep(10 * _WAKE_SECONDS)
        nursery.cancel_scope.cancel()
