"""The one table from domain errors to HTTP statuses, and what a client gets to read of an error."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

import structlog

from trio_sessions.engine.base import Headers
from trio_sessions.errors import (
    BadEngineAnswer,
    ClientDisconnected,
    EngineUnreachable,
    InvalidRequest,
    MatcherFailed,
    MemoryExhausted,
    NodeCapReached,
    NotProxied,
    Overloaded,
    PermissionDenied,
    SampleAssemblyFailed,
    ServerDraining,
    SessionError,
    SessionNotFound,
    SessionUnreadable,
    StoreUnavailable,
    TokenizationFailed,
    TruncatedGeneration,
    TurnCancelled,
    Unauthenticated,
)
from trio_sessions.observe import Metrics
from trio_sessions.service.failure import Failure
from trio_sessions.web.limits import limit_of

__all__ = ["STATUS", "advice_on", "failure_of", "status_of"]

STATUS: Final[Mapping[type[SessionError], int]] = {
    InvalidRequest: 400,
    Overloaded: 429,
    NodeCapReached: 400,
    Unauthenticated: 401,
    PermissionDenied: 403,
    TruncatedGeneration: 409,
    SessionNotFound: 404,
    NotProxied: 404,
    SampleAssemblyFailed: 422,
    ClientDisconnected: 499,
    SessionUnreadable: 500,
    MatcherFailed: 500,
    TokenizationFailed: 500,
    BadEngineAnswer: 502,
    EngineUnreachable: 502,
    ServerDraining: 503,
    TurnCancelled: 503,
    StoreUnavailable: 503,
    MemoryExhausted: 503,
}
# They come again when the request does, although clients retry their statuses.
_PERMANENT: Final = (
    Unauthenticated,
    PermissionDenied,
    TruncatedGeneration,
    MatcherFailed,
    TokenizationFailed,
    SessionUnreadable,
)

_RETRY_SOON: Final = (("retry-after", "1"),)
# The SDKs of OpenAI and Anthropic heed it.
_NO_RETRY: Final = (("x-should-retry", "false"),)
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.web")


def status_of(error: SessionError) -> int:
    """The status of an error's class, or of the nearest base class that has one; 500 when none has."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def failure_of(error: Exception, *, path: str, metrics: Metrics) -> Failure:
    """What the client of a route that raised ``error`` is told: a domain error's own text, or nothing of the inside.

    Where it was refused by a limit, ``metrics`` count that.
    """
    limit = limit_of(error)
    if limit is not None:
        metrics.count_refused(limit)
    if isinstance(error, SessionError):
        return Failure(
            status=status_of(error),
            text=str(error),
            code=error.code,
            permanent=isinstance(error, _PERMANENT),
            retry_after=error.retry_after if isinstance(error, Overloaded) else None,
        )
    # The message of an unexpected error may quote a conversation; where it happened does not.
    stack = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unexpected error", kind=type(error).__name__, path=path, stack=stack)
    _log.debug("unexpected error", exc_info=error)
    return Failure(status=500, text="internal error: the server's log has the details", code="internal_error")


def advice_on(failure: Failure) -> Headers:
    """Headers that tell a client's SDK whether and when to try again, in whatever dialect it speaks."""
    if failure.permanent:
        return _NO_RETRY
    if failure.retry_after is not None:
        return (("retry-after", str(failure.retry_after)),)
    return _RETRY_SOON if failure.status == 503 else ()
