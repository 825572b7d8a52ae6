"""What requests are made of, as far as it is read."""

from __future__ import annotations

from typing import Any

import msgspec

from trio_sessions.web.dialects.shapes import EngineFields

__all__ = [
    "Call",
    "Content",
    "CustomCall",
    "Format",
    "FunctionCall",
    "Item",
    "MessageItem",
    "Namespace",
    "Part",
    "ReasoningItem",
    "Reference",
    "Refusal",
    "Request",
    "ResultItem",
    "SchemaFormat",
    "TextConfig",
    "TextPart",
    "ToolChoice",
    "ToolDefinition",
    "ToolType",
]

Content = str | list[dict[str, Any]]
"""Text, or parts, which are read one by one: each kind has a shape of its own."""


class Format(msgspec.Struct, gc=False):
    """``text.format``."""

    type: str


class TextConfig(msgspec.Struct, gc=False):
    """``text``; what else a format has is told by its type."""

    format: dict[str, Any] | None = None
    verbosity: Any = None


class SchemaFormat(msgspec.Struct, gc=False):
    """A ``text.format`` with a schema."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Reasoning(msgspec.Struct, gc=False):
    """``reasoning``."""

    effort: Any = None


class ToolChoice(msgspec.Struct, gc=False):
    """``tool_choice`` where it is an object."""

    type: str
    name: str | None = None
    namespace: str | None = None


class Request(EngineFields, gc=False, kw_only=True):
    """A request's body; what is not named here is tolerated."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    stop: str | list[str] | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    reasoning: Reasoning | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    user: str | None = None
    # Whatever they are, they are refused or left out.
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    top_logprobs: Any = None


class ToolType(msgspec.Struct, gc=False):
    """Any of ``tools``."""

    type: str


class ToolDefinition(msgspec.Struct, gc=False):
    """A tool that the client runs; of a ``custom`` one the format, of a ``function`` the parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: Any = None


class Namespace(msgspec.Struct, gc=False):
    """Tools under one name."""

    name: str
    tools: list[dict[str, Any]]


class Item(msgspec.Struct, gc=False):
    """Any item of ``input``; messages and references may come without a type."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


class MessageItem(msgspec.Struct, gc=False):
    """``message``."""

    role: str
    content: Content | None = None
    id: str | None = None


class TextPart(msgspec.Struct, gc=False):
    """A part that is text."""

    text: str


class Refusal(msgspec.Struct, gc=False):
    """A part that is a refusal."""

    refusal: str


class Part(msgspec.Struct, gc=False):
    """Any part of a message."""

    type: str


class ReasoningItem(msgspec.Struct, gc=False):
    """``reasoning``."""

    content: list[TextPart] | None = None
    summary: list[TextPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class Call(msgspec.Struct, gc=False):
    """What all calls have."""

    call_id: str
    name: str
    namespace: str | None = None
    id: str | None = None


class FunctionCall(Call, gc=False, kw_only=True):
    """``function_call``."""

    arguments: str


class CustomCall(Call, gc=False, kw_only=True):
    """``custom_tool_call``."""

    input: str


class ResultItem(msgspec.Struct, gc=False):
    """``function_call_output`` and ``custom_tool_call_output``."""

    output: Content | None = None
    call_id: str | None = None


class Reference(msgspec.Struct, gc=False):
    """``item_reference``; it may come without a type."""

    id: str
    type: str | None = None
