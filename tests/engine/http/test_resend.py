"""What is sent again, and what never."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import httpx
import pytest
import trio

from tests.engine.http.support import call, request
from tests.raw_server import Connection, RawServer, response, serving
from trio_sessions.engine.http import Limits, TrioTransport
from trio_sessions.engine.http.carry import Carried, NothingSent
from trio_sessions.engine.http.exchange import Exchange
from trio_sessions.engine.http.timeouts import Timeouts
from trio_sessions.engine.http.wire import Origin, connect

LARGE = b"x" * (4 * 2**20)
"""So large that it is not sent in one piece with its head, nor taken by the kernel at once."""


def _socket(connection: Connection) -> trio.socket.SocketType:
    stream = connection.stream
    return (stream if isinstance(stream, trio.SocketStream) else stream.transport_stream).socket


def reset(connection: Connection) -> None:
    """Close so that the client notices by the first piece it sends."""
    _socket(connection).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _socket(connection).close()


def farewell(connection: Connection) -> None:
    """Close so that the client's first piece is taken, and it notices by the second."""
    _socket(connection).close()


BROKEN = (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError)
Closing = Callable[[Connection], None]
CLOSINGS = [
    pytest.param(reset, b"{}", id="before the first piece"),
    pytest.param(farewell, LARGE, id="after the first piece"),
]


# -- over one wire ----------------------------------------------------------------------------------------------------


async def _carry(tls, closing: Closing, content: bytes, *, used_before: bool) -> None:
    """Carry a request over a wire that the server closes just before."""
    accepted: trio.MemorySendChannel[Connection]
    accepted, connections = trio.open_memory_channel(0)

    async def handler(connection: Connection) -> None:
        await accepted.send(connection)
        await trio.sleep_forever()

    async with serving(handler, tls=tls.server if tls else None) as server:
        origin = Origin(tls=tls is not None, host="127.0.0.1", port=httpx.URL(server.url).port or 0)
        wire = await connect(origin, tls.client if tls else None)
        try:
            closing(await connections.receive())
            carried = Carried(wire, Exchange(Limits()), Timeouts(), used_before=used_before)
            await carried.head(request(server, content=content), b"/")
        finally:
            wire.close()


async def test_nothing_is_sent_when_a_used_wire_takes_nothing():
    with pytest.raises(NothingSent):
        await _carry(None, reset, b"{}", used_before=True)


async def test_a_new_wire_that_takes_nothing_is_an_error():
    with pytest.raises(BROKEN):
        await _carry(None, reset, b"{}", used_before=False)


async def test_something_is_sent_when_a_wire_took_the_first_piece():
    with pytest.raises(BROKEN):
        await _carry(None, farewell, LARGE, used_before=True)


@pytest.mark.parametrize(("closing", "content"), CLOSINGS)
async def test_an_encrypted_wire_cannot_tell_and_so_something_may_be_sent(tls, closing, content):
    with pytest.raises(BROKEN):
        await _carry(tls, closing, content, used_before=True)


# -- through the transport --------------------------------------------------------------------------------------------


class _Late(httpx.ByteStream):
    """A body that is asked for between the look at a connection and the first byte, which is when something happens."""

    def __init__(self, content: bytes, happens: Callable[[], None]) -> None:
        super().__init__(content)
        self._happens = happens

    def __iter__(self) -> Iterator[bytes]:
        self._happens()
        return super().__iter__()


class _Rig:
    """A server that answers, and counts what it has read of requests, and can close a connection at once."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.connections: list[Connection] = []

    async def handle(self, connection: Connection) -> None:
        self.connections.append(connection)
        try:
            while (received := await connection.read()) is not None:
                self.read.append(received.body)
                await connection.send(response(b"1"))
        except trio.ClosedResourceError:
            await trio.sleep_forever()

    async def ask_while(self, closing: Closing, transport: TrioTransport, server: RawServer, content: bytes) -> bytes:
        """The answer to a request, when its connection is closed as it is about to be sent for the first time."""
        [connection] = self.connections

        def close() -> None:
            if len(self.connections) == 1:
                closing(connection)

        headers = {"host": "127.0.0.1", "content-length": str(len(content))}
        wanted = httpx.Request("POST", server.url, headers=headers, stream=_Late(content, close))
        answer = await transport.handle_async_request(wanted)
        return await answer.aread()


async def test_a_request_of_which_nothing_has_left_goes_over_a_new_connection():
    rig = _Rig()
    async with serving(rig.handle) as server, TrioTransport() as transport:
        await call(transport, server, content=b"first")
        assert await rig.ask_while(reset, transport, server, b"again") == b"1"
        assert (rig.read, server.connections) == ([b"first", b"again"], 2)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_request_of_which_a_piece_was_taken_is_not_sent_again(tls, encrypted):
    rig = _Rig()
    async with (
        serving(rig.handle, tls=tls.server if encrypted else None) as server,
        TrioTransport(tls=tls.client) as transport,
    ):
        await call(transport, server, content=b"first")
        with pytest.raises(BROKEN):
            await rig.ask_while(farewell, transport, server, LARGE)
        assert (rig.read, server.connections) == ([b"first"], 1)


async def test_a_request_of_which_encryption_may_have_sent_something_is_not_sent_again(tls):
    rig = _Rig()
    async with serving(rig.handle, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        await call(transport, server, content=b"first")
        with pytest.raises(BROKEN):
            await rig.ask_while(reset, transport, server, b"{}")
        assert (rig.read, server.connections) == ([b"first"], 1)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_request_that_the_server_may_have_read_is_never_sent_again(method):
    read = []

    async def handler(connection: Connection) -> None:
        read.append(await connection.read())
        await connection.send(response(b"1"))
        read.append(await connection.read())

    async with serving(handler) as server, TrioTransport() as transport:
        await call(transport, server)
        with pytest.raises(httpx.RemoteProtocolError, match="Server disconnected without sending a response"):
            await call(transport, server, method=method)
        assert (server.connections, len(read)) == (1, 2)
        assert transport.idle == 0


async def test_a_new_connection_that_is_closed_at_once_is_not_opened_again():
    async def handler(connection: Connection) -> None:
        """Closes at once."""

    async with serving(handler) as server, TrioTransport() as transport:
        with pytest.raises(BROKEN):
            await call(transport, server)
        assert server.connections == 1
