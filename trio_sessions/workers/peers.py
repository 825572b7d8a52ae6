"""HTTP from one worker to another: the only module that knows by which client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import httpx

from trio_sessions.engine.base import RawHeaders
from trio_sessions.engine.http import TrioTransport

__all__ = ["PeerFailed", "PeerRequest", "PeerResponse", "Peers"]

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
# Below what the server of a worker allows, so that a connection that it is about to close is not used.
_KEEP_ALIVE_SECONDS: Final = 30.0


class PeerFailed(Exception):
    """A worker could not be reached, or broke off its answer."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request to a worker.

    Attributes:
        method: of HTTP.
        target: path and query, sent as they are.
        headers: all but content-length.
        body: whole.
    """

    method: str
    target: bytes
    headers: RawHeaders
    body: bytes


@dataclass(frozen=True, slots=True)
class PeerResponse:
    """A worker's answer, whose body is still arriving.

    Attributes:
        status: status code.
        headers: as they arrived.
        chunks: the body as it arrives, not decoded; raises ``PeerFailed``.
    """

    status: int
    headers: RawHeaders
    chunks: AsyncIterator[bytes]


class _Chunks:
    """The body from the transport itself: httpx's generators around it can be left unfinished."""

    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._pieces = aiter(body)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except httpx.HTTPError as error:
            raise _failed(error) from error


class Peers:
    """Asks workers. Use as an async context manager."""

    def __init__(self) -> None:
        self._transport = TrioTransport(keep_alive=_KEEP_ALIVE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport.close()

    @asynccontextmanager
    async def ask(self, base_url: str, request: PeerRequest) -> AsyncIterator[PeerResponse]:
        """The answer of the worker at ``base_url``; what is not read of it by the end of the block is given up.

        Raises:
            PeerFailed: there is no answer; one that ends early is told by ``PeerResponse.chunks``.
        """
        try:
            # How long an answer may take is for the worker that makes it to say.
            asked = httpx.Request(
                request.method,
                base_url,
                headers=list(request.headers),
                content=request.body,
                extensions={"target": request.target, "timeout": {"connect": _CONNECT_TIMEOUT_SECONDS}},
            )
            response = await self._transport.handle_async_request(asked)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _failed(error) from error
        try:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            yield PeerResponse(response.status_code, response.headers.raw, _Chunks(response.stream))
        finally:
            await response.aclose()


def _failed(error: Exception) -> PeerFailed:
    return PeerFailed(f"{type(error).__name__}: {error}")
