"""The client for an engine, or a router of engines, that speaks SGLang's chat contract over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

import httpx
import trio

from trio_sessions._version import __version__
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.headers import to_engine
from trio_sessions.engine.http import AnswerTooLarge, Limits, TrioTransport
from trio_sessions.errors import EngineTimedOut, EngineUnreachable

__all__ = ["SGLangEngine"]

_CONNECT_TIMEOUT_SECONDS: Final = 10.0
# Below the five seconds of uvicorn, which engines are served by: a connection that it is about to close is not used.
_KEEP_ALIVE_SECONDS: Final = 4.0
# What a client says of itself, unless an agent says it. Compressing between neighbours costs more than it saves.
_OWN_HEADERS: Final = (
    (b"Accept", b"*/*"),
    (b"Connection", b"keep-alive"),
    (b"User-Agent", f"trio-sessions/{__version__}".encode("ascii")),
    (b"accept-encoding", b"identity"),
)


class SGLangEngine:
    """Calls one base URL. Use as an async context manager.

    The transport is called without an ``httpx.AsyncClient`` around it: that would add cookies, redirects and proxies of
    the environment, none of which is wanted between a gateway and its engine, and would cost as much as the transport.

    Args:
        base_url: ``http://host:port``, with or without a path.
        timeout: seconds until a call is given up, connecting included.
        max_answer_bytes: largest body of an answer, as it is sent and decoded; None for no limit.
    """

    def __init__(self, base_url: str, *, timeout: float, max_answer_bytes: int | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self._url = httpx.URL(self.base_url)
        self._base_path = self._url.raw_path.decode("ascii").rstrip("/")
        self._timeouts = {"connect": min(_CONNECT_TIMEOUT_SECONDS, timeout)}
        self._max_answer_bytes = max_answer_bytes
        self._transport = TrioTransport(
            tls=ssl.create_default_context() if base_url.startswith("https:") else None,
            keep_alive=_KEEP_ALIVE_SECONDS,
            limits=Limits(body_bytes=max_answer_bytes),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport.close()

    async def call(self, request: EngineCall) -> EngineAnswer:
        """See ``Engine.call``."""
        return await self._in_time(request, None)

    async def stream(self, request: EngineCall, take: Callable[[bytes], Awaitable[None]]) -> EngineAnswer:
        """See ``Engine.stream``."""
        return await self._in_time(request, take)

    async def _in_time(self, request: EngineCall, take: Callable[[bytes], Awaitable[None]] | None) -> EngineAnswer:
        with trio.move_on_after(self.timeout):
            return await self._send(request, take)
        raise EngineTimedOut(self.timeout)

    def _target(self, request: EngineCall) -> bytes:
        query = f"?{request.query}" if request.query else ""
        return f"{self._base_path}/{request.path}{query}".encode("latin-1")

    async def _send(self, request: EngineCall, take: Callable[[bytes], Awaitable[None]] | None) -> EngineAnswer:
        try:
            response = await self._transport.handle_async_request(
                httpx.Request(
                    request.method,
                    self._url,
                    headers=_headers(request),
                    content=request.body,
                    # The target as it is: httpx would encode some characters of it once more.
                    extensions={"target": self._target(request), "timeout": self._timeouts},
                )
            )
            if take is not None and response.status_code == 200:
                body = await self._hand_on(response, take)
            else:
                body = await self._read(response)
        except AnswerTooLarge as error:
            text = f"{error}; raise --max-answer-mb"
            raise EngineUnreachable(type(error).__name__, text) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachable(type(error).__name__, str(error)) from error
        return EngineAnswer(
            status=response.status_code,
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw],
            body=body,
        )

    async def _read(self, response: httpx.Response) -> bytes:
        """The body, read from the transport itself: httpx's generators around it cost, and can be left unfinished."""
        assert isinstance(response.stream, httpx.AsyncByteStream)
        pieces = [piece async for piece in response.stream]
        encoding = response.headers.get("content-encoding")
        return b"".join(pieces) if encoding is None else self._decode(encoding, pieces)

    async def _hand_on(self, response: httpx.Response, take: Callable[[bytes], Awaitable[None]]) -> bytes:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        try:
            if response.headers.get("content-encoding") is not None:
                raise httpx.DecodingError("a stream that is compressed although that was not asked for")
            async for piece in response.stream:
                await take(piece)
        finally:
            # Of a stream that was read to its end this changes nothing.
            await response.stream.aclose()
        return b""

    def _decode(self, encoding: str, pieces: list[bytes]) -> bytes:
        # A little that was sent can be very much when it is decoded.
        most = self._max_answer_bytes
        decoded = []
        size = 0
        for piece in httpx.Response(200, headers={"content-encoding": encoding}, content=iter(pieces)).iter_bytes():
            size += len(piece)
            if most is not None and size > most:
                raise AnswerTooLarge(f"the answer's body has at least {size} bytes when decoded, {most} are allowed")
            decoded.append(piece)
        return b"".join(decoded)


def _headers(request: EngineCall) -> list[tuple[bytes, bytes]]:
    theirs = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in to_engine(request.headers, session_id=request.session_id)
    ]
    said = {name.lower() for name, _ in theirs}
    return [*(header for header in _OWN_HEADERS if header[0].lower() not in said), *theirs]
