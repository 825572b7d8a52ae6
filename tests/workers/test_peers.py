"""A worker's answer as another worker reads it."""

from __future__ import annotations

import gc

import pytest

from tests.raw_server import Connection, serving
from tests.web.support import until
from trio_sessions.workers.peers import PeerFailed, PeerRequest, Peers

REQUEST = PeerRequest("GET", b"/x?y", [(b"host", b"h")], b"")
# Two pieces, the second of which a test may not want.
ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"


async def test_an_answer_that_breaks_off_is_told_where_it_is_read() -> None:
    async def half(connection: Connection) -> None:
        await connection.read()
        await connection.send(ANSWER)

    async with serving(half) as server, Peers() as peers, peers.ask(server.url, REQUEST) as response:
        assert response.status == 200
        assert await anext(response.chunks) == b"abc"
        with pytest.raises(PeerFailed, match=r"^RemoteProtocolError: "):
            await anext(response.chunks)


async def test_no_answer_is_told_before_the_block() -> None:
    async def leave(connection: Connection) -> None:
        await connection.read()

    async with serving(leave) as server, Peers() as peers:
        with pytest.raises(PeerFailed, match=r"^RemoteProtocolError: "):
            async with peers.ask(server.url, REQUEST):
                pytest.fail("there is no answer")


async def test_an_answer_that_is_not_read_to_its_end_leaves_nothing_behind() -> None:
    async def go_on(connection: Connection) -> None:
        await connection.read()
        await connection.send(ANSWER)
        await connection.until_closed()

    async with serving(go_on) as server, Peers() as peers:
        async with peers.ask(server.url, REQUEST) as response:
            async for chunk in response.chunks:
                assert chunk == b"abc"
                break
        del response
        # A generator that was left unfinished is a warning, which is an error here.
        gc.collect()
        await until(lambda: not server.open)


async def test_an_answer_that_is_read_leaves_its_connection_to_the_next() -> None:
    async with serving(ANSWER + b"2\r\nde\r\n0\r\n\r\n") as server, Peers() as peers:
        for _ in range(2):
            async with peers.ask(server.url, REQUEST) as response:
                assert b"".join([chunk async for chunk in response.chunks]) == b"abcde"
        assert server.connections == 1
        assert [(request.method, request.target) for request in server.requests] == [("GET", "/x?y")] * 2
