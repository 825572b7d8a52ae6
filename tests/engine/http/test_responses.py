"""Answers as they are read: piece by piece, to the end or not, and no more than may be."""

from __future__ import annotations

import httpx
import pytest
import trio

from tests.engine.http.support import call, request, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import AnswerTooLarge, Limits, TrioTransport


async def test_a_response_can_be_read_as_it_comes():
    sends, sent = trio.open_memory_channel[bytes](0)

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        async for piece in sent:
            await connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")
        await connection.until_closed()

    async with (
        serving(handler) as server,
        httpx.AsyncClient(transport=TrioTransport()) as client,
        client.stream("GET", server.url) as answer,
    ):
        pieces = answer.aiter_bytes()
        for piece in (b"a", b"bc"):
            await sends.send(piece)
            assert await anext(pieces) == piece
        await sends.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)


@pytest.mark.parametrize("read", [0, 1])
async def test_a_response_that_is_closed_early_closes_its_connection(read):
    gone = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nabc")
        await connection.until_closed()
        gone.set()

    async with serving(handler) as server, TrioTransport() as transport:
        answer = await transport.handle_async_request(request(server))
        assert transport.idle == 0
        if read:
            assert await anext(aiter(answer.stream)) == b"abc"
        await answer.aclose()
        await answer.aclose()
        assert transport.idle == 0
        await gone.wait()


async def test_a_response_that_is_closed_again_does_not_touch_its_connection():
    """Another request has it by then."""
    asked = trio.open_memory_channel[trio.Event](10)

    async def handler(connection: Connection) -> None:
        while await connection.read() is not None:
            go = trio.Event()
            await asked[0].send(go)
            await go.wait()
            await connection.send(response(b"1"))

    async with serving(handler) as server, TrioTransport() as transport, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await call(transport, server) == b"1"

        async def answer() -> None:
            (await asked[1].receive()).set()

        nursery.start_soon(answer)
        first = await transport.handle_async_request(request(server))
        await first.aread()
        nursery.start_soon(ask)
        second = await asked[1].receive()
        await first.stream.aclose()
        assert transport.idle == 0
        nursery.start_soon(ask)
        (await asked[1].receive()).set()
        second.set()
    assert server.connections == 2


async def test_an_answer_without_a_body_gives_its_connection_back_at_once():
    async with serving(response(b"")) as server, TrioTransport() as transport:
        for _ in range(3):
            await transport.handle_async_request(request(server))
            assert transport.idle == 1


async def test_a_body_in_very_many_chunks_lets_others_run():
    chunks = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with serving(chunks) as server, TrioTransport() as transport, trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert len(await call(transport, server)) == 20_000
        nursery.cancel_scope.cancel()
    assert turns >= 100


async def test_an_answer_that_says_it_is_too_large_is_not_waited_for():
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 X\r\ncontent-length: 1000\r\n\r\n")
        await connection.until_closed()

    async with serving(handler) as server, TrioTransport(limits=Limits(body_bytes=999)) as transport:
        with pytest.raises(AnswerTooLarge, match="has at least 1000 bytes, 999 are allowed"):
            await call(transport, server)
        assert transport.idle == 0
        await settled(server, transport)


async def test_an_answer_without_an_end_is_read_until_it_is_too_large():
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 X\r\n\r\n")
        for _ in range(100):
            await connection.send(b"x" * 100_000)
        await connection.until_closed()

    async with serving(handler) as server, TrioTransport(limits=Limits(body_bytes=1_000_000)) as transport:
        with pytest.raises(AnswerTooLarge):
            await call(transport, server)
        assert transport.idle == 0
        await settled(server, transport)
