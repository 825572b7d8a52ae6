"""What a request and a session may come to."""

from __future__ import annotations

from dataclasses import dataclass

from trio_sessions.core.values import more_values_than
from trio_sessions.errors import SessionTokensReached, TooManyMessages, TooManyValues

__all__ = ["RequestLimits"]


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
