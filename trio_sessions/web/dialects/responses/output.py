"""An answer as a Response object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.web.dialects.answer import ChatAnswer, Usage
from trio_sessions.web.dialects.responses.ids import ItemIds
from trio_sessions.web.dialects.responses.tools import ToolTable, custom_input

__all__ = ["ResponseForm"]

_INCOMPLETE: Final = {"length": "max_output_tokens", "abort": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """How the answer to one request is spelled.

    Attributes:
        ids: of the answer.
        created: seconds since the epoch.
        model: what the request asked for.
        asked: what the response repeats of the request.
        tools: for the way back from names of functions.
        encrypted: whether reasoning comes with encrypted content, which clients that keep nothing replay.
    """

    ids: ItemIds
    created: int
    model: str
    asked: Mapping[str, Any]
    tools: ToolTable
    encrypted: bool

    def unanswered(self, status: str, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The response while there is no answer to show."""
        return {
            "id": self.ids.response,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "usage": None,
            **self.asked,
        }

    def answered(self, answer: ChatAnswer) -> dict[str, Any]:
        """The response with all that was sampled."""
        reason = _INCOMPLETE.get(answer.finish_reason)
        return self.unanswered("completed" if reason is None else "incomplete") | {
            "model": answer.model or self.model,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": self._items(answer, incomplete=reason is not None),
            "usage": _usage(answer.usage),
        }

    def _items(self, answer: ChatAnswer, *, incomplete: bool) -> Sequence[Mapping[str, Any]]:
        items = []
        if answer.reasoning:
            items.append(self.reasoning(answer.reasoning))
        # An answer without any item could not be sent back.
        if answer.content or not answer.tool_calls:
            items.append(self.message(answer.content))
        items += self._calls(answer)
        if incomplete and "status" in items[-1]:
            items[-1]["status"] = "incomplete"
        return items

    def reasoning(self, text: str) -> dict[str, Any]:
        """The item of the reasoning."""
        item = {
            "id": self.ids.reasoning,
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}],
        }
        if self.encrypted:
            # What it stands for is kept here, where its id leads to it.
            item["encrypted_content"] = self.ids.reasoning
        return item

    def message(self, text: str) -> dict[str, Any]:
        """The item of the content."""
        return {
            "id": self.ids.message,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        }

    def _calls(self, answer: ChatAnswer) -> list[dict[str, Any]]:
        items = []
        for index, call in enumerate(answer.identified_calls(self.ids.call)):
            tool = self.tools.tool_of(call.name)
            item: dict[str, Any] = {
                "id": self.ids.custom_call(index) if tool.custom else self.ids.function_call(index),
                "type": "custom_tool_call" if tool.custom else "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": tool.named.name,
            }
            if tool.named.namespace is not None:
                item["namespace"] = tool.named.namespace
            if tool.custom:
                item["input"] = custom_input(call.arguments)
            else:
                item["arguments"] = call.arguments
            items.append(item)
        return items


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        # Engines do not count them apart.
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
