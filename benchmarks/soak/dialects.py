"""The three chat APIs, as far as the agents of a soak speak them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["DIALECTS", "MESSAGES", "Dialect"]

Items = list[dict[str, Any]]

_SCHEMA: Final = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_NAMED: Final = {"name": "search", "description": "Search the archive."}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the APIs.

    Attributes:
        name: for tables.
        path: of its turns, below the session.
        history: the field of a request that has the conversation.
        fields: the other fields.
        said: the items of a conversation that an answer is.
        results: those that follow an answer which called tools, with this text; none where it called none.
    """

    name: str
    path: str
    history: str
    fields: dict[str, Any]
    said: Callable[[bytes], Items]
    results: Callable[[Items, str], Items]

    def body(self, items: Sequence[dict[str, Any]], *, stream: bool = False) -> bytes:
        """A request for a turn."""
        return msgspec.json.encode({**self.fields, "stream": stream, self.history: items})


def _chat_said(answer: bytes) -> Items:
    return [msgspec.json.decode(answer)["choices"][0]["message"]]


def _chat_results(said: Items, text: str) -> Items:
    calls = said[0].get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


def _messages_said(answer: bytes) -> Items:
    return [{"role": "assistant", "content": msgspec.json.decode(answer)["content"]}]


def _messages_results(said: Items, text: str) -> Items:
    calls = [block["id"] for block in said[0]["content"] if block["type"] == "tool_use"]
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call in calls]
    return [{"role": "user", "content": blocks}] if blocks else []


def _responses_said(answer: bytes) -> Items:
    output: Items = msgspec.json.decode(answer)["output"]
    return output


def _responses_results(said: Items, text: str) -> Items:
    calls = [item["call_id"] for item in said if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call, "output": text} for call in calls]


MESSAGES: Final = Dialect(
    name="messages",
    path="v1/messages",
    history="messages",
    fields={"model": "soak", "max_tokens": 512, "tools": [{**_NAMED, "input_schema": _SCHEMA}]},
    said=_messages_said,
    results=_messages_results,
)
DIALECTS: Final = (
    Dialect(
        name="chat",
        path="v1/chat/completions",
        history="messages",
        fields={"model": "soak", "tools": [{"type": "function", "function": {**_NAMED, "parameters": _SCHEMA}}]},
        said=_chat_said,
        results=_chat_results,
    ),
    MESSAGES,
    Dialect(
        name="responses",
        path="v1/responses",
        history="input",
        fields={"model": "soak", "tools": [{"type": "function", **_NAMED, "parameters": _SCHEMA}]},
        said=_responses_said,
        results=_responses_results,
    ),
)
