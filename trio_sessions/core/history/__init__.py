"""Histories of a session: what a turn was built on, and what a commit adds."""

from trio_sessions.core.history.base import Attachment, Checkpoint, History, TurnRecord, path_of
from trio_sessions.core.history.linear import MAX_ASSISTANT_ROLLBACK_STEPS, LinearHistory

__all__ = [
    "MAX_ASSISTANT_ROLLBACK_STEPS",
    "Attachment",
    "Checkpoint",
    "History",
    "LinearHistory",
    "TurnRecord",
    "path_of",
]
