"""An assistant's message, put together from the items that the Responses API has in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

__all__ = ["Assistant", "Kind"]

Message = Mapping[str, Any]


class Kind(IntEnum):
    """What an answer is made of, in the order in which this dialect writes it."""

    REASONING = 0
    TEXT = 1
    CALL = 2


@dataclass(slots=True, eq=False)
class Assistant:
    """An assistant's message that items are still added to.

    Attributes:
        response_id: the answer that its items belong to, as far as they say so.
        latest: what was added last.
        stored: the message of that answer, where the client named it instead of repeating it.
    """

    response_id: str | None = None
    latest: Kind = Kind.REASONING
    stored: Message | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)

    def message(self) -> Message:
        """As a chat message; the stored one is the very object."""
        if self.stored is not None:
            return self.stored
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def continued_by(self, response_id: str | None, kind: Kind, text: str) -> bool:
        """Whether an item that directly follows is part of it.

        Args:
            response_id: the answer that the item says it belongs to.
            kind: of the item.
            text: what it says; of a call its id.
        """
        if response_id is not None and self.response_id is not None:
            return response_id == self.response_id
        if self.stored is not None:
            return _says(self.stored, kind, text)
        # While a call has no result, nothing else is sampled.
        return bool(self.calls) or kind > self.latest or kind is Kind.REASONING is self.latest


def _says(message: Message, kind: Kind, text: str) -> bool:
    match kind:
        case Kind.REASONING:
            return text in ("", message.get("reasoning_content"))
        case Kind.TEXT:
            return text in ("", message.get("content"))
        case _:
            return any(call.get("id") == text for call in message.get("tool_calls") or ())
