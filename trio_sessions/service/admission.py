"""How many turns are at work at a time: a place for each, a queue where there is none, and an end to the queue.

A place is given in the order of arrival. One that is free is taken without waiting, and nothing else runs meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from trio_sessions.errors import TooManySessionTurns, TurnQueueFull, TurnQueueTimeout

__all__ = ["Admission", "AdmissionLimits", "Waiter"]

_LONGEST_ADVICE_SECONDS: Final = 60
# How much the latest turn counts when it is told how long one takes.
_LATEST: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """What there is room for.

    Attributes:
        turns: most at work at a time.
        session_turns: most of one session, those that wait included.
        waiting: most that wait.
        patience: seconds that one waits at most.
    """

    turns: int
    session_turns: int
    waiting: int
    patience: float


def _nothing() -> None:
    pass


class Waiter(Protocol):
    """What is known here of a session whose turns want places."""

    @property
    def id(self) -> str:
        """Tells it from others."""

    @property
    def waits(self) -> set[trio.CancelScope]:
        """The waits of its turns, which are cancelled when it closes."""

    def ensure_open(self) -> None:
        """Raise what its turns get when it is closed."""


class Admission:
    """Gives places to turns.

    Args:
        limits: what there is room for.
        show_waiting: is told how many wait whenever that changes.
    """

    def __init__(self, limits: AdmissionLimits, *, show_waiting: Callable[[int], None]) -> None:
        self._limits = limits
        self._show_waiting = show_waiting
        self._taken = 0
        self._of_session: Counter[str] = Counter()
        # In the order of arrival; as keys, so that one that leaves need not be searched for.
        self._queue: OrderedDict[trio.Event, None] = OrderedDict()
        self._usual_seconds = 1.0

    def of_session(self, session_id: str) -> int:
        """How many of a session have a place or wait for one."""
        return self._of_session.get(session_id, 0)

    @asynccontextmanager
    async def place(self, session: Waiter, *, before_waiting: Callable[[], None] = _nothing) -> AsyncIterator[None]:
        """A place for the length of the block.

        Args:
            session: of the turn.
            before_waiting: called if there is no place at once.

        Raises:
            TooManySessionTurns: the session has as many already.
            TurnQueueFull: nobody else may wait.
            TurnQueueTimeout: there was no place in time.
            SessionNotFound: the session closed meanwhile.
        """
        if self.of_session(session.id) >= self._limits.session_turns:
            raise TooManySessionTurns(
                f"the session runs {self._limits.session_turns} turns already (--max-session-turns)",
                retry_after=self._advice(0),
            )
        self._of_session[session.id] += 1
        try:
            if self._taken < self._limits.turns:
                self._taken += 1
            else:
                await self._wait(session, before_waiting)
            began = trio.current_time()
            try:
                yield
            finally:
                self._usual_seconds += (trio.current_time() - began - self._usual_seconds) * _LATEST
                self._give_on()
        finally:
            self._of_session[session.id] -= 1
            if not self._of_session[session.id]:
                del self._of_session[session.id]

    async def _wait(self, session: Waiter, before_waiting: Callable[[], None]) -> None:
        """Return with a place, which the one that leaves it hands over."""
        session.ensure_open()
        if len(self._queue) >= self._limits.waiting:
            raise TurnQueueFull(
                f"{self._limits.turns} turns run and {len(self._queue)} wait (--max-turns, --turn-queue)",
                retry_after=self._advice(len(self._queue)),
            )
        before_waiting()
        given = trio.Event()
        self._queue[given] = None
        self._show_waiting(len(self._queue))
        patience = trio.CancelScope(deadline=trio.current_time() + self._limits.patience)
        session.waits.add(patience)
        try:
            with patience:
                await given.wait()
        except BaseException:
            self._leave(given)
            raise
        finally:
            session.waits.discard(patience)
        # It may have come in the moment in which the time was over.
        if not given.is_set():
            self._leave(given)
            session.ensure_open()
            raise TurnQueueTimeout(
                f"the turn waited {self._limits.patience:g} s for others to end (--max-turns, --turn-queue-timeout)",
                retry_after=self._advice(len(self._queue)),
            )

    def _leave(self, given: trio.Event) -> None:
        if given.is_set():
            self._give_on()
        else:
            del self._queue[given]
            self._show_waiting(len(self._queue))

    def _give_on(self) -> None:
        if self._queue:
            next_in_line, _ = self._queue.popitem(last=False)
            self._show_waiting(len(self._queue))
            next_in_line.set()
        else:
            self._taken -= 1

    def _advice(self, ahead: int) -> int:
        """Seconds until there is a place most likely, with so many in front."""
        seconds = self._usual_seconds * (ahead + 1) / self._limits.turns
        return max(1, min(_LONGEST_ADVICE_SECONDS, math.ceil(seconds)))
