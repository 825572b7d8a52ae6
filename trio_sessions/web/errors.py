"""The one table from domain errors to HTTP statuses, and what a client gets to read of an error."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

import structlog

from trio_sessions.core import json
from trio_sessions.errors import (
    BadEngineAnswer,
    ClientDisconnected,
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

__all__ = ["STATUS", "error_reply", "reply_for", "status_of"]

STATUS: Final[Mapping[type[SessionError], int]] = {
    InvalidRequest: 400,
    NodeCapReached: 400,
    TruncatedGeneration: 409,
    SessionNotFound: 404,
    NotProxied: 404,
    SampleAssemblyFailed: 422,
    ClientDisconnected: 499,
    MatcherFailed: 500,
    TokenizationFailed: 500,
    BadEngineAnswer: 502,
    EngineUnreachable: 502,
    ServerDraining: 503,
}
_JSON: Final = (("content-type", "application/json"),)
_RETRY_SOON: Final = (("retry-after", "1"),)
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.web")


def status_of(error: SessionError) -> int:
    """The status of an error's class, or of the nearest base class that has one; 500 when none has."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def reply_for(error: Exception, *, path: str) -> Reply:
    """The reply of a route that raised ``error``: a domain error's own text, or nothing of what happened inside."""
    if isinstance(error, SessionError):
        return error_reply(status_of(error), str(error))
    # The message of an unexpected error may quote a conversation; where it happened does not.
    stack = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unexpected error", kind=type(error).__name__, path=path, stack=stack)
    _log.debug("unexpected error", exc_info=error)
    return error_reply(500, "internal error: the server's log has the details")


def error_reply(status: int, text: str) -> Reply:
    """``{"error": text}``."""
    headers = (*_JSON, *_RETRY_SOON) if status == 503 else _JSON
    return Reply(status=status, headers=headers, body=json.encode({"error": text}))
