"""The journal in an SQLite file."""

from __future__ import annotations

from trio_sessions.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
