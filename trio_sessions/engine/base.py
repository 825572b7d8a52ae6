"""What the service knows of an engine: a request goes out, an answer or ``EngineUnreachable`` comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Engine", "EngineAnswer", "EngineCall", "Headers", "RawHeaders"]

Headers = Sequence[tuple[str, str]]

RawHeaders = Sequence[tuple[bytes, bytes]]
"""As they are on the wire."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One HTTP request to the engine.

    Attributes:
        method: HTTP method.
        path: path below the engine's base URL, without a leading slash, percent-encoded.
        query: raw query string, empty for none.
        headers: the client's headers; what belongs to one connection only is dropped on the way.
        body: request body.
        session_id: names the session to a router in front of several engines.
    """

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    session_id: str


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What the engine answered: any status, headers as they came, the whole decoded body."""

    status: int
    headers: Headers
    body: bytes


class Engine(Protocol):
    """Anything that answers engine calls. Cancelling a call must give the engine up for it at once."""

    async def call(self, request: EngineCall) -> EngineAnswer:
        """The engine's answer.

        Raises:
            EngineUnreachable: no connection, no answer in time, or an answer that was cut off.
        """

    async def stream(self, request: EngineCall, take: Callable[[bytes], Awaitable[None]]) -> EngineAnswer:
        """The engine's answer, the body of a 200 handed to ``take`` piece by piece as it comes and then left out.

        Raises:
            EngineUnreachable: as ``call``.
            Exception: what ``take`` raised; the rest of the answer is given up.
        """
