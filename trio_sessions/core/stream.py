"""From an engine's stream of chunks to the answer it would have given whole.

Source of the shapes: OpenAI's chat completion chunks, with SGLang's ``meta_info`` in every choice that samples ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.errors import BadEngineAnswer

__all__ = ["AnswerAssembler", "Delta", "EventSplitter"]

_DONE: Final = b"[DONE]"
_LOG_PROBS: Final = "output_token_logprobs"
_LONGEST_LINE: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Delta:
    """What was sampled since the delta before, as text.

    Attributes:
        reasoning: continues the reasoning.
        content: continues the content; no more reasoning follows.
        head: what describes the whole answer, ``id``, ``created`` and ``model``, as the engine has said it so far.
    """

    reasoning: str = ""
    content: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)


class EventSplitter:
    """Cuts bytes into the data of server-sent events, wherever the pieces end."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of each event that is complete with ``piece``.

        Raises:
            BadEngineAnswer: a line has no end.
        """
        self._rest += piece
        *lines, rest = self._rest.split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise BadEngineAnswer("invalid chat completion stream: a line has no end")
        self._rest = rest
        for line in lines:
            text = bytes(line).removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text.removeprefix(b"data:").removeprefix(b" "))
            elif not text and self._data:
                yield b"\n".join(self._data)
                self._data = []


@dataclass(slots=True)
class AnswerAssembler:
    """Puts the chunks of one answer together."""

    _fields: dict[str, Any] = field(default_factory=dict)
    _choice: dict[str, Any] = field(default_factory=dict)
    _message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": ""})
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _meta: dict[str, Any] = field(default_factory=dict)
    _log_probs: list[Any] = field(default_factory=list)
    _done: bool = False

    def add(self, data: bytes) -> Delta | None:
        """Take one event; what it adds to the texts, or None where it adds nothing to them.

        Raises:
            BadEngineAnswer: it is no chunk, reports an error, or comes after the end.
        """
        if data == _DONE:
            self._done = True
            return None
        chunk = _object(_decoded(data), "a chunk")
        if self._done:
            raise BadEngineAnswer("invalid chat completion stream: a chunk comes after [DONE]")
        if chunk.get("error") is not None:
            raise BadEngineAnswer("invalid chat completion stream: the engine broke it off with an error")
        choices = chunk.pop("choices", None)
        # What describes the answer is said in every chunk, and usage in the last.
        self._fields.update({name: value for name, value in chunk.items() if value is not None})
        if not choices:
            return None
        if not isinstance(choices, list):
            raise BadEngineAnswer("invalid chat completion stream: choices must be a list")
        return self._add_choice(_object(choices[0], "choices[0]"))

    def answer(self) -> bytes:
        """The whole answer, compact JSON; whether it is usable is for ``extract_completion`` to say.

        Raises:
            BadEngineAnswer: the stream was cut off, or its ids, their log probs and its usage do not agree.
        """
        if not self._done:
            raise BadEngineAnswer("invalid chat completion stream: it ended before [DONE]")
        usage = self._fields.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if counted != len(self._log_probs):
            raise BadEngineAnswer(
                f"invalid chat completion stream: len(output_token_logprobs)={len(self._log_probs)} != "
                f"usage.completion_tokens={counted}"
            )
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        meta = {"completion_tokens": counted, **self._meta, _LOG_PROBS: self._log_probs}
        choice = {"index": 0, "message": message, "finish_reason": None, **self._choice, "meta_info": meta}
        return json.encode({**self._fields, "object": "chat.completion", "choices": [choice]})

    def _add_choice(self, choice: dict[str, Any]) -> Delta | None:
        delta = _object(choice.pop("delta", None) or {}, "delta")
        meta = _object(choice.pop("meta_info", None) or {}, "meta_info")
        entries = meta.pop(_LOG_PROBS, None)
        if entries is not None:
            if not isinstance(entries, list):
                raise BadEngineAnswer(f"invalid chat completion stream: {_LOG_PROBS} must be a list")
            self._log_probs += entries
        # Counts grow from chunk to chunk: the last word is that on the whole.
        self._meta.update(meta)
        choice.pop("logprobs", None)
        self._choice.update({name: value for name, value in choice.items() if value is not None})
        for call in delta.pop("tool_calls", None) or ():
            self._add_call(_object(call, "a tool call"))
        reasoning, content = _text(delta, "reasoning_content"), _text(delta, "content")
        if reasoning:
            self._message["reasoning_content"] = self._message.get("reasoning_content", "") + reasoning
        self._message["content"] += content
        return Delta(reasoning, content, dict(self._fields)) if reasoning or content else None

    def _add_call(self, call: dict[str, Any]) -> None:
        index = call.pop("index", 0)
        if not isinstance(index, int):
            raise BadEngineAnswer("invalid chat completion stream: the index of a tool call must be an integer")
        function = _object(call.pop("function", None) or {}, "function")
        whole = self._calls.setdefault(index, {"index": index, "function": {"name": "", "arguments": ""}})
        whole.update({name: value for name, value in call.items() if value is not None})
        whole["function"]["name"] += _text(function, "name")
        whole["function"]["arguments"] += _text(function, "arguments")


def _decoded(data: bytes) -> Any:
    try:
        return json.decode(data)
    except json.InvalidJSON as error:
        raise BadEngineAnswer(f"invalid chat completion stream: {error}") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadEngineAnswer(f"invalid chat completion stream: {what} must be an object")
    return value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise BadEngineAnswer(f"invalid chat completion stream: {name} must be a string")
    return value or ""
