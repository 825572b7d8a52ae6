"""No store: sessions live in the memory of their process and end with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trio_sessions.store.base import StoredSession
from trio_sessions.store.events import Event

__all__ = ["MemoryStore"]


class MemoryStore:
    """Writes nothing down."""

    @property
    def recovers(self) -> bool:
        """No: what is not in the registry is gone."""
        return False

    @property
    def found(self) -> Sequence[StoredSession]:
        """None."""
        return ()

    async def append(self, session_id: str, event: Callable[[], Event]) -> None:
        """Nothing to do."""

    def note(self, session_id: str, event: Callable[[], Event]) -> None:
        """Nothing to do."""

    def written(self, session_id: str) -> bool:
        """Never."""
        return False

    async def delete(self, session_id: str) -> None:
        """Nothing to do."""

    async def load(self, session_id: str) -> Sequence[Event]:
        """Nothing was written down."""
        return ()
