"""What the headers of a request say of its being a retry."""

from __future__ import annotations

from typing import Final

from trio_sessions.engine.base import Headers
from trio_sessions.service.retries import RetryMark

__all__ = ["retry_mark"]

_KEY_HEADER: Final = "idempotency-key"
# The SDKs of OpenAI and Anthropic number their attempts, from 0.
_COUNT_HEADER: Final = "x-stainless-retry-count"


def retry_mark(headers: Headers) -> RetryMark | None:
    """The mark of a request; None where it says nothing, and can neither be a retry nor be retried.

    Args:
        headers: names in lower case; of one that is repeated the first counts.
    """
    key: str | None = None
    count: str | None = None
    for name, value in headers:
        if name == _KEY_HEADER:
            key = key or value
        elif name == _COUNT_HEADER:
            count = count or value
    if not key and count is None:
        return None
    # Any number of digits may be sent, and a number need not be made of them.
    return RetryMark(key=key or None, is_retry=count is not None and count.isdecimal() and count.strip("0") != "")
