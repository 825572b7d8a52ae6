"""Something asynchronous that runs in a thread of its own, for tests that Hypothesis drives from theirs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import outcome
import trio

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Background(Generic[_T]):
    """What was opened, and the way to it.

    Attributes:
        value: of the context manager.
        token: of the run.
    """

    value: _T
    token: trio.lowlevel.TrioToken

    def run(self, function: Callable[..., Awaitable[_R]], *args: Any) -> _R:
        """Run something beside it."""
        return trio.from_thread.run(function, *args, trio_token=self.token)


@contextmanager
def background(opens: Callable[[], AbstractAsyncContextManager[_T]]) -> Iterator[Background[_T]]:
    """What ``opens`` opens, until the end of the block; what it raises is raised here."""
    ready = threading.Event()
    made: list[Background[_T]] = []
    ends: list[outcome.Outcome[None]] = []
    done: list[trio.Event] = []

    async def main() -> None:
        async with opens() as value:
            done.append(trio.Event())
            made.append(Background(value, trio.lowlevel.current_trio_token()))
            ready.set()
            await done[0].wait()

    def run() -> None:
        ends.append(outcome.capture(trio.run, main))
        ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if made:
            yield made[0]
    finally:
        if made and not ends:
            made[0].token.run_sync_soon(done[0].set)
        thread.join()
        ends[0].unwrap()
