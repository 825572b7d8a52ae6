"""Bodies and headers of the embedded engine's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["EngineReply", "error_reply", "event_reply", "json_reply", "sse_reply", "usage"]

_JSON: Final = (("content-type", "application/json"),)
_EVENTS: Final = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))


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

    @property
    def events(self) -> Sequence[bytes] | None:
        """The data of its server-sent events; None where it is no stream of them."""
        if self.headers != _EVENTS:
            return None
        return [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n")[:-1]]


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
    return event_reply([msgspec.json.encode(chunk), b"[DONE]"])


def event_reply(events: Iterable[bytes]) -> EngineReply:
    """Server-sent events with these data, each of one line."""
    return EngineReply(200, _EVENTS, b"".join(b"data: %b\n\n" % data for data in events))
