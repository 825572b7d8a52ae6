"""An answer as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure
from trio_sessions.web.dialects.answer import ChatAnswer
from trio_sessions.web.dialects.responses.output import ResponseForm
from trio_sessions.web.dialects.sse import named_event

__all__ = ["ResponseEvents"]

# Of an item that is still to come; its text follows in deltas.
_EMPTY: Final[Mapping[str, Any]] = {"content": [], "arguments": "", "input": "", "status": "in_progress"}


@dataclass(frozen=True, slots=True)
class _Begun:
    """An item that comes in deltas.

    Attributes:
        spelled: the item with a text.
        pieces: of its text so far.
    """

    spelled: Callable[[str], Mapping[str, Any]]
    pieces: list[str] = field(default_factory=list)

    def item(self) -> Mapping[str, Any]:
        return self.spelled("".join(self.pieces))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the text of an item is.

    Attributes:
        kind: of the events about it, but for ``.delta`` and ``.done``.
        key: its name in the last of them.
        text: the text.
        where: what those events say of where it is.
        part: the part of the item's content that has it, where there is one.
        logprobs: what they say beside.
    """

    kind: str
    key: str
    text: str
    where: Mapping[str, Any]
    part: Mapping[str, Any] | None = None
    logprobs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, index: int, item: Mapping[str, Any]) -> _Place:
        where = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "function_call":
                return cls("response.function_call_arguments", "arguments", item["arguments"], where)
            case "custom_tool_call":
                return cls("response.custom_tool_call_input", "input", item["input"], where)
            case _:
                [part] = item["content"]
                logprobs: Mapping[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
                kind = f"response.{part['type']}"
                return cls(kind, "text", part["text"], {**where, "content_index": 0}, part, logprobs)


class ResponseEvents:
    """See ``trio_sessions.service.dialect.EventWriter``.

    Args:
        form: how the answer is spelled.
    """

    def __init__(self, form: ResponseForm) -> None:
        self._form = form
        self._numbers = count()
        self._opened = False
        # The items that deltas began, of which the last goes on.
        self._begun: list[_Begun] = []

    def opening(self) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        self._opened = True
        waiting = self._form.unanswered("in_progress")
        return self._event("response.created", response=waiting) + self._event("response.in_progress", response=waiting)

    def keep_alive(self) -> bytes:
        """``response.in_progress`` again: agents wait as long as there are events, comments are none."""
        # What the request said was repeated once, and may be long.
        waiting = self._form.unanswered("in_progress") | {"tools": [], "instructions": None}
        return self._event("response.in_progress", response=waiting)

    def delta(self, delta: Delta) -> bytes:
        """What is new, in the item of its kind."""
        events: list[bytes] = []
        if delta.reasoning:
            events += self._continue(self._form.reasoning, delta.reasoning)
        if delta.content:
            events += self._continue(self._form.message, delta.content)
        return b"".join(events)

    def finish(self, answer: EngineAnswer) -> bytes:
        """What is missing of every item, and the whole response."""
        response = self._form.answered(ChatAnswer.of(answer))
        events = [] if self._opened else [self.opening()]
        for index, item in enumerate(response["output"]):
            # All but the last of those that were begun have ended.
            if index >= len(self._begun) - 1:
                events += self._rest(index, item)
        return b"".join((*events, self._event(f"response.{response['status']}", response=response)))

    def broken(self, failure: Failure) -> bytes:
        """``response.failed``, with a code that tells agents whether to try again."""
        error = {"code": _code(failure), "message": failure.text, "type": failure.code}
        return self._event("response.failed", response=self._form.unanswered("failed", error))

    def _continue(self, spelled: Callable[[str], Mapping[str, Any]], text: str) -> Iterator[bytes]:
        """More of the item that ``spelled`` makes of its text, which is begun where it is not the last one."""
        if not self._opened:
            yield self.opening()
        if not self._begun or self._begun[-1].spelled != spelled:
            if self._begun:
                yield from self._end(len(self._begun) - 1, self._begun[-1].item())
            self._begun.append(_Begun(spelled))
            yield from self._begin(len(self._begun) - 1, spelled(""))
        self._begun[-1].pieces.append(text)
        yield from self._more(_Place.of(len(self._begun) - 1, spelled("")), text)

    def _rest(self, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        """What is missing of an item of the answer, which may be all of it."""
        place = _Place.of(index, item)
        written = 0
        if index < len(self._begun):
            written = sum(map(len, self._begun[index].pieces))
        else:
            yield from self._begin(index, item)
        yield from self._more(place, place.text[written:])
        yield from self._end(index, item)

    def _begin(self, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        begun = {key: _EMPTY.get(key, value) for key, value in item.items()}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        place = _Place.of(index, item)
        if place.part is not None:
            yield self._event("response.content_part.added", **place.where, part={**place.part, "text": ""})

    def _more(self, place: _Place, text: str) -> Iterator[bytes]:
        if text:
            yield self._event(f"{place.kind}.delta", **place.where, **place.logprobs, delta=text)

    def _end(self, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        place = _Place.of(index, item)
        yield self._event(f"{place.kind}.done", **place.where, **place.logprobs, **{place.key: place.text})
        if place.part is not None:
            yield self._event("response.content_part.done", **place.where, part=place.part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return named_event({"type": kind, "sequence_number": next(self._numbers), **fields})


def _code(failure: Failure) -> str:
    """One of OpenAI's: agents try again after a server's error and where a rate is limited, and give up otherwise."""
    if failure.code == CONTEXT_OVERFLOW:
        return CONTEXT_OVERFLOW
    if failure.status == 429:
        return "rate_limit_exceeded"
    may_help = failure.status >= 500 or failure.status == 408
    return "server_error" if may_help and not failure.permanent else "invalid_prompt"
