"""How the targets of requests are read."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlparse

__all__ = ["SessionTarget", "routed", "session_target"]


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """What a path below a session names.

    Attributes:
        session_id: the session.
        agent: the agent of it, where the path names one.
        path: the rest, without a slash before it.
    """

    session_id: str
    agent: str | None
    path: str


def routed(path: str) -> str:
    """``path`` as routes see it: a target that is a whole URL stands for the path in it, and leading slashes for one.

    That is how Quart and Werkzeug read it; another reading would have a request served by the wrong route, or the wrong
    worker.

    Args:
        path: decoded, as in an ASGI scope.
    """
    if not path.startswith("/"):
        try:
            path = urlparse(path).path
        except ValueError:
            # No URL either: nothing that a route would match.
            return ""
    return f"/{path.lstrip('/')}" if path else ""


def session_target(path: str) -> SessionTarget | None:
    """What ``path`` names below a session: ``/sessions/{id}/...`` or ``/sessions/{id}/agents/{name}/...``.

    Args:
        path: decoded, as in an ASGI scope.
    """
    match routed(path).split("/", 5):
        case ["", "sessions", session_id, "agents", agent, rest] if session_id and agent:
            return SessionTarget(session_id, agent, rest)
        case ["", "sessions", session_id, *rest] if session_id and rest:
            return SessionTarget(session_id, None, "/".join(rest))
        case _:
            return None
