"""Replies that more than one part of the server gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer, Headers
from trio_sessions.engine.headers import from_engine, json_from_engine

__all__ = ["STREAM_HEADERS", "Reply", "json_reply", "pass_through"]

STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
"""Of server-sent events; a proxy in between is to pass them on as they come."""

_JSON: Final = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back to a client."""

    status: int
    headers: Headers
    body: bytes


def json_reply(value: object, *, status: int = 200, headers: Headers = ()) -> Reply:
    """``value`` as compact JSON."""
    return Reply(status=status, headers=(*_JSON, *headers), body=json.encode(value))


def pass_through(answer: EngineAnswer) -> Reply:
    """An engine's answer for the client: JSON rendered compactly, anything else as it is."""
    try:
        body = json.compact(answer.body)
    except json.InvalidJSON:
        return Reply(status=answer.status, headers=from_engine(answer.headers), body=answer.body)
    return Reply(status=answer.status, headers=json_from_engine(answer.headers), body=body)
