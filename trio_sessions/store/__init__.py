"""Where sessions are written down, so that they outlive the process and need not all be in memory."""

from __future__ import annotations

from trio_sessions.store.base import JournalIdentity, Store, StoredSession
from trio_sessions.store.events import AnswerNoted, Event, InvalidEvent, SessionCreated, TurnCommitted, TurnsDiscarded
from trio_sessions.store.memory import MemoryStore
from trio_sessions.store.turns import Restored, turn_event

__all__ = [
    "AnswerNoted",
    "Event",
    "InvalidEvent",
    "JournalIdentity",
    "MemoryStore",
    "Restored",
    "SessionCreated",
    "Store",
    "StoredSession",
    "TurnCommitted",
    "TurnsDiscarded",
    "turn_event",
]
