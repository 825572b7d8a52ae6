"""A server of bytes: it reads HTTP requests whole, and sends whatever a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

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


@dataclass(eq=False)
class Connection:
    """One connection, as the server sees it."""

    stream: trio.SocketStream
    _buffer: bytes = b""

    async def read(self) -> ReceivedRequest | None:
        """The next request, or None when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            if not await self._more():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        while len(self._buffer) < length:
            if not await self._more():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return ReceivedRequest(method, target, headers, body)

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
            pass


@dataclass(eq=False)
class RawServer:
    """A server that listens on a port of its own.

    Attributes:
        url: where.
        connections: how many there were.
        requests: those answered with the same bytes, in order.
    """

    url: str
    connections: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list)


@asynccontextmanager
async def serving(
    handler: Callable[[Connection], Awaitable[None]] | bytes, *, patience: float = 10
) -> AsyncIterator[RawServer]:
    """A server whose connections are each handled by ``handler``, or all answered with the same bytes.

    It lives for ``patience`` seconds at most, which takes a test that hangs with it.
    """
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = RawServer(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")

    async def handle(stream: trio.SocketStream) -> None:
        server.connections += 1
        connection = Connection(stream)
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


def response(body: bytes = b"{}", *, status: str = "200 OK", headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The bytes of a whole response with a content length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
