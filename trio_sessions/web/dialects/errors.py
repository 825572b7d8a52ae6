"""What dialects say alike of a failure."""

from __future__ import annotations

from typing import Any

from trio_sessions.service.failure import Failure

__all__ = ["openai_error", "settled_status"]


def openai_error(failure: Failure, *, status: int | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object.

    Args:
        failure: what went wrong.
        status: of the reply, where it is not the failure's own.
        param: the field of the request that is to blame.
    """
    kind = "invalid_request_error" if (status or failure.status) < 500 else "server_error"
    # Whatever it is that we have too much of, its clients know one code.
    code = failure.code if failure.retry_after is None else "rate_limit_exceeded"
    return {"message": failure.text, "type": kind, "param": param, "code": code}


def settled_status(failure: Failure) -> int:
    """The failure's status, but for a 409 that comes again when the request does: agents try that for minutes."""
    return 400 if failure.status == 409 and failure.permanent else failure.status
