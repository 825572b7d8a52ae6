"""Which limit an error is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.errors import (
    ContextOverflow,
    EngineTimedOut,
    MemoryExhausted,
    NestedTooDeeply,
    NodeCapReached,
    SessionError,
    SessionExpired,
    SessionTokensReached,
    TooManyMessages,
    TooManySessions,
    TooManySessionTurns,
    TooManyValues,
    TurnQueueFull,
    TurnQueueTimeout,
)
from trio_sessions.observe import ErrorLimit

__all__ = ["LIMIT_OF", "limit_of"]

LIMIT_OF: Final[Mapping[type[SessionError], ErrorLimit]] = {
    ContextOverflow: "seq_len",
    EngineTimedOut: "engine_timeout",
    MemoryExhausted: "memory",
    NestedTooDeeply: "json_depth",
    NodeCapReached: "nodes",
    SessionExpired: "session_deadline",
    SessionTokensReached: "session_tokens",
    TooManyMessages: "messages",
    TooManySessions: "sessions",
    TooManySessionTurns: "session_turns",
    TooManyValues: "json_values",
    TurnQueueFull: "turns",
    TurnQueueTimeout: "turn_queue_timeout",
}


def limit_of(error: BaseException) -> ErrorLimit | None:
    """The limit that ``error`` says was reached; None where it is about something else."""
    return next((LIMIT_OF[kind] for kind in type(error).__mro__ if kind in LIMIT_OF), None)
