"""OpenAI chat completions, the dialect that engines speak too.

Source of the rules: the HTTP contract (docs/wire.md), "one chat turn".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody, read_chat_body
from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.engine.headers import json_from_engine
from trio_sessions.errors import PermissionDenied, Unauthenticated
from trio_sessions.service.dialect import Reading
from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure
from trio_sessions.service.replies import Reply, json_reply, pass_through
from trio_sessions.web.dialects.errors import openai_error
from trio_sessions.web.dialects.sse import data_event

__all__ = ["ChatDialect"]

_NULL: Final = msgspec.Raw(b"null")
_DONE: Final = b"data: [DONE]\n\n"
# A comment, which chat clients skip.
_KEEP_ALIVE: Final = b": waiting for the engine\n\n"

# Clients look for these codes.
_CODES: Final = frozenset({CONTEXT_OVERFLOW, Unauthenticated.code, PermissionDenied.code})

# Values stay raw bytes: what is not changed is passed on in the engine's own spelling.
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class ChatDialect:
    """See ``trio_sessions.service.dialect.Dialect``."""

    name: Final = "chat"
    matcher: Final = "strict"

    def read(self, body: bytes, reading: Reading) -> ChatExchange:
        """The request, which is a chat request already."""
        chat = read_chat_body(body, sent=reading.sent)
        return ChatExchange(chat=chat, stream=bool(chat.fields.get("stream", False)))

    def failed(self, failure: Failure) -> Reply:
        """The contract's ``{"error": text}``; OpenAI's object where clients look for its code."""
        if failure.code in _CODES:
            return json_reply({"error": openai_error(failure)}, status=failure.status)
        return json_reply({"error": failure.text}, status=failure.status)

    def refused(self, answer: EngineAnswer) -> Reply:
        """The engine's own answer."""
        return pass_through(answer)


@dataclass(frozen=True, slots=True)
class ChatExchange:
    """See ``trio_sessions.service.dialect.Exchange``."""

    chat: ChatBody
    stream: bool
    extends: Checkpoint | None = None
    dropped: Sequence[str] = ()

    @property
    def writer(self) -> ChatWriter:
        """The same for all requests."""
        return _WRITER


class ChatWriter:
    """See ``trio_sessions.service.dialect.AnswerWriter``."""

    response_id: Final = None

    def reply(self, answer: EngineAnswer) -> Reply:
        """The engine's JSON object."""
        return Reply(status=answer.status, headers=json_from_engine(answer.headers), body=answer.body)

    def events(self) -> ChatEvents:
        """One chunk and the end mark."""
        return ChatEvents()


_WRITER: Final = ChatWriter()


class ChatEvents:
    """See ``trio_sessions.service.dialect.EventWriter``."""

    def __init__(self) -> None:
        self._begun = False
        # How much of each text was written.
        self._written = {"reasoning_content": 0, "content": 0}

    def opening(self) -> bytes:
        """A comment: a chunk has the engine's id, which is not known yet."""
        return _KEEP_ALIVE

    def keep_alive(self) -> bytes:
        """A comment."""
        return _KEEP_ALIVE

    def delta(self, delta: Delta) -> bytes:
        """A chunk with what is new."""
        texts = {"reasoning_content": delta.reasoning, "content": delta.content}
        new = {name: text for name, text in texts.items() if text}
        if not new:
            return b""
        for name, text in new.items():
            self._written[name] += len(text)
        role = {} if self._begun else {"role": "assistant"}
        self._begun = True
        return data_event(_chunk(delta.head, {**role, **new}, finish_reason=None))

    def finish(self, answer: EngineAnswer) -> bytes:
        """The answer as one ``chat.completion.chunk``, or what of it no chunk had, and ``[DONE]``."""
        completion = _object_decoder.decode(answer.body)
        choice = _object_decoder.decode(_list_decoder.decode(completion["choices"])[0])
        message = _delta(choice["message"])
        if self._begun:
            message = self._rest(message)
        chunk = _chunk(completion, message, finish_reason=choice.get("finish_reason", _NULL))
        usage = completion.get("usage", _NULL)
        if bytes(usage) != b"null":
            chunk["usage"] = usage
        return data_event(chunk) + _DONE

    def _rest(self, message: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: message.get(name, "")[written:] for name, written in self._written.items()}
        calls = {"tool_calls": message["tool_calls"]} if "tool_calls" in message else {}
        return {**{name: text for name, text in rest.items() if text}, **calls}

    def broken(self, failure: Failure) -> bytes:
        """OpenAI's error object as an event, which its clients raise."""
        return data_event({"error": openai_error(failure)}) + _DONE


def _chunk(head: Mapping[str, Any], delta: Mapping[str, Any], *, finish_reason: Any) -> dict[str, Any]:
    return {
        "id": head.get("id", _NULL),
        "object": "chat.completion.chunk",
        "created": head.get("created", _NULL),
        "model": head.get("model", _NULL),
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def _delta(raw_message: msgspec.Raw) -> dict[str, Any]:
    message = json.decode(bytes(raw_message))
    delta = {"role": message.get("role", "assistant"), "content": message["content"]}
    if message.get("reasoning_content") is not None:
        delta["reasoning_content"] = message["reasoning_content"]
    calls = message.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls)]
    return delta
