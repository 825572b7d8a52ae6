"""A server of bytes: it reads HTTP requests whole, and sends whatever a test tells it to."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

__all__ = ["Connection", "RawServer", "ReceivedRequest", "response", "serving"]


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it was on the wire."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def all_of(self, name: str) -> list[str]:
        """The values of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(eq=False)
class Connection:
    """One connection, as the server sees it."""

    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    _buffer: bytes = b""

    async def read(self) -> ReceivedRequest | None:
        """The next request, or None when the client has closed."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
        if self._buffer:
            parser.receive_data(self._buffer)
        head: h11.Request | None = None
        pieces = []
        while True:
            event = parser.next_event()
            match event:
                case h11.NEED_DATA:
                    self._buffer = b""
                    if not await self._more():
                        return None
                    parser.receive_data(self._buffer)
                case h11.Request():
                    head = event
                case h11.Data():
                    pieces.append(bytes(event.data))
                case h11.EndOfMessage():
                    assert head is not None
                    self._buffer = parser.trailing_data[0]
                    return ReceivedRequest(
                        method=head.method.decode(),
                        target=head.target.decode(),
                        headers=[(n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items()],
                        body=b"".join(pieces),
                    )
                case _:
                    return None

    async def read_some(self) -> bytes:
        """Whatever has come of a request; nothing when the client has closed."""
        if not self._buffer:
            await self._more()
        received, self._buffer = self._buffer, b""
        return received

    async def _more(self) -> bool:
        try:
            received = await self.stream.receive_some()
        except trio.BrokenResourceError:
            return False
        self._buffer += received
        return bool(received)

    async def send(self, data: bytes) -> None:
        """Send bytes, also to a client that has gone."""
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)

    async def until_closed(self) -> None:
        """Wait until the client closes."""
        while await self._more():
            self._buffer = b""


@dataclass(eq=False)
class RawServer:
    """A server that listens on a port of its own.

    Attributes:
        url: where.
        connections: how many there were.
        open: how many there are.
        requests: those answered with the same bytes, in order.
    """

    url: str
    connections: int = 0
    open: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list)


Handler = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def serving(
    handler: Handler | bytes, *, patience: float = 10, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """A server whose connections are each handled by ``handler``, or all answered with the same bytes.

    It lives for ``patience`` seconds at most, which takes a test that hangs with it.
    """
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    scheme = "http" if tls is None else "https"
    server = RawServer(f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}")

    async def handle(stream: trio.SocketStream) -> None:
        server.connections += 1
        server.open += 1
        try:
            if tls is None:
                await talk(Connection(stream))
            elif (encrypted := await _encrypted(stream, tls)) is not None:
                await talk(Connection(encrypted))
        finally:
            server.open -= 1

    async def talk(connection: Connection) -> None:
        if not isinstance(handler, bytes):
            await handler(connection)
            return
        while (request := await connection.read()) is not None:
            server.requests.append(request)
            await connection.send(handler)

    with trio.fail_after(patience):
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, handle, [listener])
            raised: Exception | None = None
            try:
                yield server
            # It comes out as it is, not in the nursery's group.
            except Exception as error:  # noqa: BLE001
                raised = error
            nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def _encrypted(stream: trio.SocketStream, tls: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream] | None:
    """The encrypted stream, unless the client does not want it."""
    encrypted = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except trio.BrokenResourceError:
        return None
    return encrypted


def response(body: bytes = b"{}", *, status: str = "200 OK", headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The bytes of a whole response with a content length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
