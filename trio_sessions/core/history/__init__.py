"""Histories of a session: what a turn was built on, and what a commit adds."""

from trio_sessions.core.history.base import (
    NO_PREFERENCE,
    Attachment,
    Checkpoint,
    History,
    Preference,
    TurnRecord,
    path_of,
)
from trio_sessions.core.history.flat import flat_path
from trio_sessions.core.history.footprint import footprint
from trio_sessions.core.history.linear import MAX_ASSISTANT_ROLLBACK_STEPS, LinearHistory
from trio_sessions.core.history.rendered import RenderedWith
from trio_sessions.core.history.seam import OnToolsChange, OnTruncated, Seam, SeamPolicy, decide_seam
from trio_sessions.core.history.tree import MAX_NODES, TreeHistory

__all__ = [
    "MAX_ASSISTANT_ROLLBACK_STEPS",
    "MAX_NODES",
    "NO_PREFERENCE",
    "Attachment",
    "Checkpoint",
    "History",
    "LinearHistory",
    "OnToolsChange",
    "OnTruncated",
    "Preference",
    "RenderedWith",
    "Seam",
    "SeamPolicy",
    "TreeHistory",
    "TurnRecord",
    "decide_seam",
    "flat_path",
    "footprint",
    "path_of",
]
