"""What a client reads whose request did not arrive as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

from trio_sessions.core import json

if TYPE_CHECKING:
    from hypercorn.config import Config

__all__ = ["Refusal", "Refuse", "last_answer", "plain_refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply; its body is JSON."""

    status: int
    body: bytes


Refuse: TypeAlias = Callable[[str, int, str], Refusal]
"""Words a refusal, given the decoded path of the request, the status and the text."""


def plain_refusal(path: str, status: int, text: str) -> Refusal:
    """``{"error": text}``, whatever the path."""
    return Refusal(status, json.encode({"error": text}))


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
