"""The transport with and without an httpx client, and servers that it does not reach."""

from __future__ import annotations

import gzip
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trio

from tests.engine.http.support import call, open_sockets, request, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import TrioTransport


async def test_it_serves_an_httpx_client():
    async with serving(response(b"1", headers=(("set-cookie", "a=b"),))) as server:
        async with httpx.AsyncClient(transport=TrioTransport()) as client:
            answers = [await client.post(server.url + "/p?q", content=b"xy") for _ in range(2)]
            assert client.cookies["a"] == "b"
        assert [(answer.status_code, answer.content, answer.http_version) for answer in answers] == [
            (200, b"1", "HTTP/1.1")
        ] * 2
        assert server.connections == 1
        assert (server.requests[1].target, server.requests[1].body) == ("/p?q", b"xy")
        assert server.requests[1].all_of("cookie") == ["a=b"]


async def test_what_the_answer_is_called():
    teapot = b"HTTP/1.1 418 short and stout\r\ncontent-length: 0\r\n\r\n"
    async with serving(teapot) as server, TrioTransport() as transport:
        answer = await transport.handle_async_request(request(server))
        assert (answer.status_code, answer.reason_phrase) == (418, "short and stout")


async def test_an_encoded_body_is_decoded():
    encoded = response(gzip.compress(b"1" * 1000), headers=(("content-encoding", "gzip"),))
    async with serving(encoded) as server, TrioTransport() as transport:
        assert await call(transport, server) == b"1" * 1000


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "/", "https://127.0.0.1/", "unix:/x"])
async def test_what_it_does_not_speak(url):
    async with TrioTransport() as transport:
        with pytest.raises(httpx.UnsupportedProtocol):
            await transport.handle_async_request(httpx.Request("GET", url))
        assert transport.idle == 0


async def test_a_request_that_is_none_is_not_sent():
    async with serving(response()) as server, TrioTransport() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await call(transport, server, headers=[("x", "y\r\nz: w")])
        assert transport.idle == 0
        await settled(server, transport)
        assert server.requests == []


async def test_ipv6():
    async with TrioTransport() as transport, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="::1")

        async def answer(stream: trio.SocketStream) -> None:
            assert await Connection(stream).read() is not None
            await stream.send_all(response(b"6"))

        await nursery.start(trio.serve_listeners, answer, listeners)
        port = listeners[0].socket.getsockname()[1]
        got = await transport.handle_async_request(httpx.Request("GET", f"http://[::1]:{port}/"))
        assert await got.aread() == b"6"
        nursery.cancel_scope.cancel()


def _own_socket(name: tuple[str, int]) -> socket.socket:
    """Another handle of the socket of this process that has that name."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            fd = os.dup(int(entry.name))
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found = socket.socket(fileno=fd)
                if found.getsockname() == name:
                    return found
                found.close()
            else:
                os.close(fd)
    raise LookupError(name)


async def test_no_small_piece_is_held_back_for_an_acknowledgement():
    clients = []

    async def handler(connection: Connection) -> None:
        clients.append(connection.stream.socket.getpeername())
        while await connection.read() is not None:
            await connection.send(response())

    async with serving(handler) as server, TrioTransport() as transport:
        await call(transport, server)
        with _own_socket(clients[0]) as client:
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["x" * 64 + ".invalid", "nowhere.invalid"])
async def test_a_host_that_is_none(host):
    async with TrioTransport() as transport:
        with pytest.raises(httpx.ConnectError, match=r".+"):
            await transport.handle_async_request(httpx.Request("GET", f"http://{host}/"))
        assert transport.idle == 0


async def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        before = open_sockets()
        async with TrioTransport() as transport:
            with pytest.raises(httpx.ConnectError, match=r".+"):
                await transport.handle_async_request(httpx.Request("GET", url))
            assert (transport.idle, open_sockets()) == (0, before)
