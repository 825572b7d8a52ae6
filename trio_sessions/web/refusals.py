"""Replies to requests that no turn was begun for, in the words of the API that the client speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trio_sessions.hosting import Refusal
from trio_sessions.service.dialect import Dialect
from trio_sessions.service.failure import Failure
from trio_sessions.service.replies import Reply, json_reply
from trio_sessions.web.dialects.routes import CHAT, dialect_of
from trio_sessions.web.errors import advice_on

__all__ = ["failed", "failed_at", "refusal", "refused"]

_CODES: Final[Mapping[int, str]] = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    421: "misdirected_request",
    429: "overloaded",
    503: "unavailable",
}
_OTHER: Final = "refused"


def failed(dialect: Dialect, failure: Failure) -> Reply:
    """A failure as ``dialect`` has it, with what tells the client's SDK whether to try again."""
    reply = dialect.failed(failure)
    return replace(reply, headers=(*reply.headers, *advice_on(failure)))


def failed_at(path: str, failure: Failure, *, default: Dialect | None = CHAT) -> Reply:
    """A failure in the words of the dialect that is spoken where the request went.

    Args:
        path: of the request, decoded; of a session or not.
        failure: why.
        default: the dialect where none is spoken; with None it is ``{"error": text}``, whatever the failure.
    """
    dialect = dialect_of(path) or default
    if dialect is not None:
        return failed(dialect, failure)
    return json_reply({"error": failure.text}, status=failure.status, headers=advice_on(failure))


def refused(path: str, status: int, text: str) -> Reply:
    """The reply to a request that is refused for what is no domain error.

    Args:
        path: of the request, decoded.
        status: HTTP status; a dialect may have another in its place.
        text: what was wrong.
    """
    return failed_at(path, Failure(status, text, _CODES.get(status, _OTHER)))


def refusal(path: str, status: int, text: str) -> Refusal:
    """As ``refused``, for ``trio_sessions.hosting.WholeRequests``."""
    reply = refused(path, status, text)
    return Refusal(reply.status, reply.body)
