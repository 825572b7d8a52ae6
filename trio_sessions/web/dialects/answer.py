"""An engine's chat answer, decoded for dialects that spell it in other words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer

__all__ = ["ChatAnswer", "ToolCall", "Usage", "content_text"]


# Only what is asked for is decoded: an answer may have thousands of log probs.
class _MetaInfo(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    cached_tokens: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: dict[str, Any]
    meta_info: _MetaInfo
    finish_reason: Any = None
    matched_stop: Any = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice]
    id: Any = None
    model: Any = None
    created: Any = None
    usage: Any = None


_decoder = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the engine parsed it.

    Attributes:
        id: what its result will name; empty where the engine gave none.
        name: of the function.
        arguments: the text that was sampled, JSON in most cases.
    """

    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> ToolCall:
        """From a call in a chat message; whatever it lacks is empty."""
        function = _object(call.get("function"))
        arguments = function.get("arguments")
        return cls(
            id=_text(call.get("id")),
            name=_text(function.get("name")),
            arguments=arguments if isinstance(arguments, str) else json.encode(arguments or {}).decode(),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an answer; ``cached`` of the prompt's were in the engine's cache."""

    prompt: int
    completion: int
    cached: int


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What an engine answered.

    Attributes:
        id: the engine's id of it.
        model: as the engine calls it.
        created: seconds since the epoch.
        content: the text.
        reasoning: the reasoning, empty where there is none.
        tool_calls: in order.
        finish_reason: as the engine gave it.
        stop_text: the stop string that ended the answer, or None.
        usage: tokens, as the engine counted them.
    """

    id: str
    model: str
    created: int
    content: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    stop_text: str | None
    usage: Usage

    @classmethod
    def of(cls, answer: EngineAnswer) -> ChatAnswer:
        """From an answer that ``extract_completion`` accepted; whatever else it lacks is empty."""
        decoded = _decoder.decode(answer.body)
        choice = decoded.choices[0]
        message = choice.message
        return cls(
            id=_text(decoded.id),
            model=_text(decoded.model),
            created=_count(decoded.created),
            content=content_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content")),
            tool_calls=[ToolCall.of(call) for call in message.get("tool_calls") or ()],
            finish_reason=_text(choice.finish_reason),
            stop_text=_stop_text(choice.matched_stop),
            usage=_usage(_object(decoded.usage), choice.meta_info),
        )

    def identified_calls(self, call_id: Callable[[int], str]) -> Sequence[ToolCall]:
        """The tool calls as clients get them: results name their calls, so each has an id, and no two the same.

        Args:
            call_id: the id for the call of this index, where the engine gave none or that of a call before it.
        """
        calls: list[ToolCall] = []
        given: set[str] = set()
        for index, call in enumerate(self.tool_calls):
            clear = call.id and call.id not in given
            calls.append(call if clear else replace(call, id=call_id(index)))
            given.add(calls[-1].id)
        return calls


def content_text(content: Any) -> str:
    """The text of a chat message's content."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return _text(content)


def _usage(usage: Mapping[str, Any], meta: _MetaInfo) -> Usage:
    details = _object(usage.get("prompt_tokens_details"))
    return Usage(
        prompt=_count(usage.get("prompt_tokens")) or _count(meta.prompt_tokens),
        completion=_count(usage.get("completion_tokens")) or _count(meta.completion_tokens),
        cached=_count(details.get("cached_tokens")) or _count(meta.cached_tokens),
    )


def _stop_text(matched: Any) -> str | None:
    # A number is the id of a stop token, which is no stop string.
    return matched if isinstance(matched, str) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
