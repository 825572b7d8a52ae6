"""Which headers cross the gateway."""

from __future__ import annotations

from typing import Final

from trio_sessions.engine.base import Headers

__all__ = ["HOP_BY_HOP", "beside_own_body", "from_engine", "json_from_engine", "to_engine"]

ROUTING_KEY: Final = "X-SMG-Routing-Key"

# RFC 9110, 7.6.1: these describe one connection, not the message.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Answers are decoded here, so it is our client, not the agent, that says which encodings it can read.
_NOT_TO_ENGINE: Final = HOP_BY_HOP | {"accept-encoding", "content-length", "expect", "host", ROUTING_KEY.lower()}
# The body is sent on decoded, and there is one server and one date on the wire: ours.
_NOT_FROM_ENGINE: Final = HOP_BY_HOP | {"content-length", "content-encoding", "server", "date"}


def to_engine(headers: Headers, *, session_id: str) -> list[tuple[str, str]]:
    """A client's headers as the engine gets them, with the routing key of the session."""
    return [*_without(headers, _NOT_TO_ENGINE), (ROUTING_KEY, session_id)]


def from_engine(headers: Headers) -> list[tuple[str, str]]:
    """An engine's headers as the client gets them."""
    return _without(headers, _NOT_FROM_ENGINE)


def json_from_engine(headers: Headers) -> list[tuple[str, str]]:
    """As ``from_engine``, for a body that is known to be JSON."""
    kept = from_engine(headers)
    if any(name.lower() == "content-type" for name, _ in kept):
        return kept
    return [*kept, ("content-type", "application/json")]


def beside_own_body(headers: Headers) -> list[tuple[str, str]]:
    """As ``from_engine``, for a body that is made of the engine's and has a type of its own."""
    return _without(headers, _NOT_FROM_ENGINE | {"content-type"})


def _without(headers: Headers, dropped: frozenset[str]) -> list[tuple[str, str]]:
    """Leaves out ``dropped`` and what a Connection header names as its own."""
    named = {name.strip().lower() for key, value in headers if key.lower() == "connection" for name in value.split(",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped | named]
