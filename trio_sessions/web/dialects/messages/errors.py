"""Anthropic's error object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure

__all__ = ["error_object", "error_status"]

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_object(failure: Failure) -> dict[str, Any]:
    """What a client reads, as the body of a reply or as an event."""
    status = error_status(failure)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    # Clients compact their history when they read these words.
    text = f"prompt is too long: {failure.text}" if failure.code == CONTEXT_OVERFLOW else failure.text
    return {"type": "error", "error": {"type": kind, "message": text}}


def error_status(failure: Failure) -> int:
    """The status of the reply.

    Claude Code sends a request that was answered 409 again for minutes; where that cannot help it is told so.
    """
    if failure.code == CONTEXT_OVERFLOW or (failure.status == 409 and failure.permanent):
        return 400
    return failure.status
