"""One session: its history, its lock, and the nurseries its turns run in."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final
from weakref import WeakSet

import trio

from trio_sessions.core.history import Checkpoint, History, footprint
from trio_sessions.core.request import SentMessages
from trio_sessions.errors import ClientDisconnected, SessionError, SessionExpired, SessionNotFound
from trio_sessions.service.delivery import Delivery
from trio_sessions.service.journal import SessionJournal
from trio_sessions.service.retries import SessionAttempts
from trio_sessions.store import Restored, SessionCreated

__all__ = ["Session", "WaitsForDisconnect"]

# Its objects: a lock, a history, and what they hold.
_EMPTY_BYTES: Final = 5632

WaitsForDisconnect = Callable[[], Awaitable[object]]


class Session:
    """A session that is open until ``close``.

    Attributes:
        id: 32 lowercase hex digits.
        created: naive local time; a template that reads the clock is told this on every turn, so that midnight changes
            no prompt.
        created_event: its first event.
        expires: trio's time from which on no turn is taken.
        history: changed only while ``lock`` is held.
        lock: held to prepare and to commit a turn, never during an engine call.
        attempts: what of its requests may be retried.
        delivery: what became of the answers.
        journal: writes its events down.
        footprint: bytes of memory it takes, as it is reckoned.
        uses: how many use it now.
        used: trio's time when it was last used.
        waits: of turns that wait for a place.
        replaced_turns: how many recorded turns later ones took the place of.
        sent: the messages of the request that committed last, or None; what a request repeats of them is known.
    """

    def __init__(
        self,
        session_id: str,
        history: History,
        *,
        created: SessionCreated,
        journal: SessionJournal,
        expires: float = math.inf,
        retry_window: float = 0.0,
    ) -> None:
        self.id = session_id
        self.created = datetime.fromisoformat(created.created)
        self.created_event = created
        self.expires = expires
        self.history = history
        self.lock = trio.Lock()
        self.attempts = SessionAttempts(window=retry_window)
        self.delivery = Delivery()
        self.journal = journal
        self.footprint = _EMPTY_BYTES
        self.uses = 0
        self.used = trio.current_time()
        self.waits: set[trio.CancelScope] = set()
        self.replaced_turns = 0
        self.sent: SentMessages | None = None
        # Reading twice must not count twice. Threads compare.
        self._compared: WeakSet[Checkpoint] = WeakSet()
        self._compared_lock = threading.Lock()
        self._closed = False
        self._decided = trio.Event()
        self._cancelled_because: Callable[[], SessionError] | None = None
        self._scopes: set[trio.CancelScope] = set()
        self._turns_started = 0

    @property
    def closed(self) -> bool:
        """Whether the session is being deleted, or was: turns at the engine still answer, and record nothing."""
        return self._closed

    def close(self) -> None:
        """Take no further turn; ``end`` or ``reopen`` follows."""
        self._closed = True
        self._decided = trio.Event()

    def end(self) -> None:
        """It was deleted: record no turn that is running; those that still wait for a place wait no longer."""
        self._decided.set()
        for wait in self.waits:
            wait.cancel()

    def reopen(self) -> None:
        """It could not be deleted: take turns again, and record those that are running."""
        self._closed = False
        self._decided.set()

    async def is_deleted(self) -> bool:
        """Whether it was deleted, once that is decided."""
        if self._closed:
            await self._decided.wait()
        return self._closed

    def restore(self, restored: Restored) -> None:
        """Be what was made of the session's events."""
        self.history = restored.history
        self.replaced_turns = restored.replaced_turns
        for turn, received in restored.answers:
            self.delivery.note(turn, received=received)
        self.journal.continue_behind(restored.turns)
        self.footprint = _EMPTY_BYTES + sum(map(footprint, self.history.nodes))
        self._turns_started = len(restored.turns)

    def remember_sent(self, sent: SentMessages | None) -> int:
        """Keep what the request that committed last had sent; how many more bytes that is than what it replaces."""
        before, self.sent = self.sent, sent
        return (0 if sent is None else sent.footprint) - (0 if before is None else before.footprint)

    def ensure_open(self) -> None:
        """Refuse a turn that the session does not take.

        Raises:
            SessionNotFound: the session was deleted.
            SessionExpired: its deadline has passed.
        """
        if self._closed:
            raise SessionNotFound(self.id)
        if trio.current_time() >= self.expires:
            raise SessionExpired(self.id, running=False)

    def mark_compared(self, checkpoint: Checkpoint) -> bool:
        """Whether ``checkpoint`` is compared with its canonical rendering for the first time. Thread-safe."""
        with self._compared_lock:
            if checkpoint in self._compared:
                return False
            self._compared.add(checkpoint)
            return True

    def answered(self) -> Callable[[str], Checkpoint | None]:
        """Tells the turn that was answered under a response id, the latest of several, or None. Thread-safe.

        It looks at the session once, the first time it is asked, and is for one request.
        """
        turns: dict[str | None, Checkpoint] = {}

        def answered_under(response_id: str) -> Checkpoint | None:
            if not turns:
                turns.update((node.response_id, node) for node in self.history.nodes)
            return turns.get(response_id)

        return answered_under

    def answers_at(self) -> Callable[[int], Sequence[Checkpoint]]:
        """Tells the turns whose answer is the message of an index in their conversation, in the order of commits.
        Thread-safe.

        It looks at the session once, the first time it is asked, and is for one request.
        """
        turns: dict[int, list[Checkpoint]] = {}

        def answered_at(index: int) -> Sequence[Checkpoint]:
            if not turns:
                for node in self.history.nodes:
                    turns.setdefault(node.message_count - 1, []).append(node)
            return turns.get(index, ())

        return answered_at

    def next_turn_number(self) -> int:
        """Numbers turns from 1 in the order they arrived, for logs."""
        self._turns_started += 1
        return self._turns_started

    def cancel_requests(self, because: Callable[[], SessionError]) -> None:
        """Cancel every running request, each of which then fails with an error that ``because`` makes."""
        self._cancelled_because = because
        for scope in self._scopes:
            scope.cancel()

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold ``lock``; most often nobody else does, and then there is nothing to wait for."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self.lock.acquire_nowait()
        except trio.WouldBlock:
            await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    @asynccontextmanager
    async def request_nursery(self, gone: WaitsForDisconnect | None = None) -> AsyncIterator[trio.Nursery]:
        """The nursery of one request to the engine, whose cancel scope the session knows.

        What a request needs beside its own task, a stream's keep-alives say, runs in it, and is cancelled at the end of
        the block. An error raised inside comes out as it is, not in a group.

        Args:
            gone: returns when the client has gone away, which ends the request; None where whoever awaits it says so by
                cancelling it.

        Raises:
            ClientDisconnected: ``gone`` ended the request.
            SessionExpired: the deadline passed before it was done.
            SessionError: ``cancel_requests`` ended it, with this error.
        """
        failure: Exception | None = None
        disconnected = completed = False

        async def end_when_gone(wait: WaitsForDisconnect, request: trio.CancelScope) -> None:
            nonlocal disconnected
            await wait()
            disconnected = True
            request.cancel()

        async with trio.open_nursery() as nursery:
            self._scopes.add(nursery.cancel_scope)
            nursery.cancel_scope.deadline = self.expires
            if gone is not None:
                nursery.start_soon(end_when_gone, gone, nursery.cancel_scope)
            try:
                yield nursery
                completed = True
            except Exception as error:  # noqa: BLE001
                # Raised again outside, where the nursery cannot put it into a group.
                failure = error
            finally:
                self._scopes.discard(nursery.cancel_scope)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if disconnected and not completed:
            raise ClientDisconnected("the client went away: the request was cancelled and nothing was recorded")
        if not completed:
            if self._cancelled_because is not None:
                raise self._cancelled_because()
            raise SessionExpired(self.id, running=True)
