"""Which dialect is spoken where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.service.ask import CHAT_PATH
from trio_sessions.service.dialect import CountingDialect, Dialect
from trio_sessions.web.dialects.chat import ChatDialect
from trio_sessions.web.dialects.messages import MessagesDialect
from trio_sessions.web.dialects.responses import ResponsesDialect

__all__ = ["CHAT", "COUNTS", "DIALECTS", "dialect_of"]

CHAT: Final[Dialect] = ChatDialect()
"""In whose words a client is answered where nothing says whose it speaks."""

_MESSAGES: Final = MessagesDialect()

DIALECTS: Final[Mapping[str, Dialect]] = {
    CHAT_PATH: CHAT,
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


def dialect_of(path: str) -> Dialect | None:
    """The dialect that is spoken at ``path``, if one is.

    Args:
        path: decoded, as in an ASGI scope; of a session or not.
    """
    for below, dialect in (*DIALECTS.items(), *COUNTS.items()):
        if path.endswith(f"/{below}"):
            return dialect
    return None
