"""The sessions of this process, and how they all come to an end."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final

import structlog
import trio

from trio_sessions.config import SessionLimits
from trio_sessions.core.history import History
from trio_sessions.errors import (
    MemoryExhausted,
    ServerDraining,
    SessionNotFound,
    SessionUnreadable,
    StoreUnavailable,
    TooManySessions,
)
from trio_sessions.observe import Metrics
from trio_sessions.service.journal import SessionJournal
from trio_sessions.service.offload import LONG_BYTES, Offloader
from trio_sessions.service.session import Session
from trio_sessions.store import InvalidEvent, Restored, SessionCreated, Store

__all__ = ["SessionRegistry", "SessionSummary"]


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in a list of them.

    Attributes:
        id: of the session.
        created: local time.
        turns: how many are recorded.
    """

    id: str
    created: datetime
    turns: int


# How often it is looked whether sessions are idle: at most a tenth of that time late, and a minute.
_OF_IDLE: Final = 0.1
_LOOK_SECONDS: Final = 60.0
_LOOK_FOR_ANSWERS_SECONDS: Final = 10.0
_LOOKED_AT_ONCE: Final = 1000
# When to try again what there is no room for.
_AGAIN_SECONDS: Final = 5
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.sessions")


@dataclass(frozen=True, slots=True)
class _Dormant:
    """A session that is in the store alone.

    Attributes:
        created: its first event.
        turns: how many turns stand.
        used: trio's time when it was last used.
    """

    created: SessionCreated
    turns: int
    used: float


class SessionRegistry:
    """Creates, finds and deletes sessions, and drains their turns at shutdown.

    A session is in memory or, where the store can give it back, only there until it is used.

    Args:
        new_history: makes the history of a new session; the mode decides which.
        new_id: draws a session id, 32 lowercase hex digits.
        clock: wall clock, seconds since the epoch.
        now: wall clock, local time.
        metrics: where open sessions and running turns are shown.
        store: where sessions are written down.
        offloader: threads.
        limits: what they may take.
        cancel_on_delete: whether deleting a session cancels its turns at the engine.
        retry_window: seconds for which an answer is given again to a request that says it is a retry.
    """

    def __init__(
        self,
        *,
        new_history: Callable[[], History],
        new_id: Callable[[], str],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        metrics: Metrics,
        store: Store,
        offloader: Offloader,
        limits: SessionLimits,
        cancel_on_delete: bool = False,
        retry_window: float = 0.0,
    ) -> None:
        self._new_history = new_history
        self._new_id = new_id
        self._clock = clock
        self._now = now
        self._metrics = metrics
        self._store = store
        self._offload = offloader.run
        self._limits = limits
        self._cancel_on_delete = cancel_on_delete
        self._retry_window = retry_window
        # Those that were used last are last.
        self._resident: dict[str, Session] = {}
        self._dormant: dict[str, _Dormant] = {}
        self._loading: dict[str, trio.Event] = {}
        self._creating = 0
        self._bytes = 0
        # Deleted sessions may still have turns at the engine, so running turns are counted apart.
        self._running: Counter[Session] = Counter()
        self._draining = False
        self._idle = trio.Event()
        self._idle.set()

    def take_found(self) -> None:
        """Take over the sessions that the store had when it was opened."""
        now = trio.current_time()
        self._dormant |= {found.id: _Dormant(found.created, found.turns, now) for found in self._store.found}
        self._show()

    def __len__(self) -> int:
        """How many sessions are open."""
        return len(self._resident) + len(self._dormant)

    async def create(self, *, token_digest: bytes | None = None) -> Session:
        """A new, empty session.

        Args:
            token_digest: of the token that opens its model routes, if there is one.

        Raises:
            ServerDraining: shutdown has begun.
            TooManySessions: there are as many as there may be.
            MemoryExhausted: those that are in use take all the memory they may have.
            StoreUnavailable: it cannot be written down.
        """
        if self._draining:
            raise ServerDraining("the server is shutting down and takes no more sessions")
        if len(self) + self._creating >= self._limits.sessions:
            raise TooManySessions(
                f"there are {len(self)} sessions, as many as there may be (--max-sessions): delete those that are done",
                retry_after=_AGAIN_SECONDS,
            )
        self.require_memory()
        lifetime = self._limits.lifetime
        created = SessionCreated(
            created=self._now().isoformat(),
            deadline=None if math.isinf(lifetime) else self._clock() + lifetime,
            token_digest=token_digest,
        )
        session = self._session(self._new_id(), created)
        self._creating += 1
        try:
            await session.journal.create(created)
        finally:
            self._creating -= 1
        self._resident[session.id] = session
        self._bytes += session.footprint
        self._show()
        return session

    def in_memory(self, session_id: str) -> Session | None:
        """The open session of that id, if it is in memory; it may leave it at any time."""
        return self._resident.get(session_id)

    @asynccontextmanager
    async def using(self, session_id: str) -> AsyncIterator[Session]:
        """The open session of that id, which stays in memory for the length of the block.

        Raises:
            SessionNotFound: there is none.
            SessionUnreadable: what was written down of it is damaged.
            StoreUnavailable: it is not in memory and cannot be read.
        """
        session = self.in_memory(session_id) or await self._load(session_id)
        session.uses += 1
        try:
            yield session
        finally:
            session.uses -= 1
            session.used = trio.current_time()
            if self._resident.get(session_id) is session:
                self._resident[session_id] = self._resident.pop(session_id)
                self._make_room()

    def token_digest(self, session_id: str) -> bytes | None:
        """The digest of the token that opens the session of that id; None where there is no token, or no session."""
        session = self._resident.get(session_id)
        if session is not None:
            return session.created_event.token_digest
        dormant = self._dormant.get(session_id)
        return None if dormant is None else dormant.created.token_digest

    def list(self, *, after: str | None, limit: int) -> tuple[SessionSummary, ...]:
        """The open sessions in the order of their ids.

        Args:
            after: those behind this id, whether there is a session of that id or not; None from the first on.
            limit: how many at most.
        """
        ids = heapq.nsmallest(
            limit, (id_ for id_ in chain(self._resident, self._dormant) if after is None or id_ > after)
        )
        return tuple(map(self._summary, ids))

    def _summary(self, session_id: str) -> SessionSummary:
        session = self._resident.get(session_id)
        if session is not None:
            return SessionSummary(session_id, session.created, len(session.history.nodes))
        dormant = self._dormant[session_id]
        return SessionSummary(session_id, datetime.fromisoformat(dormant.created.created), dormant.turns)

    async def delete(self, session_id: str) -> None:
        """Close a session and forget it; its running turns are not waited for, and cancelled if that is wanted.

        Raises:
            SessionNotFound: there is none, or it was deleted before.
            StoreUnavailable: that cannot be written down; the session stays.
        """
        session, dormant = self._resident.pop(session_id, None), self._dormant.pop(session_id, None)
        if session is None and dormant is None:
            raise SessionNotFound(session_id)
        if session is not None:
            session.close()
            self._bytes -= session.footprint
        try:
            await self._store.delete(session_id)
        except StoreUnavailable:
            if session is not None:
                session.reopen()
                self._resident[session_id] = session
                self._bytes += session.footprint
            elif dormant is not None:
                self._dormant[session_id] = dormant
            raise
        if session is not None:
            session.end()
            if self._cancel_on_delete:
                session.cancel_requests(lambda: SessionNotFound(session_id))
        self._show()

    def grew(self, session: Session, by: int) -> None:
        """``session`` takes ``by`` more bytes than before."""
        session.footprint += by
        if self._resident.get(session.id) is session:
            self._bytes += by
            self._metrics.session_bytes.set(self._bytes)

    def require_memory(self) -> None:
        """Refuse what would take more memory than there may be.

        Raises:
            MemoryExhausted: sessions take more than they may, and none of them can leave memory.
        """
        if self._bytes > self._limits.memory:
            self._make_room()
        if self._bytes > self._limits.memory:
            advice = (
                "they are in use"
                if self._store.recovers
                else "delete those that are done, or serve with --store PATH, where they need not all be in memory"
            )
            raise MemoryExhausted(
                f"sessions take all the memory they may have (--max-memory-mb); {advice}", retry_after=_AGAIN_SECONDS
            )

    async def expire_idle_for_ever(self) -> None:
        """Now and again delete the sessions that nobody has used for too long."""
        if math.isinf(self._limits.idle):
            return
        while True:
            await trio.sleep(min(self._limits.idle * _OF_IDLE, _LOOK_SECONDS))
            await self._expire_idle()

    async def _expire_idle(self) -> None:
        before = trio.current_time() - self._limits.idle
        for session_id in [*self._resident, *self._dormant]:
            # Looked at anew each time: deleting takes a while.
            used = self._last_use(session_id)
            if used is None or used > before:
                continue
            try:
                await self.delete(session_id)
            except SessionNotFound:
                continue
            except StoreUnavailable:
                # The journal says what is wrong with it; they are as idle next time.
                return
            self._metrics.sessions_expired.inc()
            _log.info("deleted a session that nobody used", session=session_id)

    def _last_use(self, session_id: str) -> float | None:
        """Trio's time when a session was used, which is now if it is in use; None where there is none."""
        session = self._resident.get(session_id)
        if session is not None:
            return trio.current_time() if session.uses else session.used
        dormant = self._dormant.get(session_id)
        return None if dormant is None or session_id in self._loading else dormant.used

    async def forget_old_answers(self) -> None:
        """Let go for ever of answers that no retry gets any more: a session that is left alone would keep them."""
        while True:
            await trio.sleep(_LOOK_FOR_ANSWERS_SECONDS)
            for count, session in enumerate(list(self._resident.values()), 1):
                session.attempts.forget_old()
                if count % _LOOKED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()

    @contextmanager
    def running(self, session: Session) -> Iterator[None]:
        """Count a request of ``session`` to the engine as running, so that shutdown waits for it.

        Raises:
            ServerDraining: shutdown has begun.
        """
        if self._draining:
            raise ServerDraining("the server is shutting down and takes no more turns")
        if not self._running:
            self._idle = trio.Event()
        self._running[session] += 1
        try:
            yield
        finally:
            self._running[session] -= 1
            if not self._running[session]:
                del self._running[session]
            if not self._running:
                self._idle.set()

    async def drain(self, *, grace: float) -> None:
        """Refuse new turns, give running ones ``grace`` seconds, then cancel them and wait until they are gone."""
        self._draining = True
        with trio.move_on_after(grace):
            await self._idle.wait()
            return
        because = "the server is shutting down: the request was cancelled and nothing was recorded"
        for session in list(self._running):
            session.cancel_requests(lambda: ServerDraining(because))
        await self._idle.wait()

    async def _load(self, session_id: str) -> Session:
        """Bring a session back into memory; who else asks for it meanwhile gets the same.

        Raises:
            SessionNotFound, SessionUnreadable, StoreUnavailable: as in ``using``.
        """
        while session_id not in self._resident:
            if session_id not in self._dormant:
                raise SessionNotFound(session_id)
            if session_id in self._loading:
                await self._loading[session_id].wait()
                continue
            loaded = self._loading[session_id] = trio.Event()
            try:
                events = await self._store.load(session_id)
                try:
                    restored = await self._offload(partial(Restored.of, events, self._new_history()), size=LONG_BYTES)
                except InvalidEvent as error:
                    raise SessionUnreadable(session_id) from error
                self._wake(session_id, restored)
            finally:
                del self._loading[session_id]
                loaded.set()
        return self._resident[session_id]

    def _wake(self, session_id: str, restored: Restored) -> None:
        dormant = self._dormant.pop(session_id, None)
        if dormant is None:
            # It was deleted meanwhile.
            return
        session = self._session(session_id, dormant.created)
        session.restore(restored)
        self._resident[session_id] = session
        self._bytes += session.footprint
        self._metrics.sessions_loaded.inc()
        self._show()

    def _make_room(self) -> None:
        """Let sessions that nobody uses leave memory, those that were not used for longest first."""
        if self._bytes <= self._limits.memory or not self._store.recovers:
            return
        idle = [each for each in self._resident.values() if not each.uses and self._store.written(each.id)]
        # Answers that are kept for retries are not in the store; their sessions go when there is nothing else.
        idle.sort(key=lambda each: each.attempts.has_answers)
        for session in idle:
            del self._resident[session.id]
            self._dormant[session.id] = _Dormant(session.created_event, len(session.history.nodes), session.used)
            self._bytes -= session.footprint
            self._metrics.sessions_spilled.inc()
            if self._bytes <= self._limits.memory:
                break
        self._show()

    def _session(self, session_id: str, created: SessionCreated) -> Session:
        left = math.inf if created.deadline is None else created.deadline - self._clock()
        return Session(
            session_id,
            self._new_history(),
            created=created,
            expires=trio.current_time() + left,
            retry_window=self._retry_window,
            journal=SessionJournal(self._store, session_id),
        )

    def _show(self) -> None:
        self._metrics.sessions_open.set(len(self))
        self._metrics.sessions_in_memory.set(len(self._resident))
        self._metrics.session_bytes.set(self._bytes)
