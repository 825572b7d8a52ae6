"""Turns that want places, and end when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from trio_sessions.errors import SessionNotFound
from trio_sessions.service.admission import Admission


def taken(admission: Admission) -> int:
    """How many places are."""
    return admission._taken


def queued(admission: Admission) -> int:
    """How many wait for one."""
    return len(admission._queue)


@dataclass(eq=False)
class Member:
    """A session as admission knows it."""

    id: str
    closed: bool = False
    waits: set[trio.CancelScope] = field(default_factory=set)

    def ensure_open(self) -> None:
        if self.closed:
            raise SessionNotFound(self.id)

    def close(self) -> None:
        self.closed = True
        for wait in self.waits:
            wait.cancel()


@dataclass(eq=False)
class Turn:
    """One turn.

    Attributes:
        arrived: its place in the order of arrival, once it wants a place.
        asked_to_wait: whether there was no place at once.
        started: whether it has one.
        ended: whether it is over, one way or the other.
        error: why it got none.
    """

    member: Member
    arrived: int | None = None
    asked_to_wait: bool = False
    started: bool = False
    ended: bool = False
    error: Exception | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)

    def note_wait(self) -> None:
        self.asked_to_wait = True

    @property
    def waits(self) -> bool:
        return self.arrived is not None and not self.started and not self.ended


class Turns:
    """All of them.

    Attributes:
        shown: what the gauge shows.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.all: list[Turn] = []
        self.shown = 0
        self._nursery = nursery
        self._arrived = 0

    def show(self, waiting: int) -> None:
        self.shown = waiting

    def arrive(self, admission: Admission, member: Member) -> Turn:
        turn = Turn(member)
        self.all.append(turn)
        self._nursery.start_soon(self._run, admission, turn)
        return turn

    def waiting(self) -> Sequence[Turn]:
        return [turn for turn in self.all if turn.waits]

    def at_work(self) -> Sequence[Turn]:
        return [turn for turn in self.all if turn.started and not turn.ended]

    async def _run(self, admission: Admission, turn: Turn) -> None:
        try:
            with turn.scope:
                # A task that was cancelled before it ran wants nothing.
                await trio.lowlevel.checkpoint_if_cancelled()
                turn.arrived, self._arrived = self._arrived, self._arrived + 1
                async with admission.place(turn.member, before_waiting=turn.note_wait):
                    turn.started = True
                    await turn.done.wait()
        except Exception as error:  # noqa: BLE001
            turn.error = error
        finally:
            turn.ended = True
