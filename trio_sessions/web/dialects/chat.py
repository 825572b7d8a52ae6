"""OpenAI chat completions, the dialect that engines speak too.

Source of the rules: the HTTP contract (docs/wire.md), "one chat turn".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.engine.headers import json_from_engine
from trio_sessions.service.turn import Reply

__all__ = ["ChatDialect", "stream_body"]

_STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)

# Values stay raw bytes: what is not changed is passed on in the engine's own spelling.
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class ChatDialect:
    """See ``trio_sessions.service.turn.Dialect``."""

    def encode(self, answer: EngineAnswer, *, stream: bool) -> Reply:
        """One JSON object, or one server-sent chunk and the end mark."""
        if stream:
            # The engine's headers describe its JSON body, not this one.
            return Reply(status=answer.status, headers=_STREAM_HEADERS, body=stream_body(answer.body))
        return Reply(status=answer.status, headers=json_from_engine(answer.headers), body=answer.body)


def stream_body(answer: bytes) -> bytes:
    """A whole chat completion as one ``chat.completion.chunk`` event and ``[DONE]``.

    Args:
        answer: compact JSON of an answer that ``extract_completion`` accepted.
    """
    completion = _object_decoder.decode(answer)
    choice = _object_decoder.decode(_list_decoder.decode(completion["choices"])[0])
    null = msgspec.Raw(b"null")
    chunk: dict[str, Any] = {
        "id": completion.get("id", null),
        "object": "chat.completion.chunk",
        "created": completion.get("created", null),
        "model": completion.get("model", null),
        "choices": [
            {
                "index": 0,
                "delta": _delta(choice["message"]),
                "finish_reason": choice.get("finish_reason", null),
            }
        ],
    }
    usage = completion.get("usage", null)
    if bytes(usage) != b"null":
        chunk["usage"] = usage
    return b"data: " + json.encode(chunk) + b"\n\ndata: [DONE]\n\n"


def _delta(raw_message: msgspec.Raw) -> dict[str, Any]:
    message = json.decode(bytes(raw_message))
    delta = {"role": message.get("role", "assistant"), "content": message["content"]}
    if message.get("reasoning_content") is not None:
        delta["reasoning_content"] = message["reasoning_content"]
    calls = message.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls)]
    return delta
