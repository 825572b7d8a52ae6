"""Answers that no application gives: the last bytes of a connection."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from trio_sessions.core import json

if TYPE_CHECKING:
    from hypercorn.config import Config

__all__ = ["last_answer"]


def last_answer(status: HTTPStatus, text: str, config: Config, *, retry_after: int | None = None) -> bytes:
    """A whole HTTP/1.1 answer ``{"error": text}`` that says that the connection is closed behind it."""
    body = json.encode({"error": text})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *config.response_headers("h11"),
    ]
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode()), *(b"%b: %b" % header for header in headers)]
    return b"\r\n".join([*lines, b"", body])
