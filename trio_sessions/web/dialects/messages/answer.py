"""From an engine's answer to a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.web.dialects.answer import ChatAnswer, Usage
from trio_sessions.web.dialects.messages.content import ContentBlock, content_blocks

__all__ = ["Frame", "Stop", "spelled_usage", "stop_of"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an answer ended."""

    reason: str
    sequence: str | None = None

    def spelled(self) -> dict[str, Any]:
        """The members of a message, or of its last delta, that say so."""
        return {"stop_reason": self.reason, "stop_sequence": self.sequence, "stop_details": None}


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known of an answer before it is there.

    Attributes:
        response_id: of the answer.
        model: as the client named it.
        thinking: whether the client wants to see the reasoning.
    """

    response_id: str
    model: str
    thinking: bool

    def message(self, content: Sequence[dict[str, Any]], stop: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
        """A message."""
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **stop,
            "usage": usage,
        }

    def blocks(self, answer: ChatAnswer) -> Sequence[ContentBlock]:
        """The content of ``answer``, at least one block."""
        return content_blocks(answer, response_id=self.response_id, thinking=self.thinking)

    def whole(self, answer: EngineAnswer) -> dict[str, Any]:
        """The message."""
        chat = ChatAnswer.of(answer)
        content = [block.whole() for block in self.blocks(chat)]
        return self.message(content, stop_of(chat).spelled(), spelled_usage(chat.usage))


def stop_of(answer: ChatAnswer) -> Stop:
    """Why ``answer`` ended."""
    if answer.finish_reason in ("length", "abort"):
        return Stop("max_tokens")
    if answer.tool_calls or answer.finish_reason == "tool_calls":
        return Stop("tool_use")
    if answer.stop_text is not None:
        return Stop("stop_sequence", answer.stop_text)
    return Stop("refusal" if answer.finish_reason == "content_filter" else "end_turn")


def spelled_usage(usage: Usage) -> dict[str, int]:
    """Tokens; of the prompt's, those that were in the engine's cache are counted apart."""
    return {
        "input_tokens": max(0, usage.prompt - usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
