"""HTTP from one worker to another: the only module that knows by which client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Self

import httpx
import trio

__all__ = ["PeerFailed", "PeerRequest", "PeerResponse", "Peers", "RawHeaders"]

RawHeaders = Sequence[tuple[bytes, bytes]]

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


class Peers:
    """Asks workers. Use as an async context manager."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            trust_env=False,
            verify=False,  # noqa: S501 - there is no TLS inside of one machine
            follow_redirects=False,
            # How long an answer may take is for the worker that makes it to say.
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_SECONDS),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_SECONDS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Closing sockets must happen also when the block is left by cancellation.
        with trio.CancelScope(shield=True):
            await self._client.aclose()

    @asynccontextmanager
    async def ask(self, base_url: str, request: PeerRequest) -> AsyncIterator[PeerResponse]:
        """The answer of the worker at ``base_url``; what is not read of it by the end of the block is given up.

        Raises:
            PeerFailed: there is no answer, or it ended early.
        """
        try:
            # Not through the client, which would add headers of its own; its methods do, ``send`` does not.
            asked = httpx.Request(
                request.method,
                base_url,
                headers=list(request.headers),
                content=request.body,
                extensions={"target": request.target},
            )
            response = await self._client.send(asked, stream=True)
            try:
                yield PeerResponse(response.status_code, response.headers.raw, response.aiter_raw())
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PeerFailed(f"{type(error).__name__}: {error}") from error
