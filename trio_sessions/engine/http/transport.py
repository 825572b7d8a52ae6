"""What httpx sees: requests go in, responses come out, and connections are somebody else's business."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Final, Self

import httpx
import trio

from trio_sessions.engine.http.carry import Carried, NothingSent
from trio_sessions.engine.http.exchange import Exchange, Head, Limits
from trio_sessions.engine.http.pool import Pool
from trio_sessions.engine.http.timeouts import Timeouts
from trio_sessions.engine.http.wire import Origin, Wire, connect

__all__ = ["TrioTransport"]

_PORTS: Final = {"http": 80, "https": 443}
# Pieces that are at hand are handed over without waiting, but not for ever.
_PIECES_WITHOUT_CHECKPOINT: Final = 100


class TrioTransport(httpx.AsyncBaseTransport):
    """An HTTP/1.1 transport over trio, for ``httpx.AsyncClient(transport=...)`` or to be called directly.

    A request goes over the idle connection that was used last, if that is still open and quiet, or over a new one. If
    such a connection turns out to be closed before a byte of the request has left, another carries the request. A
    request of which anything was sent is never sent again, also not if the connection is closed before a byte of the
    answer has come: the server may have read it, and asking twice for a sample is not the same as asking once. That is
    an ``httpx.RemoteProtocolError``.

    A connection is used again only if the request was sent and the answer read to the last byte, nothing came behind
    it, and neither side said that it closes. Whatever ends a request otherwise, cancellation included, closes its
    connection at once.

    An answer that begins before all of the request was sent is the answer: the rest is not sent.

    Responses have to be read to the end or closed, as with any transport. There are no redirects, cookies, proxies or
    other protocols here, and no limit to the number of requests at a time. Timeouts are those of
    ``request.extensions["timeout"]``, none if it has none, and the one for a pool has nothing to wait for; a request's
    ``extensions["target"]`` replaces the path and query of its URL.

    Args:
        tls: how to encrypt and whom to trust for https; None for none.
        max_idle: most connections to keep, over all servers.
        keep_alive: seconds after which an idle connection is closed. Less than the servers' own, so that they rarely
            close one just when it is used.
        limits: how large answers may be.

    Raises from ``handle_async_request`` and from reading a response, besides what httpx documents of its errors:
        AnswerTooLarge: the answer is larger than ``limits`` allow; if it says so itself, before it is read.
        RuntimeError: the transport is closed.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        max_idle: int = 1024,
        keep_alive: float = 4.0,
        limits: Limits | None = None,
    ) -> None:
        self._tls = tls
        self._limits = limits or Limits()
        self._pool = Pool(max_idle=max_idle, keep_alive=keep_alive)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    async def aclose(self) -> None:
        """See ``close``."""
        self.close()

    def close(self) -> None:
        """Close what is idle now, and what is in use once it is not. Closing twice is no error."""
        self._pool.close()

    @property
    def idle(self) -> int:
        """How many connections are kept for the next request."""
        return self._pool.idle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See the class."""
        if self._pool.closed:
            raise RuntimeError("the transport is closed")
        timeouts = Timeouts.of(request.extensions)
        origin = _origin(request.url)
        target = request.extensions.get("target") or request.url.raw_path
        while True:
            wire = await self._quiet(origin)
            used_before = wire is not None
            if wire is None:
                wire = await self._connect(origin, timeouts.connect)
            carried = Carried(wire, Exchange(self._limits), timeouts, used_before=used_before)
            try:
                head = await carried.head(request, target)
            except NothingSent:
                wire.close()
            except BaseException:
                wire.close()
                raise
            else:
                return _response(head, _Body(carried, wire, origin, self._pool))

    async def _quiet(self, origin: Origin) -> Wire | None:
        """A connection that was used before and can be again. Those that cannot are closed."""
        while (wire := self._pool.take(origin)) is not None:
            try:
                if await wire.is_quiet():
                    return wire
            except BaseException:
                wire.close()
                raise
            wire.close()
        return None

    async def _connect(self, origin: Origin, seconds: float | None) -> Wire:
        if seconds is None:
            return await connect(origin, self._tls)
        with trio.move_on_after(seconds):
            return await connect(origin, self._tls)
        raise httpx.ConnectTimeout(f"no connection to {origin.host}:{origin.port} within {seconds:g} s")


class _Body(httpx.AsyncByteStream):
    """The body of an answer. At its end, or when it is closed before, the connection is given back.

    It is its own iterator: a generator that is not read to the end would be left to the garbage collector.
    """

    def __init__(self, carried: Carried, wire: Wire, origin: Origin, pool: Pool) -> None:
        self._carried = carried
        self._wire = wire
        self._origin = origin
        self._pool = pool
        self._open = True
        self._pieces = 0
        # What has no body is not waited for.
        if carried.finished:
            self._end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._open:
            raise StopAsyncIteration
        try:
            self._pieces += 1
            if self._pieces % _PIECES_WITHOUT_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
            piece = await self._carried.body()
        except BaseException:
            self._end()
            raise
        if self._carried.finished:
            self._end()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._carried.reusable:
            self._pool.keep(self._origin, self._wire)
        else:
            self._wire.close()


def _origin(url: httpx.URL) -> Origin:
    scheme = url.scheme
    if scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"this transport speaks http and https, not {scheme!r}")
    return Origin(tls=scheme == "https", host=url.raw_host.decode("ascii"), port=url.port or _PORTS[scheme])


def _response(head: Head, body: _Body) -> httpx.Response:
    return httpx.Response(
        head.status,
        headers=head.headers,
        stream=body,
        extensions={"http_version": head.http_version, "reason_phrase": head.reason},
    )
