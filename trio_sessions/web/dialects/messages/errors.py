"""Anthropic's error object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure
from trio_sessions.web.dialects.errors import settled_status

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
_TOO_LONG: Final = "prompt is too long"
# SGLang, when the prompt alone does not fit, and when the prompt and max_tokens do not.
_INPUT: Final = re.compile(
    r"input \((\d{1,18}) tokens\) is longer than the model's context length \((\d{1,18}) tokens\)"
)
_TOTAL: Final = re.compile(
    r"context length of (\d{1,18}) tokens\. You requested a total of \d+ tokens: "
    r"(\d{1,18}) tokens from the input messages and (\d{1,18}) tokens for the completion"
)


def error_object(failure: Failure) -> dict[str, Any]:
    """What a client reads, as the body of a reply or as an event."""
    status = error_status(failure)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    text = _overflow(failure.text) if failure.code == CONTEXT_OVERFLOW else failure.text
    return {"type": "error", "error": {"type": kind, "message": text}}


def error_status(failure: Failure) -> int:
    """The status of the reply."""
    return 400 if failure.code == CONTEXT_OVERFLOW else settled_status(failure)


def _overflow(text: str) -> str:
    """By how much, in the words in which clients look for it.

    They compact their history when a prompt is too long. Claude Code always asks for tens of thousands of tokens, and
    for fewer when it reads that only these are too many.
    """
    if text.startswith(_TOO_LONG):
        return text
    if found := _TOTAL.search(text):
        limit, prompt, answer = map(int, found.groups())
        if prompt < limit:
            return f"{_TOO_LONG}: input length and `max_tokens` exceed context limit: {prompt} + {answer} > {limit}"
        return f"{_TOO_LONG}: {prompt} tokens > {limit} maximum"
    if found := _INPUT.search(text):
        return f"{_TOO_LONG}: {found[1]} tokens > {found[2]} maximum"
    return f"{_TOO_LONG}: {text}"
