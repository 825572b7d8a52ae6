"""What a worker knows of all workers, itself included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from trio_sessions.workers.link import Table, WorkerState

__all__ = ["Membership"]


class Membership:
    """The workers as the supervisor last described them.

    Args:
        index: which of them this one is.
        urls: where each is reached.

    Attributes:
        table: the last description; None before the first.
        described: set with the first.
    """

    def __init__(self, index: int, urls: Sequence[str]) -> None:
        self.index = index
        self.urls = tuple(urls)
        self.table: Table | None = None
        self.described = trio.Event()
        self._asking: dict[int, set[trio.CancelScope]] = {other: set() for other in range(len(urls))}

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """All workers, by index; none before the first description."""
        return self.table.workers if self.table is not None else ()

    @property
    def up(self) -> tuple[bool, ...]:
        """Whether each can be asked. This one can: it runs this."""
        return tuple(worker.up or worker.index == self.index for worker in self.workers)

    def update(self, table: Table) -> None:
        """Believe ``table``, and give up what was asked of workers that it says are down."""
        self.table = table
        for index, up in enumerate(self.up):
            if not up:
                for scope in self._asking[index]:
                    scope.cancel()
        self.described.set()

    @contextmanager
    def while_up(self, index: int) -> Iterator[trio.CancelScope]:
        """A block that is cancelled when that worker goes down, or has already."""
        with trio.CancelScope() as scope:
            self._asking[index].add(scope)
            try:
                if not self.up[index]:
                    scope.cancel()
                yield scope
            finally:
                self._asking[index].discard(scope)
