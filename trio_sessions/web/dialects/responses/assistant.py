"""An assistant's message, put together from the items that the Responses API has in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from trio_sessions.web.dialects.answer import ToolCall, content_text
from trio_sessions.web.dialects.responses.tools import ToolName

__all__ = ["Assistant", "Kind", "SpelledCall"]

Message = Mapping[str, Any]


class Kind(IntEnum):
    """What an answer is made of, in the order in which this dialect writes it."""

    REASONING = 0
    TEXT = 1
    CALL = 2


@dataclass(frozen=True, slots=True)
class SpelledCall:
    """A call as the client sent it.

    Attributes:
        call_id: what its result names.
        named: the tool, in the client's words.
        text: its arguments; of a custom tool the input.
        custom: whether the tool is a custom one.
        index: of the call in its answer, where an id that was issued says so.
        issued: whether ``call_id`` is an id that this dialect issued.
    """

    call_id: str
    named: ToolName
    text: str
    custom: bool
    index: int | None
    issued: bool


@dataclass(slots=True, eq=False)
class Assistant:
    """What the items say of one assistant's message, which items are still added to.

    Attributes:
        response_id: the answer that they belong to, as far as they say so.
        latest: what was added last.
        stored: the message of that answer, where the client named it and so need not repeat it.
        content: the texts that were sent.
        reasoning: likewise.
        calls: likewise.
    """

    response_id: str | None = None
    latest: Kind = Kind.REASONING
    stored: Message | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[SpelledCall] = field(default_factory=list)

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

    def agrees_with(self, message: Message) -> bool:
        """Whether ``message`` has the text and the reasoning that were sent, as far as any were."""
        return (not self.content or "".join(self.content) == content_text(message.get("content"))) and (
            not self.reasoning or "".join(self.reasoning) == message.get("reasoning_content")
        )


def _says(message: Message, kind: Kind, text: str) -> bool:
    match kind:
        case Kind.REASONING:
            return text in ("", message.get("reasoning_content"))
        case Kind.TEXT:
            return text in ("", content_text(message.get("content")))
        case _:
            return any(ToolCall.of(call).id == text for call in message.get("tool_calls") or ())
