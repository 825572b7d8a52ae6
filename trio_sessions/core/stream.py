"""From an engine's stream of chunks to the answer it would have given whole.

Source of the shapes: OpenAI's chat completion chunks, with SGLang's ``meta_info`` in every choice that samples ids. Ids
and log probs of a chunk are those that are new; counts are those of all that was sampled so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from trio_sessions.core import json
from trio_sessions.errors import BadEngineAnswer

__all__ = ["AnswerAssembler", "Delta", "EventSplitter"]

_DONE: Final = b"[DONE]"
_LOG_PROBS: Final = "output_token_logprobs"
_HEAD: Final = ("id", "created", "model")


@dataclass(frozen=True, slots=True)
class Delta:
    """What was sampled since the delta before, as text.

    Attributes:
        reasoning: continues the reasoning; empty once there was content.
        content: continues the content, behind the reasoning.
        head: what describes the whole answer, ``id``, ``created`` and ``model``, as far as the engine has said it.
    """

    reasoning: str = ""
    content: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)


class EventSplitter:
    """Cuts bytes into the data of server-sent events, wherever the pieces end. Events that have no data are skipped."""

    def __init__(self) -> None:
        # Of the line that has not ended. Pieces are looked through once, however long it grows.
        self._line: list[bytes] = []
        self._ended_with_cr = False
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of each event that is complete with ``piece``."""
        if not piece:
            return
        if self._ended_with_cr:
            # The line feed of a line that has ended.
            piece = piece.removeprefix(b"\n")
        self._ended_with_cr = piece.endswith(b"\r")
        for line in piece.splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            if text:
                self._line.append(text)
            if len(text) < len(line):
                yield from self._end_line()

    def _end_line(self) -> Iterator[bytes]:
        line, self._line = b"".join(self._line), []
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line:
            data, self._data = b"\n".join(self._data), []
            if data:
                yield data


@dataclass(slots=True)
class _Call:
    """A tool call so far.

    Attributes:
        fields: all but the function.
        name, arguments: of the function, in pieces.
    """

    fields: dict[str, Any]
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> dict[str, Any]:
        return {**self.fields, "function": {"name": "".join(self.name), "arguments": "".join(self.arguments)}}


class AnswerAssembler:
    """Puts the chunks of one answer together.

    What chunks say of tokens in OpenAI's ``logprobs`` is left out: ``output_token_logprobs`` says it with ids.

    Attributes:
        weight: how much work it is to make the answer of what was added so far, see ``json.weight``.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._fields: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._log_probs: list[Any] | None = None
        self._done = False

    def add(self, data: bytes) -> Delta | None:
        """Take one event; what it adds to the texts, or None where it adds nothing to them.

        Raises:
            BadEngineAnswer: it is no chunk of an answer with one choice, reports an error, has reasoning behind
                content, or comes after the end.
        """
        if data.strip() == _DONE:
            self._done = True
            return None
        self.weight += json.weight(data)
        chunk = _object(_decoded(data), "a chunk")
        if self._done:
            _invalid("a chunk comes after [DONE]")
        if chunk.get("error") is not None or chunk.get("object") == "error":
            _invalid("the engine broke it off with an error")
        choices = _list(chunk.pop("choices", None), "choices")
        # Most of it is said in every chunk; what is counted there is complete in the last.
        _update(self._fields, chunk)
        if not choices:
            return None
        choice = _object(choices[0], "choices[0]")
        if len(choices) > 1 or choice.pop("index", None) not in (0, None):
            _invalid("there is more than one choice")
        return self._add_choice(choice)

    def answer(self) -> bytes:
        """The whole answer, compact JSON; whether it is usable is for ``extract_completion`` to say.

        Its texts are those of the deltas, joined.

        Raises:
            BadEngineAnswer: the stream was cut off, or its ids, their log probs and its usage do not agree.
        """
        if not self._done:
            _invalid("it ended before [DONE]")
        if self._log_probs is None:
            _invalid(f"no chunk has {_LOG_PROBS} in its meta_info, which --stream real needs")
        counted = _counted(self._fields.get("usage"))
        # An engine whose every chunk repeats the ids of those before it has far more of them.
        if counted != len(self._log_probs):
            _invalid(f"len({_LOG_PROBS})={len(self._log_probs)} != usage.completion_tokens={counted}")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        choice = {
            "finish_reason": None,
            **self._choice,
            "index": 0,
            "message": message,
            "meta_info": {"completion_tokens": counted, **self._meta, _LOG_PROBS: self._log_probs},
        }
        return json.encode({**self._fields, "object": "chat.completion", "choices": [choice]})

    def _add_choice(self, choice: dict[str, Any]) -> Delta | None:
        if choice.get("message") is not None:
            _invalid("a choice has a message where a delta should be")
        delta = _object(choice.pop("delta", None) or {}, "delta")
        meta = _object(choice.pop("meta_info", None) or {}, "meta_info")
        choice.pop("logprobs", None)
        entries = _list(meta.pop(_LOG_PROBS, None), _LOG_PROBS)
        if entries is not None:
            self._log_probs = self._log_probs or []
            self._log_probs += entries
        _update(self._meta, meta)
        _update(self._choice, choice)
        if _text(delta, "role") not in ("", "assistant"):
            _invalid("role must be assistant")
        for call in _list(delta.get("tool_calls"), "tool_calls") or ():
            self._add_call(_object(call, "a tool call"))
        reasoning, content = _text(delta, "reasoning_content"), _text(delta, "content")
        if reasoning:
            if self._content:
                # The answer has one place for reasoning, in front of the content, and that was passed on already.
                _invalid("reasoning comes behind content")
            self._reasoning.append(reasoning)
        if content:
            self._content.append(content)
        if not reasoning and not content:
            return None
        return Delta(reasoning, content, {name: self._fields[name] for name in _HEAD if name in self._fields})

    def _add_call(self, call: dict[str, Any]) -> None:
        index = call.get("index", 0)
        if type(index) is not int:
            _invalid("the index of a tool call must be an integer")
        function = _object(call.pop("function", None) or {}, "function")
        whole = self._calls.setdefault(index, _Call({}))
        _update(whole.fields, call)
        whole.name.append(_text(function, "name"))
        whole.arguments.append(_text(function, "arguments"))


def _invalid(why: str) -> NoReturn:
    raise BadEngineAnswer(f"invalid chat completion stream: {why}")


def _decoded(data: bytes) -> Any:
    try:
        return json.decode(data)
    except json.InvalidJSON as error:
        raise BadEngineAnswer(f"invalid chat completion stream: {error}") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _invalid(f"{what} must be an object")
    return value


def _list(value: Any, what: str) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        _invalid(f"{what} must be a list")
    return value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        _invalid(f"{name} must be a string")
    return value or ""


def _counted(usage: Any) -> int | None:
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return counted if type(counted) is int else None


def _update(said: dict[str, Any], more: Mapping[str, Any]) -> None:
    """The last word counts; null says nothing."""
    said.update({name: value for name, value in more.items() if value is not None})
