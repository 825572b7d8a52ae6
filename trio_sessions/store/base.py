"""What a store of sessions can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trio_sessions.store.events import Event, InvalidEvent, SessionCreated, TurnCommitted, TurnsDiscarded

__all__ = ["JournalIdentity", "Store", "StoredSession"]


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """What the sessions of a journal are bound to.

    Attributes:
        mode: ``linear`` or ``tree``.
        rendering: tells tokenizers and chat templates apart.
        worker: index of the worker whose sessions they are.
        workers: how many there are; a session's id says whose it is.
    """

    mode: str
    rendering: str
    worker: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session that was found in a store when it was opened.

    Attributes:
        id: its id.
        created: its first event.
        turns: how many turns stand.
        events: how many events it has.
    """

    id: str
    created: SessionCreated
    turns: int
    events: int

    @classmethod
    def of(cls, session_id: str, events: Iterable[Event]) -> StoredSession:
        """The session that has these events, which are all of it.

        Raises:
            InvalidEvent: they do not begin with its creation.
        """
        created: SessionCreated | None = None
        turns = count = 0
        for event in events:
            match event:
                case SessionCreated():
                    created = event
                case TurnCommitted():
                    turns += 1 - event.discards
                case TurnsDiscarded():
                    turns -= event.discards
            count += 1
            if created is None:
                break
        if created is None:
            raise InvalidEvent("the first event is not that it was created")
        return cls(session_id, created, turns, count)


class Store(Protocol):
    """Keeps the events of sessions. All methods are for the event loop; none of them holds it up."""

    @property
    def recovers(self) -> bool:
        """Whether sessions can be loaded from it."""

    @property
    def found(self) -> Sequence[StoredSession]:
        """The sessions that were in it when it was opened."""

    async def append(self, session_id: str, event: Callable[[], Event]) -> None:
        """Write one event down behind those the session has; returns when it will not be lost.

        Once it is taken the caller is not cancelled: what became of it would not be known.

        Args:
            session_id: 32 hex digits; the first event of a session is ``SessionCreated``.
            event: makes it, in a thread.

        Raises:
            StoreUnavailable: it could not be written down, and nothing was.
        """

    def note(self, session_id: str, event: Callable[[], Event]) -> None:
        """As ``append``, for what may be lost in a crash."""

    def written(self, session_id: str) -> bool:
        """Whether all that was taken for a session is written, so that ``load`` gives it back."""

    async def delete(self, session_id: str) -> None:
        """Forget all events of a session.

        Raises:
            StoreUnavailable: that could not be written down; they are still there.
        """

    async def load(self, session_id: str) -> Sequence[Event]:
        """All events of a session, in order; empty where it has none.

        Raises:
            SessionUnreadable: they are damaged.
            StoreUnavailable: they cannot be read.
        """
