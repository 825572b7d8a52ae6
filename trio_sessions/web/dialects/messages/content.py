"""The content blocks of an answer, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from trio_sessions.core import json
from trio_sessions.web.dialects.answer import ChatAnswer
from trio_sessions.web.dialects.messages.ids import call_id

__all__ = ["ContentBlock", "TextContent", "ThinkingContent", "content_blocks"]

# A call's arguments come back inside a body, a message and a block.
_DEEPER: Final = 8


class ContentBlock(Protocol):
    """One block of an answer."""

    def whole(self) -> dict[str, Any]:
        """The block."""

    def start(self) -> dict[str, Any]:
        """The block as it stands in its start event, before anything of it is known."""

    def deltas(self) -> list[dict[str, Any]]:
        """What makes ``start`` into ``whole``, but for ``ending``."""

    def ending(self) -> list[dict[str, Any]]:
        """The deltas behind the last of the text."""


@dataclass(frozen=True, slots=True)
class TextContent:
    """Text."""

    text: str

    def whole(self) -> dict[str, Any]:
        """See ``ContentBlock.whole``."""
        return {"type": "text", "text": self.text}

    def start(self) -> dict[str, Any]:
        """See ``ContentBlock.start``."""
        return {"type": "text", "text": ""}

    def deltas(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.deltas``."""
        return [{"type": "text_delta", "text": self.text}] if self.text else []

    def ending(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.ending``."""
        return []


@dataclass(frozen=True, slots=True)
class ThinkingContent:
    """Reasoning. Nobody checks the signature, but clients give up a block without one."""

    text: str
    signature: str

    def whole(self) -> dict[str, Any]:
        """See ``ContentBlock.whole``."""
        return {"type": "thinking", "thinking": self.text, "signature": self.signature}

    def start(self) -> dict[str, Any]:
        """See ``ContentBlock.start``."""
        return {"type": "thinking", "thinking": "", "signature": ""}

    def deltas(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.deltas``."""
        return [{"type": "thinking_delta", "thinking": self.text}]

    def ending(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.ending``."""
        return [{"type": "signature_delta", "signature": self.signature}]


@dataclass(frozen=True, slots=True)
class ToolUseContent:
    """A call; ``arguments`` are a JSON object."""

    id: str
    name: str
    arguments: bytes

    def whole(self) -> dict[str, Any]:
        """See ``ContentBlock.whole``."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": msgspec.Raw(self.arguments)}

    def start(self) -> dict[str, Any]:
        """See ``ContentBlock.start``."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def deltas(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.deltas``."""
        return [{"type": "input_json_delta", "partial_json": self.arguments.decode()}]

    def ending(self) -> list[dict[str, Any]]:
        """See ``ContentBlock.ending``."""
        return []


def content_blocks(answer: ChatAnswer, *, response_id: str, thinking: bool) -> Sequence[ContentBlock]:
    """At least one block: reasoning, text, calls.

    Args:
        answer: the engine's.
        response_id: of the answer.
        thinking: whether the client wants to see the reasoning.
    """
    blocks: list[ContentBlock] = []
    if thinking and answer.reasoning:
        blocks.append(ThinkingContent(answer.reasoning, response_id))
    if answer.content:
        blocks.append(TextContent(answer.content))
    for call in answer.identified_calls(partial(call_id, response_id)):
        blocks.append(ToolUseContent(call.id, call.name, _object(call.arguments)))
    return blocks or [TextContent("")]


def _object(arguments: str) -> bytes:
    """``arguments`` as a JSON object; text that is none becomes the only member of one."""
    spelled = arguments.encode()
    if not spelled.strip():
        return b"{}"
    try:
        # As deep in a request as it will be when it comes back.
        if isinstance(json.decode(spelled), dict) and json.decode(b"[" * _DEEPER + spelled + b"]" * _DEEPER):
            return json.compact(spelled)
    except json.InvalidJSON:
        pass
    return json.encode({"arguments": arguments})
