"""A store in memory that a test can break, look into, and open again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from trio_sessions.errors import StoreUnavailable
from trio_sessions.store import Event, SessionCreated, StoredSession
from trio_sessions.store.events import decode_event, encode_event

__all__ = ["RecordingStore"]


class RecordingStore:
    """Keeps events as bytes, as a file would, and gives back what is made of those.

    Attributes:
        payloads: the events of each session, in order.
        broken: while it is, nothing can be written, and what is tried fails with this text.
        loads: how often events were asked for.
    """

    def __init__(self) -> None:
        self.payloads: dict[str, list[bytes]] = {}
        self.broken = ""
        self.loads = 0

    @property
    def recovers(self) -> bool:
        """Yes."""
        return True

    @property
    def found(self) -> Sequence[StoredSession]:
        """What a store would find that is opened with the same events."""
        return [StoredSession.of(session_id, self.events(session_id)) for session_id in sorted(self.payloads)]

    def events(self, session_id: str) -> list[Event]:
        """The events of a session."""
        return [decode_event(payload) for payload in self.payloads.get(session_id, ())]

    async def append(self, session_id: str, event: Callable[[], Event]) -> None:
        """See ``Store.append``."""
        self._require_whole()
        self._take(session_id, event())

    def note(self, session_id: str, event: Callable[[], Event]) -> None:
        """See ``Store.note``."""
        if not self.broken:
            self._take(session_id, event())

    def written(self, session_id: str) -> bool:
        """Always: nothing waits."""
        return True

    async def delete(self, session_id: str) -> None:
        """See ``Store.delete``."""
        self._require_whole()
        del self.payloads[session_id]

    async def load(self, session_id: str) -> Sequence[Event]:
        """See ``Store.load``; others get to run meanwhile."""
        self.loads += 1
        await trio.lowlevel.checkpoint()
        return self.events(session_id)

    def _take(self, session_id: str, event: Event) -> None:
        if isinstance(event, SessionCreated):
            self.payloads[session_id] = []
        if session_id in self.payloads:
            self.payloads[session_id].append(encode_event(event))

    def _require_whole(self) -> None:
        if self.broken:
            raise StoreUnavailable(self.broken)
