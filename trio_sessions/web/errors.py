"""The one table from domain errors to HTTP statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.core import json
from trio_sessions.errors import (
    BadEngineAnswer,
    EngineUnreachable,
    InvalidRequest,
    MatcherFailed,
    NodeCapReached,
    NotProxied,
    SampleAssemblyFailed,
    ServerDraining,
    SessionError,
    SessionNotFound,
    TokenizationFailed,
    TruncatedGeneration,
)
from trio_sessions.service.turn import Reply

__all__ = ["STATUS", "error_reply", "status_of"]

STATUS: Final[Mapping[type[SessionError], int]] = {
    InvalidRequest: 400,
    NodeCapReached: 400,
    TruncatedGeneration: 409,
    SessionNotFound: 404,
    NotProxied: 404,
    SampleAssemblyFailed: 422,
    MatcherFailed: 500,
    TokenizationFailed: 500,
    BadEngineAnswer: 502,
    EngineUnreachable: 502,
    ServerDraining: 503,
}
_JSON: Final = (("content-type", "application/json"),)
_RETRY_SOON: Final = (("retry-after", "1"),)


def status_of(error: SessionError) -> int:
    """The status of an error's class, or of the nearest base class that has one; 500 when none has."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_reply(status: int, text: str) -> Reply:
    """``{"error": text}``."""
    headers = (*_JSON, *_RETRY_SOON) if status == 503 else _JSON
    return Reply(status=status, headers=headers, body=json.encode({"error": text}))
