"""An answer as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure
from trio_sessions.web.dialects.answer import ChatAnswer
from trio_sessions.web.dialects.responses.output import ResponseForm
from trio_sessions.web.dialects.sse import named_event

__all__ = ["ResponseEvents"]

# Of an item that is still to come; its text follows in deltas.
_EMPTY: Final[Mapping[str, Any]] = {"content": [], "arguments": "", "input": "", "status": "in_progress"}


class ResponseEvents:
    """See ``trio_sessions.service.dialect.EventWriter``.

    Args:
        form: how the answer is spelled.
    """

    def __init__(self, form: ResponseForm) -> None:
        self._form = form
        self._numbers = count()
        self._opened = False

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

    def finish(self, answer: EngineAnswer) -> bytes:
        """Every item from its beginning to its end, and the whole response."""
        response = self._form.answered(ChatAnswer.of(answer))
        events = [] if self._opened else [self.opening()]
        for index, item in enumerate(response["output"]):
            events += self._item(index, item)
        return b"".join((*events, self._event(f"response.{response['status']}", response=response)))

    def broken(self, failure: Failure) -> bytes:
        """``response.failed``, with a code that tells agents whether to try again."""
        error = {"code": _code(failure), "message": failure.text, "type": failure.code}
        return self._event("response.failed", response=self._form.unanswered("failed", error))

    def _item(self, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        begun = {key: _EMPTY.get(key, value) for key, value in item.items()}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        where = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "function_call":
                yield from self._text("response.function_call_arguments", "arguments", item["arguments"], where)
            case "custom_tool_call":
                yield from self._text("response.custom_tool_call_input", "input", item["input"], where)
            case _:
                yield from self._parts(item, where)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _parts(self, item: Mapping[str, Any], where: Mapping[str, Any]) -> Iterator[bytes]:
        for index, part in enumerate(item["content"]):
            place: dict[str, Any] = {**where, "content_index": index}
            yield self._event("response.content_part.added", **place, part={**part, "text": ""})
            more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
            yield from self._text(f"response.{part['type']}", "text", part["text"], place | more)
            yield self._event("response.content_part.done", **place, part=part)

    def _text(self, kind: str, key: str, text: str, where: Mapping[str, Any]) -> Iterator[bytes]:
        if text:
            yield self._event(f"{kind}.delta", **where, delta=text)
        yield self._event(f"{kind}.done", **where, **{key: text})

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
