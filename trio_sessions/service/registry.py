"""The sessions of this process, and how they all come to an end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import trio

from trio_sessions.core.history import History
from trio_sessions.errors import ServerDraining, SessionNotFound
from trio_sessions.observe import Metrics
from trio_sessions.service.session import Session

__all__ = ["SessionRegistry"]

_LOOK_SECONDS: Final = 10.0
_LOOKED_AT_ONCE: Final = 1000


class SessionRegistry:
    """Creates, finds and deletes sessions, and drains their turns at shutdown.

    Args:
        new_history: makes the history of a new session; the mode decides which.
        new_id: draws a session id, 32 lowercase hex digits.
        now: wall clock, local time.
        metrics: where open sessions and running turns are shown.
        lifetime: seconds for which a session takes turns; None for as long as it exists.
        cancel_on_delete: whether deleting a session cancels its turns at the engine.
        retry_window: seconds for which an answer is given again to a request that says it is a retry.
    """

    def __init__(
        self,
        *,
        new_history: Callable[[], History],
        new_id: Callable[[], str],
        now: Callable[[], datetime],
        metrics: Metrics,
        lifetime: float | None = None,
        cancel_on_delete: bool = False,
        retry_window: float = 0.0,
    ) -> None:
        self._new_history = new_history
        self._new_id = new_id
        self._now = now
        self._metrics = metrics
        self._lifetime = lifetime
        self._cancel_on_delete = cancel_on_delete
        self._retry_window = retry_window
        self._sessions: dict[str, Session] = {}
        # Deleted sessions may still have turns at the engine, so running turns are counted apart.
        self._running: Counter[Session] = Counter()
        self._draining = False
        self._idle = trio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    def create(self) -> Session:
        """A new, empty session.

        Raises:
            ServerDraining: shutdown has begun.
        """
        if self._draining:
            raise ServerDraining("the server is shutting down and takes no more sessions")
        expires = math.inf if self._lifetime is None else trio.current_time() + self._lifetime
        session = Session(
            self._new_id(),
            self._new_history(),
            created=self._now(),
            expires=expires,
            retry_window=self._retry_window,
        )
        self._sessions[session.id] = session
        self._metrics.sessions_open.set(len(self._sessions))
        return session

    def get(self, session_id: str) -> Session:
        """The open session of that id.

        Raises:
            SessionNotFound: there is none.
        """
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFound(session_id) from None

    def delete(self, session_id: str) -> None:
        """Close a session and forget it; its running turns are not waited for, and cancelled if that is wanted.

        Raises:
            SessionNotFound: there is none, or it was deleted before.
        """
        session = self.get(session_id)
        session.close()
        if self._cancel_on_delete:
            session.cancel_requests(lambda: SessionNotFound(session_id))
        del self._sessions[session_id]
        self._metrics.sessions_open.set(len(self._sessions))

    async def forget_old_answers(self) -> None:
        """Let go for ever of answers that no retry gets any more: a session that is left alone would keep them."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            for count, session in enumerate(list(self._sessions.values()), 1):
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
