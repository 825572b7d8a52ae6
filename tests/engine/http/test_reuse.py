"""Which connections are used again, and what becomes of them when the transport is closed."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.engine.http.support import HOSTILE, call, cut, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import Limits, TrioTransport


@pytest.mark.parametrize(
    ("answer", "reused"),
    [
        (response(b"1"), True),
        (response(b""), True),
        (b"HTTP/1.1 204 X\r\n\r\n", True),
        (b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n", True),
        (response(b"1", headers=(("connection", "close"),)), False),
        (response(b"1").replace(b"1.1", b"1.0"), False),
        (response(b"1") + b"surplus", False),
        (response(b"1") + response(b"2"), False),
        (b"HTTP/1.1 204 X\r\n\r\n" + response(b"2"), False),
    ],
)
async def test_which_connections_are_used_again(answer, reused):
    async with serving(answer) as server, TrioTransport() as transport:
        for _ in range(3):
            assert await call(transport, server) in (b"1", b"")
        assert server.connections == (1 if reused else 3)
        assert transport.idle == (1 if reused else 0)


async def test_a_connection_on_which_something_comes_while_it_is_idle_is_not_used_again():
    """It would be taken for the next answer, which it is not."""
    come = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(response(b"1"))
        await come.wait()
        await connection.send(response(b"forged"))
        await connection.until_closed()

    async with serving(handler) as server, TrioTransport() as transport:
        assert await call(transport, server) == b"1"
        assert transport.idle == 1
        come.set()
        await wait_all_tasks_blocked(0.01)
        assert await call(transport, server) == b"1"
        assert server.connections == 2


async def test_all_idle_connections_that_the_server_has_closed_are_passed_over():
    arrived, together = 0, trio.Event()

    async def handler(connection: Connection) -> None:
        nonlocal arrived
        await connection.read()
        arrived += 1
        if arrived == 5:
            together.set()
        await together.wait()
        await connection.send(response(b"1"))

    async with serving(handler) as server, TrioTransport() as transport:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call, transport, server)
        assert transport.idle == 5
        while server.open:
            await wait_all_tasks_blocked(0.001)
        assert await call(transport, server) == b"1"
        assert transport.idle == 1
        assert server.connections == 6


async def test_connections_to_one_server_are_not_used_for_another():
    async with serving(response(b"1")) as one, serving(response(b"2")) as two, TrioTransport() as transport:
        for _ in range(2):
            assert (await call(transport, one), await call(transport, two)) == (b"1", b"2")
        assert (one.connections, two.connections) == (1, 1)


async def test_the_connection_used_last_is_used_first():
    ports = []

    async def handler(connection: Connection) -> None:
        while await connection.read() is not None:
            ports.append(connection.stream.socket.getpeername()[1])
            await wait_all_tasks_blocked(0.001)
            await connection.send(response())

    async with serving(handler) as server, TrioTransport() as transport:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, transport, server)
        assert transport.idle == 3
        for _ in range(4):
            await call(transport, server)
        assert len(set(ports[3:])) == 1


async def test_no_more_are_kept_than_may_be():
    async with serving(response()) as one, serving(response()) as two, TrioTransport(max_idle=1) as transport:
        for _ in range(2):
            await call(transport, one)
            await call(transport, two)
            assert transport.idle == 1
        assert (one.connections, two.connections) == (2, 2)
    async with serving(response()) as server, TrioTransport(max_idle=0) as transport:
        for _ in range(2):
            await call(transport, server)
        assert server.connections == 2


@given(HOSTILE, st.lists(st.integers(0, 10_000), max_size=3), st.booleans())
@settings(max_examples=60)
def test_hostile_bytes_neither_hang_nor_reach_the_next_answer(raw, places, closes):
    async def main() -> None:
        async def handler(connection: Connection) -> None:
            while (received := await connection.read()) is not None:
                if received.body != b"first":
                    await connection.send(response(b"next"))
                    continue
                for piece in cut(raw, places):
                    await connection.send(piece)
                    await wait_all_tasks_blocked()
                if closes:
                    return

        async with serving(handler) as server, TrioTransport(limits=Limits(body_bytes=1000)) as transport:
            with suppress(httpx.RemoteProtocolError, httpx.ReadTimeout):
                await call(transport, server, content=b"first", read=0.01)
            assert await call(transport, server) == b"next"

    trio.run(main)


async def test_closing_closes_what_is_idle_and_refuses_what_comes():
    async with serving(response()) as server:
        transport = TrioTransport()
        await call(transport, server)
        await transport.aclose()
        await transport.aclose()
        assert transport.idle == 0
        await settled(server, transport)
        with pytest.raises(RuntimeError, match="closed"):
            await call(transport, server)


async def test_what_is_in_flight_when_it_is_closed_is_answered_and_then_closed():
    go = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await go.wait()
        await connection.send(response(b"1"))
        await connection.until_closed()

    async with serving(handler) as server:
        transport = TrioTransport()
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert await call(transport, server) == b"1"

            nursery.start_soon(read)
            await wait_all_tasks_blocked(0.01)
            transport.close()
            go.set()
        await settled(server, transport)
        assert transport.idle == 0
