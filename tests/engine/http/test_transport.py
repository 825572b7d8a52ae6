"""The transport on real connections: which are used again, what is sent twice and what never, timeouts and errors."""

from __future__ import annotations

import gzip
import socket
import struct
from contextlib import aclosing, suppress

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.http.support import HOSTILE, call, cut, open_sockets, request, settled
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import AnswerTooLarge, Limits, PoolState, TrioTransport, wire
from trio_sessions.engine.http.wire import Origin

# Bounds tests that jump the clock; those that do not are bounded by ``serving``.
PATIENCE = 100
LARGE = b"x" * (20 * 2**20)
"""More than the kernel takes of a request that nobody reads."""


@pytest.fixture
def clock() -> MockClock:
    """Moves when it is told to, and with real time so that a test that hangs comes to an end."""
    return MockClock(rate=1)


def _idle(count: int) -> PoolState:
    return PoolState(idle=count, in_flight=0, waiting=0)


# -- with and without a client ----------------------------------------------------------------------------------------


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
        assert transport.state == _idle(0)


async def test_a_request_that_is_none_is_not_sent():
    async with serving(response()) as server, TrioTransport() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await call(transport, server, headers=[("x", "y\r\nz: w")])
        assert transport.state == _idle(0)
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


async def test_no_small_piece_is_held_back_for_an_acknowledgement():
    async with serving(response()) as server:
        made = await wire.connect(Origin(tls=False, host="127.0.0.1", port=int(server.url.rpartition(":")[2])), None)
        assert isinstance(made, wire._PlainWire)
        assert made._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        made.close()


# -- requests ---------------------------------------------------------------------------------------------------------


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
        assert transport.state == _idle(0)
        await settled(server, transport)
        assert server.requests == []


async def test_a_body_shorter_than_announced_is_an_error():
    async def pieces():
        yield b"ab"

    async with serving(response()) as server, TrioTransport() as transport:
        with pytest.raises(httpx.LocalProtocolError, match="Too little data"):
            await call(transport, server, content=pieces(), headers=[("content-length", "3")])
        assert transport.state == _idle(0)


# -- answers that come early ------------------------------------------------------------------------------------------


def _early(then=Connection.until_closed):
    """Answers 413 after the head of a request, then does something."""

    async def handler(connection: Connection) -> None:
        assert await connection.read_some()
        await connection.send(response(b"too large", status="413 X"))
        await then(connection)

    return handler


async def _read_nothing(connection: Connection) -> None:
    await trio.sleep_forever()


async def _close(connection: Connection) -> None:
    """With bytes unread, which resets the connection."""


async def _endless():
    while True:
        yield b"x" * 100_000


@pytest.mark.parametrize("then", [Connection.until_closed, _read_nothing, _close])
@pytest.mark.parametrize("generated", [False, True])
async def test_an_answer_is_taken_before_all_of_the_request_is_sent(generated, then):
    async with serving(_early(then)) as server, TrioTransport() as transport, aclosing(_endless()) as pieces:
        answer = await transport.handle_async_request(request(server, content=pieces if generated else LARGE))
        assert (answer.status_code, await answer.aread()) == (413, b"too large")
        # What was not sent to the end is not used again.
        assert transport.state == _idle(0)


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
        assert transport.state == _idle(0)
        assert server.connections == 1


# -- which connections are used again ---------------------------------------------------------------------------------


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
        assert transport.state == _idle(1 if reused else 0)


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
        assert transport.state == _idle(1)
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
        assert transport.state == _idle(5)
        while server.open:
            await wait_all_tasks_blocked(0.001)
        assert await call(transport, server) == b"1"
        assert transport.state == _idle(1)
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
        assert transport.state == _idle(3)
        for _ in range(4):
            await call(transport, server)
        assert len(set(ports[3:])) == 1


async def test_no_more_are_kept_than_may_be():
    async with serving(response()) as one, serving(response()) as two, TrioTransport(max_idle=1) as transport:
        for _ in range(2):
            await call(transport, one)
            await call(transport, two)
            assert transport.state == _idle(1)
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
            assert transport.state.in_flight == 0
            assert await call(transport, server) == b"next"

    trio.run(main)


# -- what is sent again, and what never -------------------------------------------------------------------------------


async def test_a_request_of_which_nothing_has_left_goes_over_a_new_connection(monkeypatch):
    """As when the server closes between the look at a connection and the first byte."""

    async def blind(self: object) -> bool:
        return True

    monkeypatch.setattr(wire._PlainWire, "is_quiet", blind)
    closed = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(response(b"1"))
        # A reset is noticed by the first byte that is sent, a farewell only by the second.
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await connection.stream.aclose()
        closed.set()

    async with serving(handler) as server, TrioTransport() as transport:
        response_one = await transport.handle_async_request(request(server))
        assert await response_one.aread() == b"1"
        await closed.wait()
        assert transport.state == _idle(1)
        assert await call(transport, server, content=b"again") == b"1"
        assert server.connections == 2


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
        assert transport.state == _idle(0)


async def test_a_new_connection_that_is_closed_at_once_is_not_opened_again():
    async with serving(_close) as server, TrioTransport() as transport:
        with pytest.raises(httpx.TransportError):
            await call(transport, server)
        assert server.connections == 1


# -- responses that are streamed --------------------------------------------------------------------------------------


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

    async with serving(handler) as server, TrioTransport(max_in_flight=1) as transport:
        answer = await transport.handle_async_request(request(server))
        assert transport.state == PoolState(idle=0, in_flight=1, waiting=0)
        if read:
            assert await anext(aiter(answer.stream)) == b"abc"
        await answer.aclose()
        await answer.aclose()
        assert transport.state == _idle(0)
        await gone.wait()


async def test_an_answer_without_a_body_gives_its_connection_back_at_once():
    async with serving(response(b"")) as server, TrioTransport(max_in_flight=1) as transport:
        for _ in range(3):
            await transport.handle_async_request(request(server))
            assert transport.state == _idle(1)


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


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_an_answer_that_says_it_is_too_large_is_not_waited_for():
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 X\r\ncontent-length: 1000\r\n\r\n")
        await connection.until_closed()

    async with serving(handler) as server, TrioTransport(limits=Limits(body_bytes=999)) as transport:
        with pytest.raises(AnswerTooLarge, match="has at least 1000 bytes, 999 are allowed"):
            await call(transport, server)
        assert transport.state == _idle(0)


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
        assert transport.state == _idle(0)
        await settled(server, transport)


async def test_requests_over_the_limit_wait_in_the_order_in_which_they_came():
    waiting = trio.open_memory_channel[tuple[bytes, trio.Event]](10)

    async def handler(connection: Connection) -> None:
        while (received := await connection.read()) is not None:
            go = trio.Event()
            await waiting[0].send((received.body, go))
            await go.wait()
            await connection.send(response())

    async with (
        serving(handler) as server,
        TrioTransport(max_in_flight=2) as transport,
        trio.open_nursery() as nursery,
    ):
        for number in range(5):
            nursery.start_soon(lambda number=number: call(transport, server, content=b"%d" % number))
            await wait_all_tasks_blocked()
        assert transport.state == PoolState(idle=0, in_flight=2, waiting=3)
        seen = []
        for _ in range(5):
            body, go = await waiting[1].receive()
            seen.append(int(body))
            go.set()
        assert sorted(seen[:2]) == [0, 1]
        assert seen[2:] == [2, 3, 4]
    assert server.connections == 2
    assert transport.state.in_flight == 0


# -- timeouts ---------------------------------------------------------------------------------------------------------


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
        await raised.wait()


async def test_a_pool_timeout(clock):
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.until_closed()

    async with serving(handler, patience=PATIENCE) as server, TrioTransport(max_in_flight=1) as transport:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, transport, server)
            await wait_all_tasks_blocked()
            await _given_up(clock, httpx.PoolTimeout, 3, 4, start=lambda: call(transport, server, pool=7))
            assert transport.state == PoolState(idle=0, in_flight=1, waiting=0)
            nursery.cancel_scope.cancel()
        assert transport.state == _idle(0)


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
            assert (transport.state, open_sockets()) == (_idle(0), before)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_read_timeout(clock, sent):
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(sent)
        await connection.until_closed()

    async with serving(handler, patience=PATIENCE) as server, TrioTransport() as transport:
        await _given_up(clock, httpx.ReadTimeout, 3, 4, start=lambda: call(transport, server, read=7))
        assert transport.state == _idle(0)
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
    async with serving(_read_nothing, patience=PATIENCE) as server, TrioTransport() as transport:
        await _given_up(clock, httpx.WriteTimeout, 3, 4, start=lambda: call(transport, server, content=LARGE, write=7))
        assert transport.state == _idle(0)


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
            await raised.wait()
        assert transport.state == _idle(0)


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_closing_closes_what_is_idle_and_refuses_what_comes():
    async with serving(response()) as server:
        transport = TrioTransport()
        await call(transport, server)
        await transport.aclose()
        await transport.aclose()
        assert transport.state == _idle(0)
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
        assert transport.state == _idle(0)


@pytest.mark.parametrize("host", ["x" * 64 + ".invalid", "nowhere.invalid"])
async def test_a_host_that_is_none(host):
    async with TrioTransport() as transport:
        with pytest.raises(httpx.ConnectError, match=r".+"):
            await transport.handle_async_request(httpx.Request("GET", f"http://{host}/"))
        assert transport.state == _idle(0)


async def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        before = open_sockets()
        async with TrioTransport() as transport:
            with pytest.raises(httpx.ConnectError, match=r".+"):
                await transport.handle_async_request(httpx.Request("GET", url))
            assert (transport.state, open_sockets()) == (_idle(0), before)
