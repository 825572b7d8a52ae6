"""Pure work goes to a worker thread when it is long, and stays on the event loop when a thread would cost more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Generic, TypeVar

import trio

__all__ = ["LONG_BYTES", "Offloader"]

_T = TypeVar("_T")

# Handing work to a thread and back costs about 0.1 ms when the cores are idle and several times that when they are not;
# rendering and encoding a text of this many bytes takes some milliseconds.
LONG_BYTES: Final = 32 * 1024


class Offloader:
    """Runs functions that only compute.

    Args:
        threads: how many may run at once; more than the cores would only take turns.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._limiter = trio.CapacityLimiter(threads or os.cpu_count() or 1)
        self._json = trio.CapacityLimiter(1)

    async def run(self, function: Callable[[], _T], *, size: int) -> _T:
        """``function()``, in a thread when it is long.

        Args:
            function: computes, and changes nothing.
            size: how many bytes of text it renders and encodes, or as much work.

        A cancelled caller does not wait for the thread: what runs there changes nothing but its own result.
        """
        if size < LONG_BYTES:
            return function()
        return await trio.to_thread.run_sync(function, limiter=self._limiter, abandon_on_cancel=True)

    async def run_json(self, function: Callable[[], _T], *, size: int) -> _T:
        """As ``run``, for what reads or writes JSON; ``json.weight`` says its size.

        That lets no other thread run meanwhile, so two at once would not be faster, but would keep the event loop
        waiting for both of them.
        """
        if size < LONG_BYTES:
            return function()
        return await trio.to_thread.run_sync(function, limiter=self._json, abandon_on_cancel=True)

    def iterate(self, items: Iterator[_T], *, size: int) -> AsyncIterator[_T]:
        """``items``, each computed as by ``run``; none of them is None."""
        return _Offloaded(self, items, size)


class _Offloaded(Generic[_T]):
    """An object, not an async generator: one that is dropped half way leaves nothing to finish."""

    def __init__(self, offloader: Offloader, items: Iterator[_T], size: int) -> None:
        self._offloader = offloader
        self._items = items
        self._size = size

    def __aiter__(self) -> AsyncIterator[_T]:
        return self

    async def __anext__(self) -> _T:
        item = await self._offloader.run(lambda: next(self._items, None), size=self._size)
        if item is None:
            raise StopAsyncIteration
        return item
