"""Which dialect is spoken where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.service.ask import CHAT_PATH
from trio_sessions.service.dialect import CountingDialect, Dialect
from trio_sessions.web.dialects.chat import ChatDialect
from trio_sessions.web.dialects.messages import MessagesDialect
from trio_sessions.web.dialects.responses import ResponsesDialect

__all__ = ["COUNTS", "DIALECTS", "dialect_at", "dialect_of"]

_CHAT: Final = ChatDialect()
_MESSAGES: Final = MessagesDialect()

DIALECTS: Final[Mapping[str, Dialect]] = {
    CHAT_PATH: _CHAT,
    "v1/messages": _MESSAGES,
    # Of clients that are given a base URL with the version.
    "v1/v1/messages": _MESSAGES,
    "v1/responses": ResponsesDialect(),
}
"""The dialects of turns, by their paths below a session."""

COUNTS: Final[Mapping[str, CountingDialect]] = {
    "v1/messages/count_tokens": _MESSAGES,
    "v1/v1/messages/count_tokens": _MESSAGES,
}
"""Those in which the length of a prompt can be asked for, by where."""


def dialect_at(path: str) -> Dialect:
    """In whose words a client is answered that got no further than to ``path``: chat's where nothing says otherwise.

    Args:
        path: decoded, as in an ASGI scope; of a session or not.
    """
    return dialect_of(path) or _CHAT


def dialect_of(path: str) -> Dialect | None:
    """The dialect that is spoken at ``path``, if one is."""
    for below, dialect in (*DIALECTS.items(), *COUNTS.items()):
        if path.endswith(f"/{below}"):
            return dialect
    return None
