"""Bodies and headers of the embedded engine's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["EngineReply", "error_reply", "json_reply", "sse_reply", "usage"]

_JSON: Final = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An answer of the engine.

    Attributes:
        status: HTTP status.
        headers: names in lower case, and values; no content-length.
        body: the whole body.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def error_reply(status: int, message: str, *, kind: str = "BadRequestError") -> EngineReply:
    """An error as SGLang words one."""
    return json_reply(
        {"object": "error", "message": message, "type": kind, "param": None, "code": status}, status=status
    )


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The ``usage`` object of an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": None,
    }


def json_reply(value: Mapping[str, Any], *, status: int = 200) -> EngineReply:
    """``value`` as a JSON body."""
    return EngineReply(status, _JSON, msgspec.json.encode(value))


def sse_reply(answer: dict[str, Any]) -> EngineReply:
    """A finished answer as a stream of one chunk."""
    choice = answer["choices"][0]
    chunk = {
        **answer,
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": choice["message"],
                "logprobs": choice["logprobs"],
                "finish_reason": choice["finish_reason"],
            }
        ],
    }
    body = b"data: " + msgspec.json.encode(chunk) + b"\n\ndata: [DONE]\n\n"
    return EngineReply(200, (("content-type", "text/event-stream"), ("cache-control", "no-cache")), body)
