"""From messages made of blocks to chat messages.

Every message is read by itself, so that a request that appends to another is read into messages that append to the
other's. Blocks that are appended to the last user message are appended messages, if they follow a tool result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.core.matchers import BILLING_PREFIX
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.dropped import Dropped, placeholder
from trio_sessions.web.dialects.messages.ids import issued_call, signed_answer
from trio_sessions.web.dialects.messages.shapes import (
    Block,
    Content,
    Document,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from trio_sessions.web.dialects.shapes import shaped
from trio_sessions.web.dialects.stored import stored_call

__all__ = ["Conversation"]

_FAILED: Final = "the tool failed and said nothing"


class Conversation:
    """Reads the messages of a request.

    Args:
        reading: knows the template and what was answered.
        dropped: gets to know what cannot be rendered.
    """

    def __init__(self, reading: Reading, dropped: Dropped) -> None:
        self._reading = reading
        self._dropped = dropped
        self._named: list[str] = []

    @property
    def named(self) -> Sequence[str]:
        """The response ids that assistants' blocks named, in order."""
        return self._named

    def read(self, system: Content | None, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The conversation as chat messages.

        Args:
            system: the request's own, beside the messages.
            messages: at least one.

        Raises:
            InvalidRequest: a block is not what its type says; the text names the place.
        """
        leading = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
        systems = [] if system is None else [self._system(system, "system")]
        systems += [
            self._text(message.content, f"messages[{i}].content") for i, message in enumerate(messages[:leading])
        ]
        # One: many templates refuse a second.
        text = "\n".join(text for text in systems if text)
        chat: list[dict[str, Any]] = [{"role": "system", "content": text}] if text else []
        for index, message in enumerate(messages[leading:], leading):
            place = f"messages[{index}].content"
            match message.role:
                case "user":
                    chat += self._user(message.content, place)
                case "assistant":
                    chat.append(self._assistant(message.content, place))
                case "system":
                    role = "system" if self._renders_later_system else "user"
                    chat.append({"role": role, "content": self._text(message.content, place)})
                case _:
                    raise InvalidRequest(f"messages[{index}].role: must be user, assistant or system")
        return chat or [{"role": "system", "content": ""}]

    @cached_property
    def _renders_later_system(self) -> bool:
        return "system" in self._reading.roles()

    def _system(self, content: Content, place: str) -> str:
        if isinstance(content, str):
            return content
        texts = (self._block_text(block, f"{place}[{index}]") for index, block in enumerate(content))
        return "\n".join(text for text in texts if not text.startswith(BILLING_PREFIX))

    def _text(self, content: Content, place: str) -> str:
        if isinstance(content, str):
            return content
        return "\n".join(self._block_text(block, f"{place}[{index}]") for index, block in enumerate(content))

    def _block_text(self, block: dict[str, Any], place: str) -> str:
        """The text of a block, or what stands for it."""
        kind = shaped(block, Block, place).type
        if kind == "text":
            return shaped(block, TextBlock, place).text
        if kind == "document":
            source = shaped(block, Document, place).source
            if source.get("type") == "text" and isinstance(source.get("data"), str):
                return str(source["data"])
        self._dropped.add(kind, "block")
        return placeholder(kind)

    def _user(self, content: Content, place: str) -> list[dict[str, Any]]:
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
                chat.append(self._tool_result(shaped(block, ToolResultBlock, at), at))
            else:
                texts.append(self._block_text(block, at))
        flush()
        return chat or [{"role": "user", "content": ""}]

    def _tool_result(self, block: ToolResultBlock, place: str) -> dict[str, Any]:
        text = "" if block.content is None else self._text(block.content, f"{place}.content")
        if block.is_error:
            text = text or _FAILED
        return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}

    def _assistant(self, content: Content, place: str) -> dict[str, Any]:
        if isinstance(content, str):
            return {"role": "assistant", "content": content}
        texts, reasoning, calls = [], [], []
        for index, block in enumerate(content):
            at = f"{place}[{index}]"
            match shaped(block, Block, at).type:
                case "text":
                    texts.append(shaped(block, TextBlock, at).text)
                case "thinking":
                    thought = shaped(block, ThinkingBlock, at)
                    reasoning.append(thought.thinking)
                    if (response_id := signed_answer(thought.signature)) is not None:
                        self._named.append(response_id)
                case "tool_use":
                    calls.append(self._tool_call(shaped(block, ToolUseBlock, at)))
                case kind:
                    # Nothing stands for it: the model did not say that.
                    self._dropped.add(kind, "block")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if text := "".join(reasoning):
            message["reasoning_content"] = text
        if calls:
            message["tool_calls"] = calls
        return message

    def _tool_call(self, block: ToolUseBlock) -> dict[str, Any]:
        arguments = json.encode(block.input).decode()
        issued = issued_call(block.id)
        stored = None
        if issued is not None:
            self._named.append(issued.response_id)
            stored = stored_call(self._reading, issued.response_id, issued.index)
        # What is stored, and was rendered, has the engine's own id, or none.
        named = {"id": block.id} if stored is None else {key: stored[key] for key in ("id",) if key in stored}
        return {**named, "type": "function", "function": {"name": block.name, "arguments": arguments}}
