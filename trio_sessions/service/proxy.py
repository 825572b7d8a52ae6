"""Requests that are not turns go to the engine unchanged, if they are ones an agent may make."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from trio_sessions.engine.base import Engine, EngineCall
from trio_sessions.errors import SessionError
from trio_sessions.service.turn import Reply, pass_through

__all__ = ["ALLOWED_PATHS", "EngineProxy", "NotProxied"]

# What an agent needs beside turns. Everything else an engine serves (weights, caches, aborts) is its trainer's.
ALLOWED_PATHS: Final = frozenset(
    {
        "detokenize",
        "get_model_info",
        "health",
        "model_info",
        "tokenize",
        "v1/completions",
        "v1/detokenize",
        "v1/embeddings",
        "v1/models",
        "v1/tokenize",
        "version",
    }
)
_MODEL: Final = re.compile(r"v1/models/[^?#]+")


class NotProxied(SessionError):
    """The path is not one that is proxied."""

    code = "not_proxied"


class EngineProxy:
    """Forwards to the engine; nothing is recorded.

    Args:
        engine: where to.
        open_proxy: forward every path, also the engine's control plane.
    """

    def __init__(self, engine: Engine, *, open_proxy: bool) -> None:
        self._engine = engine
        self._open = open_proxy

    async def forward(self, request: EngineCall) -> Reply:
        """The engine's reply.

        Raises:
            NotProxied: the path is not allowed, or it is one that another server could read as a different path.
            EngineUnreachable: see ``Engine.call``.
        """
        path = unquote(request.path)
        segments = path.split("/")
        ambiguous = (
            "\\" in path
            or any(segment in ("", ".", "..") for segment in segments[:-1])
            or (segments[-1] in (".", "..") or "%2f" in request.path.lower())
        )
        allowed = self._open or path in ALLOWED_PATHS or _MODEL.fullmatch(path) is not None
        if ambiguous or not allowed:
            raise NotProxied(f"not found: {request.method} {path} is not proxied to the engine (see --open-proxy)")
        return pass_through(await self._engine.call(request))
