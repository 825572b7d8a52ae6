"""What a request and a session may come to, and which limit an error is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trio_sessions.core.values import more_values_than
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
from trio_sessions.observe import Limit

__all__ = ["LIMIT_OF", "RequestLimits", "limit_of"]

LIMIT_OF: Final[Mapping[type[SessionError], Limit]] = {
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


def limit_of(error: BaseException) -> Limit | None:
    """The limit that ``error`` says was reached; None where it is about something else."""
    return next((LIMIT_OF[kind] for kind in type(error).__mro__ if kind in LIMIT_OF), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request, and what a session stores, may come to.

    Attributes:
        messages: most messages of a request.
        json_values: about the most values of its JSON.
        session_tokens: most ids that a session stores.
    """

    messages: int
    json_values: int
    session_tokens: int

    def check_body(self, body: bytes) -> None:
        """Refuse a body that would take long to decode.

        Raises:
            TooManyValues: it has too many values.
        """
        if more_values_than(self.json_values, body):
            raise TooManyValues(self.json_values)

    def check_messages(self, messages: int) -> None:
        """Refuse a request of so many messages.

        Raises:
            TooManyMessages: they are too many.
        """
        if messages > self.messages:
            raise TooManyMessages(messages, self.messages)

    def check_tokens(self, *, stored: int, added: int) -> None:
        """Refuse a prompt that adds so many ids to what its session stores.

        Raises:
            SessionTokensReached: these are too many together.
        """
        if stored + added > self.session_tokens:
            raise SessionTokensReached(stored=stored, added=added, most=self.session_tokens)
