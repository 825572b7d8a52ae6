"""What is sent: bodies of every kind, and answers that come before all of a request is sent."""

from __future__ import annotations

import socket
import struct
from contextlib import aclosing

import httpx
import pytest
import trio

from tests.engine.http.support import LARGE, call, read_nothing, request, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import TrioTransport


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 400_000, 5_000_000])
async def test_bodies_of_any_size_go_both_ways(size):
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]

    async def echo(connection: Connection) -> None:
        while (received := await connection.read()) is not None:
            await connection.send(response(received.body))

    async with serving(echo) as server, TrioTransport() as transport:
        for _ in range(2):
            assert await call(transport, server, content=body) == body
        assert server.connections == 1


async def test_a_body_that_is_generated_goes_in_chunks():
    async def pieces():
        yield b"ab"
        await trio.lowlevel.checkpoint()
        yield b""
        yield b"c" * 100_000

    async with serving(response()) as server, TrioTransport() as transport:
        for _ in range(2):
            await call(transport, server, content=pieces())
        assert [received.body for received in server.requests] == [b"ab" + b"c" * 100_000] * 2
        assert server.requests[0].all_of("transfer-encoding") == ["chunked"]
        assert server.connections == 1


async def test_a_whole_body_goes_in_chunks_if_its_head_says_so():
    async with serving(response()) as server, TrioTransport() as transport:
        await call(transport, server, content=b"abc", headers=[("transfer-encoding", "chunked")])
        assert server.requests[0].body == b"abc"


async def test_a_body_that_cannot_be_generated_raises_what_its_generator_raised():
    async def pieces():
        yield b"ab"
        raise KeyError("mine")

    async with serving(response()) as server, TrioTransport() as transport:
        with pytest.raises(KeyError, match="mine"):
            await call(transport, server, content=pieces())
        assert transport.idle == 0
        await settled(server, transport)
        assert server.requests == []


async def test_a_body_shorter_than_announced_is_an_error():
    async def pieces():
        yield b"ab"

    async with serving(response()) as server, TrioTransport() as transport:
        with pytest.raises(httpx.LocalProtocolError, match="Too little data"):
            await call(transport, server, content=pieces(), headers=[("content-length", "3")])
        assert transport.idle == 0
        await settled(server, transport)


def _early(then=Connection.until_closed):
    """Answers 413 after the head of a request, then does something."""

    async def handler(connection: Connection) -> None:
        assert await connection.read_some()
        await connection.send(response(b"too large", status="413 X"))
        await then(connection)

    return handler


async def _close(connection: Connection) -> None:
    """With bytes unread, which resets the connection."""


async def _endless():
    while True:
        yield b"x" * 100_000


@pytest.mark.parametrize("then", [Connection.until_closed, read_nothing, _close])
@pytest.mark.parametrize("generated", [False, True])
async def test_an_answer_is_taken_before_all_of_the_request_is_sent(generated, then):
    async with serving(_early(then)) as server, TrioTransport() as transport, aclosing(_endless()) as pieces:
        answer = await transport.handle_async_request(request(server, content=pieces if generated else LARGE))
        assert (answer.status_code, await answer.aread()) == (413, b"too large")
        # What was not sent to the end is not used again.
        assert transport.idle == 0


@pytest.mark.parametrize("content", [b"{}", LARGE])
async def test_a_server_that_turns_everybody_away_at_the_door_is_understood(content):
    async def handler(connection: Connection) -> None:
        await connection.send(response(b"busy", status="503 X"))
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with serving(handler) as server, TrioTransport() as transport:
        for _ in range(20):
            answer = await transport.handle_async_request(request(server, content=content))
            assert (answer.status_code, await answer.aread()) == (503, b"busy")
        assert server.connections == 20


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 413"])
async def test_a_request_that_is_cut_off_without_an_answer_is_an_error(answer):
    async def handler(connection: Connection) -> None:
        assert await connection.read_some()
        await connection.send(answer)
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await connection.stream.aclose()

    async with serving(handler) as server, TrioTransport() as transport:
        with pytest.raises((httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError)):
            await call(transport, server, content=LARGE)
        assert transport.idle == 0
        assert server.connections == 1
