"""Requests that are not turns go to the engine unchanged, if they are ones an agent may make."""

from __future__ import annotations

import re
from functools import partial
from typing import Final
from urllib.parse import unquote

from trio_sessions.core import json
from trio_sessions.engine.base import Engine, EngineCall
from trio_sessions.errors import NotProxied
from trio_sessions.service.admission import Admission
from trio_sessions.service.offload import Offloader
from trio_sessions.service.registry import SessionRegistry
from trio_sessions.service.replies import Reply, pass_through
from trio_sessions.service.session import Session

__all__ = ["ALLOWED_PATHS", "TURN_PATHS", "EngineProxy"]

TURN_PATHS: Final = ("v1/chat/completions", "v1/messages", "v1/responses")
"""Where turns go, below a session."""

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
# Empty and dot segments, which some servers see in ``..;x`` too, back slashes, control characters, and slashes that
# were hidden by encoding.
_AMBIGUOUS: Final = re.compile(r"//|/\.\.?([/;]|$)|[\\\x00-\x1f\x7f]|%2f|%5c|^\*$", re.IGNORECASE)
# What is left of them when they were encoded twice, for a server that decodes twice.
_ENCODED_TWICE: Final = re.compile(r"%2e", re.IGNORECASE)


def _reason(method: str, path: str) -> str:
    """What the client most likely meant; agents show it to people."""
    turn = next((turn for turn in TURN_PATHS if path.endswith(turn.removeprefix("v1/"))), None)
    if turn is None:
        return "is not proxied to the engine (see --open-proxy)"
    if path == turn:
        return f"is no turn: turns are POST, not {method}"
    return (
        f"is no turn: turns go to {turn}, so OpenAI's clients need a base URL that ends in /v1, Anthropic's one without"
    )


class EngineProxy:
    """Forwards to the engine; nothing is recorded.

    Args:
        engine: where to.
        registry: knows which requests run, for shutdown.
        admission: gives places to requests.
        offloader: threads for long answers.
        open_proxy: forward every path, also the engine's control plane.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        registry: SessionRegistry,
        admission: Admission,
        offloader: Offloader,
        open_proxy: bool,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._admission = admission
        self._offload_json = offloader.run_json
        self._open = open_proxy

    async def forward(self, session: Session, request: EngineCall) -> Reply:
        """The engine's reply.

        Raises:
            NotProxied: the path is not allowed, or it is one that another server could read as a different path.
            EngineUnreachable: see ``Engine.call``.
            Overloaded: there is no room for it.
            ServerDraining: shutdown has begun, or ended the request.
        """
        path = unquote(request.path)
        allowed = self._open or path in ALLOWED_PATHS or _MODEL.fullmatch(path) is not None
        ambiguous = _AMBIGUOUS.search(request.path) or _AMBIGUOUS.search(f"/{path}") or _ENCODED_TWICE.search(path)
        if not allowed or ambiguous:
            raise NotProxied(f"not found: {request.method} {path} {_reason(request.method, path)}")
        with self._registry.running(session):
            async with session.request_nursery(), self._admission.place(session):
                answer = await self._engine.call(request)
        return await self._offload_json(partial(pass_through, answer), size=json.weight(answer.body))
