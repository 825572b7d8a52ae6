"""Encrypted connections."""

from __future__ import annotations

import ssl

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.engine.http.support import LARGE, call, open_sockets, request, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.base import EngineCall
from trio_sessions.engine.http import TrioTransport
from trio_sessions.engine.sglang import SGLangEngine


async def test_a_connection_is_used_again(tls):
    async with serving(response(b"1"), tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        for _ in range(3):
            assert await call(transport, server) == b"1"
        assert (server.connections, transport.idle) == (1, 1)


@pytest.mark.parametrize("size", [0, 400_000, 5_000_000])
async def test_bodies_of_any_size_go_both_ways(tls, size):
    async def echo(connection: Connection) -> None:
        while (received := await connection.read()) is not None:
            await connection.send(response(received.body))

    async with serving(echo, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        for _ in range(2):
            assert await call(transport, server, content=b"x" * size) == b"x" * size
        assert server.connections == 1


async def test_whom_it_does_not_trust(tls):
    async with serving(response(), tls=tls.server) as server:
        before = open_sockets()
        async with TrioTransport(tls=ssl.create_default_context()) as transport:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await call(transport, server)
            await settled(server, transport)
            assert open_sockets() == before


async def test_whose_name_is_another(tls):
    async with serving(response(), tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        with pytest.raises(httpx.ConnectError, match="Hostname mismatch"):
            await transport.handle_async_request(httpx.Request("GET", server.url.replace("127.0.0.1", "localhost")))


async def test_who_is_not_encrypted(tls):
    async def handler(connection: Connection) -> None:
        await connection.read_some()
        await connection.send(response())

    async with serving(handler) as server, TrioTransport(tls=tls.client) as transport:
        with pytest.raises(httpx.ConnectError, match=r".+"):
            await transport.handle_async_request(httpx.Request("GET", server.url.replace("http:", "https:")))
        assert transport.idle == 0


@pytest.mark.parametrize(
    "answer",
    [
        response(b"1") + b"surplus",
        response(b"1") + response(b"2"),
        b"HTTP/1.1 204 X\r\n\r\n" + response(b"2"),
    ],
)
async def test_surplus_in_the_same_piece_is_not_the_next_answer(tls, answer):
    async with serving(answer, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        for _ in range(3):
            assert await call(transport, server) in (b"1", b"")
        assert (server.connections, transport.idle) == (3, 0)


class _Held(trio.abc.SendStream):
    """Sends in one piece what it was given while it was ``holding``."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        self.holding = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._pieces.append(bytes(data))
        if not self.holding:
            await self._stream.send_all(b"".join(self._pieces))
            self._pieces.clear()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_surplus_that_is_still_encrypted_is_not_the_next_answer(tls):
    """It comes with the same segment, so that the socket is quiet, and in a record of its own."""

    async def handler(plain: Connection) -> None:
        below = _Held(plain.stream)
        encrypted = trio.SSLStream(
            trio.StapledStream(below, plain.stream), tls.server, server_side=True, https_compatible=True
        )
        connection = Connection(encrypted)
        while await connection.read() is not None:
            below.holding = True
            await connection.send(response(b"1"))
            below.holding = False
            await connection.send(response(b"forged"))

    async with serving(handler) as server, TrioTransport(tls=tls.client) as transport:
        for _ in range(3):
            wanted = httpx.Request("GET", server.url.replace("http:", "https:"))
            assert await (await transport.handle_async_request(wanted)).aread() == b"1"
        assert server.connections == 3


async def test_a_server_that_closes_without_a_farewell_has_closed(tls):
    """As many do: what ends an answer is its length, and where it has none, the end of the connection."""

    async def handler(connection: Connection) -> None:
        if await connection.read() is not None:
            await connection.send(b"HTTP/1.1 200 X\r\n\r\nabc")

    async with serving(handler, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        assert await call(transport, server) == b"abc"
        assert transport.idle == 0


async def test_an_idle_connection_that_the_server_has_closed_is_passed_over(tls):
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(response(b"1"))

    async with serving(handler, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        for _ in range(3):
            assert await call(transport, server) == b"1"
            while server.open:
                await wait_all_tasks_blocked(0.001)
        assert server.connections == 3


async def test_an_early_answer_is_taken(tls):
    async def handler(connection: Connection) -> None:
        await connection.read_some()
        await connection.send(response(b"too large", status="413 X"))
        await trio.sleep_forever()

    async with serving(handler, tls=tls.server) as server, TrioTransport(tls=tls.client) as transport:
        answer = await transport.handle_async_request(request(server, content=LARGE))
        assert (answer.status_code, await answer.aread()) == (413, b"too large")
        assert transport.idle == 0


async def test_an_engine_whose_certificate_the_system_trusts(tls, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.certificate))
    call_of_it = EngineCall(method="POST", path="v1/x", query="", headers=(), body=b"{}", session_id="s")
    async with serving(response(b"1"), tls=tls.server) as server, SGLangEngine(server.url, timeout=600) as engine:
        for _ in range(2):
            assert (await engine.call(call_of_it)).body == b"1"
        assert server.connections == 1
