"""The timeouts of a request."""

from __future__ import annotations

import socket

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.http.support import LARGE, call, open_sockets, read_nothing, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import TrioTransport

# Bounds tests that jump the clock.
PATIENCE = 100
# Bounds what comes after the last jump.
SOON = 5


@pytest.fixture
def clock() -> MockClock:
    """Moves when it is told to, and with real time so that a test that hangs comes to an end."""
    return MockClock(rate=1)


async def _given_up(clock: MockClock, error: type[Exception], *jumps: float, start) -> None:
    """A call that is given up after exactly those jumps of the clock."""
    raised = trio.Event()

    async def expect() -> None:
        with pytest.raises(error, match=" 7 s"):
            await start()
        raised.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect)
        for seconds in jumps:
            await wait_all_tasks_blocked(0.01)
            assert not raised.is_set()
            clock.jump(seconds)
        with trio.fail_after(SOON):
            await raised.wait()


async def test_a_connect_timeout(clock):
    with socket.socket() as listener, trio.fail_after(PATIENCE):
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        # Whoever connects first fills the backlog.
        async with await trio.open_tcp_stream(host, port), TrioTransport() as transport:
            wanted = httpx.Request("GET", f"http://{host}:{port}", extensions={"timeout": {"connect": 7}})
            before = open_sockets()
            await _given_up(clock, httpx.ConnectTimeout, 3, 4, start=lambda: transport.handle_async_request(wanted))
            assert (transport.idle, open_sockets()) == (0, before)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_read_timeout(clock, sent):
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(sent)
        await connection.until_closed()

    async with serving(handler, patience=PATIENCE) as server, TrioTransport() as transport:
        await _given_up(clock, httpx.ReadTimeout, 3, 4, start=lambda: call(transport, server, read=7))
        assert transport.idle == 0
        await settled(server, transport)


async def test_a_read_timeout_is_for_each_piece(clock):
    sends, sent = trio.open_memory_channel[bytes](0)

    async def handler(connection: Connection) -> None:
        await connection.read()
        async for piece in sent:
            await connection.send(piece)
        await connection.until_closed()

    async with (
        serving(handler, patience=PATIENCE) as server,
        TrioTransport() as transport,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            assert await call(transport, server, read=7) == b"ab"

        nursery.start_soon(read)
        for piece in (b"HTTP/1.1 200 X\r\n", b"content-length: 2\r\n\r\n", b"a", b"b"):
            await wait_all_tasks_blocked(0.01)
            clock.jump(6)
            await sends.send(piece)


async def test_a_write_timeout(clock):
    async with serving(read_nothing, patience=PATIENCE) as server, TrioTransport() as transport:
        before = open_sockets()
        await _given_up(clock, httpx.WriteTimeout, 3, 4, start=lambda: call(transport, server, content=LARGE, write=7))
        # The server's side of the connection is still open.
        assert (transport.idle, open_sockets()) == (0, before + 1)


async def test_a_read_timeout_does_not_run_while_the_request_is_being_sent(clock):
    """The server cannot answer what it has not got."""
    go = trio.Event()

    async def handler(connection: Connection) -> None:
        await go.wait()
        await connection.read()
        await connection.send(response(b"1"))

    async with (
        serving(handler, patience=PATIENCE) as server,
        TrioTransport() as transport,
        trio.open_nursery() as nursery,
    ):

        async def send() -> None:
            assert await call(transport, server, content=LARGE, read=7) == b"1"

        nursery.start_soon(send)
        await wait_all_tasks_blocked(0.01)
        clock.jump(50)
        await wait_all_tasks_blocked(0.01)
        go.set()


async def test_a_read_timeout_runs_when_a_large_request_is_sent(clock):
    read = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        read.set()
        await connection.until_closed()

    async with serving(handler, patience=PATIENCE) as server, TrioTransport() as transport:
        raised = trio.Event()

        async def expect() -> None:
            with pytest.raises(httpx.ReadTimeout, match=" 7 s"):
                await call(transport, server, content=LARGE, read=7)
            raised.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect)
            await read.wait()
            await wait_all_tasks_blocked(0.01)
            clock.jump(7)
            with trio.fail_after(SOON):
                await raised.wait()
        assert transport.idle == 0
        await settled(server, transport)
