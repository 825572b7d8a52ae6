"""How the targets of requests are read."""

from __future__ import annotations

from urllib.parse import urlparse

__all__ = ["routed"]


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
