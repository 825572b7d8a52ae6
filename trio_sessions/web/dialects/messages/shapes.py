"""What requests are made of, as far as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from trio_sessions.web.dialects.shapes import EngineFields

__all__ = [
    "Block",
    "Content",
    "Document",
    "Message",
    "Request",
    "TextBlock",
    "ThinkingBlock",
    "Tool",
    "ToolChoice",
    "ToolResultBlock",
    "ToolUseBlock",
]

Content = str | list[dict[str, Any]]
"""Text, or blocks, which are read one by one: each kind has a shape of its own."""


class Message(msgspec.Struct, gc=False):
    """One of ``messages``."""

    role: str
    content: Content


class ToolChoice(msgspec.Struct, gc=False):
    """``tool_choice``."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, gc=False):
    """``thinking``."""

    type: str
    budget_tokens: int | None = None


class Request(EngineFields, gc=False, kw_only=True):
    """A request's body; what is not named here is tolerated."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    model: str | None = None
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    max_tokens: int | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class Block(msgspec.Struct, gc=False):
    """Any block."""

    type: str


class TextBlock(msgspec.Struct, gc=False):
    """``text``."""

    text: str


class ThinkingBlock(msgspec.Struct, gc=False):
    """``thinking``; its signature may be anything, from elsewhere."""

    thinking: str
    signature: Any = None


class ToolUseBlock(msgspec.Struct, gc=False):
    """``tool_use``."""

    id: str
    name: str
    input: Any = msgspec.field(default_factory=dict)


class ToolResultBlock(msgspec.Struct, gc=False):
    """``tool_result``."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class Document(msgspec.Struct, gc=False):
    """``document``, whose source is text for some."""

    source: Mapping[str, Any]
