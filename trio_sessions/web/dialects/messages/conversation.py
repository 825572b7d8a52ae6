"""From messages made of blocks to chat messages.

Every message is read by itself, so that a request that appends to another is read into messages that append to the
other's. Blocks that are appended to the last user message are appended messages, if they follow a tool result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.errors import InvalidRequest
from trio_sessions.web.dialects.messages.leftovers import Leftovers, label
from trio_sessions.web.dialects.messages.shapes import (
    Block,
    Content,
    Document,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    shaped,
)

__all__ = ["chat_messages"]

# Of Claude Code; it has a hash that is another on every turn.
_BILLING: Final = "x-anthropic-billing-header:"
_FAILED: Final = "the tool failed and said nothing"


def chat_messages(
    system: Content | None,
    messages: Sequence[Message],
    roles: Callable[[], frozenset[str]],
    leftovers: Leftovers,
) -> list[dict[str, Any]]:
    """The conversation as chat messages.

    Args:
        system: the request's own, beside the messages.
        messages: at least one.
        roles: what the template renders behind an assistant's message; system messages it does not are the user's.
        leftovers: is told what cannot be rendered.

    Raises:
        InvalidRequest: a block is not what its type says; the text names the place.
    """
    leading = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    systems = [] if system is None else [_system(system, "system", leftovers)]
    systems += [
        _text(message.content, f"messages[{i}].content", leftovers) for i, message in enumerate(messages[:leading])
    ]
    # One: many templates refuse a second.
    text = "\n".join(text for text in systems if text)
    chat: list[dict[str, Any]] = [{"role": "system", "content": text}] if text else []
    for index, message in enumerate(messages[leading:], leading):
        place = f"messages[{index}].content"
        match message.role:
            case "user":
                chat += _user(message.content, place, leftovers)
            case "assistant":
                chat.append(_assistant(message.content, place, leftovers))
            case "system":
                role = "system" if "system" in roles() else "user"
                chat.append({"role": role, "content": _text(message.content, place, leftovers)})
            case _:
                raise InvalidRequest(f"messages[{index}].role: must be user, assistant or system")
    return chat or [{"role": "system", "content": ""}]


def _system(content: Content, place: str, leftovers: Leftovers) -> str:
    if isinstance(content, str):
        return content
    texts = (_block_text(block, f"{place}[{index}]", leftovers) for index, block in enumerate(content))
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _text(content: Content, place: str, leftovers: Leftovers) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{place}[{index}]", leftovers) for index, block in enumerate(content))


def _block_text(block: dict[str, Any], place: str, leftovers: Leftovers) -> str:
    """The text of a block, or what stands for it."""
    kind = shaped(block, Block, place).type
    if kind == "text":
        return shaped(block, TextBlock, place).text
    if kind == "document":
        source = shaped(block, Document, place).source
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
    leftovers.block(kind)
    return f"[{label(kind)} omitted]"


def _user(content: Content, place: str, leftovers: Leftovers) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    chat: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            chat.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    for index, block in enumerate(content):
        at = f"{place}[{index}]"
        if shaped(block, Block, at).type == "tool_result":
            flush()
            chat.append(_tool_result(shaped(block, ToolResultBlock, at), at, leftovers))
        else:
            texts.append(_block_text(block, at, leftovers))
    flush()
    return chat or [{"role": "user", "content": ""}]


def _tool_result(block: ToolResultBlock, place: str, leftovers: Leftovers) -> dict[str, Any]:
    text = "" if block.content is None else _text(block.content, f"{place}.content", leftovers)
    if block.is_error:
        text = text or _FAILED
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _assistant(content: Content, place: str, leftovers: Leftovers) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, reasoning, calls = [], [], []
    for index, block in enumerate(content):
        at = f"{place}[{index}]"
        match shaped(block, Block, at).type:
            case "text":
                texts.append(shaped(block, TextBlock, at).text)
            case "thinking":
                reasoning.append(shaped(block, ThinkingBlock, at).thinking)
            case "tool_use":
                calls.append(_tool_call(shaped(block, ToolUseBlock, at)))
            case kind:
                # Nothing stands for it: the model did not say that.
                leftovers.block(kind)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if text := "".join(reasoning):
        message["reasoning_content"] = text
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
