"""The engine client on the wire: what is sent, what is taken, and every way a connection can fail."""

from __future__ import annotations

import gzip
import itertools
import re
import socket
import zlib

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.raw_server import Connection, ReceivedRequest, response, serving
from trio_sessions import __version__
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.headers import from_engine
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.errors import BadEngineAnswer, EngineTimedOut, EngineUnreachable

# Bounds tests that jump the clock; those that do not are bounded by ``serving``.
PATIENCE = 1000


@pytest.fixture
def clock() -> MockClock:
    """Moves when it is told to, and with real time so that a test that hangs comes to an end."""
    return MockClock(rate=10)


def _call(**changes) -> EngineCall:
    fields = {
        "method": "POST",
        "path": "v1/chat/completions",
        "query": "",
        "headers": (),
        "body": b"{}",
        "session_id": "s1",
    }
    return EngineCall(**{**fields, **changes})


async def _call_once(handler, **changes) -> EngineAnswer:
    """The answer of a server with that handler."""
    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        return await engine.call(_call(**changes))


async def _sent(*, base: str = "", **changes) -> ReceivedRequest:
    """What a call looks like on the wire."""
    async with serving(response()) as server, SGLangEngine(server.url + base, timeout=600) as engine:
        await engine.call(_call(**changes))
    [request] = server.requests
    return request


# -- what is sent -----------------------------------------------------------------------------------------------------


async def test_the_request_goes_out_as_it_is():
    body = bytes(range(256)) * 3
    request = await _sent(method="PUT", path="v1/x", query="a=1", body=body)
    assert (request.method, request.target, request.body) == ("PUT", "/v1/x?a=1", body)


async def test_a_call_without_a_body_has_none():
    request = await _sent(method="GET", path="health", body=b"")
    assert (request.method, request.body, request.all_of("content-length")) == ("GET", b"", [])


@pytest.mark.parametrize("base", ["", "/", "/base", "/base/"])
async def test_the_path_is_below_the_base_url(base):
    assert (await _sent(base=base)).target == f"{base.rstrip('/')}/v1/chat/completions"


PATHS = ["v1/models/a%2Fb", "v1/models/caf%C3%A9", "v1/models/a%20b+c", "v1/models/~a:@!$&'()*,;="]


@pytest.mark.parametrize("path", PATHS)
async def test_an_encoded_path_is_not_encoded_again(path):
    assert (await _sent(path=path)).target == f"/{path}"


@pytest.mark.parametrize("query", ["a=1&b=2", "a=%20+b", "a=%C3%A9&a", "x=/?:@!$&()*,;='", "a=%2526", "%", 'q="x"'])
async def test_a_query_is_sent_as_it_came(query):
    assert (await _sent(query=query)).target == f"/v1/chat/completions?{query}"


async def test_a_body_of_many_megabytes_goes_both_ways():
    body = b"x" * (5 * 2**20)

    async def echo(connection: Connection) -> None:
        request = await connection.read()
        await connection.send(response(request.body))

    assert (await _call_once(echo, body=body)).body == body


async def test_the_session_is_the_routing_key_whatever_the_client_says():
    request = await _sent(headers=(("x-smg-routing-key", "forged"), ("X-SMG-Routing-Key", "forged")), session_id="abc")
    assert request.all_of("X-SMG-Routing-Key") == ["abc"]


async def test_headers_of_the_client_go_on():
    request = await _sent(
        headers=(
            ("Authorization", "Bearer x"),
            ("user-agent", "agent/1"),
            ("x-twice", "1"),
            ("x-twice", "2"),
            ("content-type", "application/json"),
            ("cookie", "own=1"),
        )
    )
    assert request.all_of("authorization") == ["Bearer x"]
    assert request.all_of("user-agent") == ["agent/1"]
    assert request.all_of("x-twice") == ["1", "2"]
    assert request.all_of("content-type") == ["application/json"]
    assert request.all_of("cookie") == ["own=1"]


DROPPED = {
    "Accept-Encoding": "br, zstd",
    "Connection": "close",
    "Content-Length": "999",
    "Expect": "100-continue",
    "Host": "elsewhere",
    "Keep-Alive": "timeout=1",
    "Proxy-Authorization": "Basic x",
    "Proxy-Connection": "close",
    "TE": "trailers",
    "Trailer": "x",
    "Transfer-Encoding": "chunked",
    "Upgrade": "h2c",
}


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ((), ["Accept: */*", "Connection: keep-alive", "User-Agent: trio-sessions/*", "accept-encoding: identity"]),
        (
            (("user-agent", "x/1"), ("ACCEPT", "a"), ("accept", "b"), ("X-A", "1")),
            [
                *("Connection: keep-alive", "accept-encoding: identity"),
                *("user-agent: x/1", "ACCEPT: a", "accept: b", "X-A: 1"),
            ],
        ),
    ],
)
async def test_every_header_on_the_wire(headers, sent):
    request = await _sent(headers=headers)
    [(host, _), *rest] = request.headers
    assert host == "Host"
    assert [f"{name}: {value}".replace(__version__, "*") for name, value in rest] == [
        *sent,
        "X-SMG-Routing-Key: s1",
        "Content-Length: 2",
    ]


async def test_what_belongs_to_one_connection_is_dropped():
    request = await _sent(headers=tuple(DROPPED.items()), body=b"1234")
    assert request.body == b"1234"
    assert request.all_of("content-length") == ["4"]
    assert request.all_of("host")[0].startswith("127.0.0.1:")
    for name, value in DROPPED.items():
        assert value not in request.all_of(name), name


async def test_a_header_that_is_not_ascii_goes_on_byte_by_byte():
    # The web layer reads headers as latin-1, the only reading that keeps their bytes.
    request = await _sent(headers=(("x-name", "J\xfcrgen"),))
    assert request.all_of("x-name") == ["J\xfcrgen"]


async def test_proxies_of_the_environment_are_ignored(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert (await _call_once(_once(response(b"1")))).body == b"1"


async def test_cookies_of_one_session_are_not_sent_by_another():
    setting = response(headers=(("set-cookie", "route=engine-7"),))
    async with serving(setting) as server, SGLangEngine(server.url, timeout=600) as engine:
        # Enough sessions that some share whatever can be shared.
        for number in range(40):
            await engine.call(_call(session_id=f"s{number}"))
    assert [request.all_of("cookie") for request in server.requests] == [[]] * 40


# -- what is taken ----------------------------------------------------------------------------------------------------


def _once(data: bytes, then=None):
    """A handler that answers one request with ``data``, then does something, then closes."""

    async def handler(connection: Connection) -> None:
        assert await connection.read() is not None
        await connection.send(data)
        if then is not None:
            await then(connection)

    return handler


@pytest.mark.parametrize("status", [200, 201, 204, 304, 400, 404, 409, 429, 500, 503])
async def test_any_status_is_an_answer(status):
    body = b"" if status in (204, 304) else b"why"
    answer = await _call_once(_once(response(body, status=f"{status} X")))
    assert (answer.status, answer.body) == (status, body)


async def test_headers_come_as_they_were_also_twice():
    sent = (
        ("X-A", "1"),
        ("x-a", "2"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("x-l", "caf\xe9"),
        ("Server", "s"),
    )
    answer = await _call_once(_once(response(headers=sent)))
    assert list(answer.headers) == [("content-length", "2"), *sent]
    assert from_engine(answer.headers) == list(sent[:-1])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_an_encoded_body_is_decoded(encoding):
    body = b'{"a":1}' * 1000
    encode = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding]
    answer = await _call_once(_once(response(encode(body), headers=(("content-encoding", encoding),))))
    assert answer.body == body
    assert "content-encoding" not in dict(from_engine(answer.headers))


async def test_a_chunked_body_is_put_together():
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert (await _call_once(_once(chunked))).body == b"abc"


async def test_a_body_without_a_length_ends_with_the_connection():
    assert (await _call_once(_once(b"HTTP/1.1 200 OK\r\n\r\nabc"))).body == b"abc"


@pytest.mark.parametrize("status", ["301 X", "302 X", "303 X", "307 X", "308 X"])
async def test_redirects_are_answers_too(status):
    moved = response(status=status, headers=(("location", "/elsewhere"),))
    async with serving(moved) as server, SGLangEngine(server.url, timeout=600) as engine:
        answer = await engine.call(_call())
    assert answer.status == int(status[:3])
    assert ("location", "/elsewhere") in answer.headers
    assert len(server.requests) == 1


async def test_an_interim_response_is_not_the_answer():
    assert (await _call_once(_once(b"HTTP/1.1 103 Early Hints\r\n\r\n" + response(b"1")))).body == b"1"


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "RemoteProtocolError: Server disconnected without sending a response."),
        (b"HTTP/1.1 200", "RemoteProtocolError: Server disconnected without sending a response."),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
            "RemoteProtocolError: peer closed connection without sending complete message body "
            "(received 3 bytes, expected 9)",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc",
            "RemoteProtocolError: peer closed connection without sending complete message body "
            "(incomplete chunked read)",
        ),
    ],
)
async def test_an_answer_that_is_cut_off_is_no_answer(sent, text):
    with pytest.raises(EngineUnreachable) as caught:
        await _call_once(_once(sent))
    assert str(caught.value) == f"backend transport error: {text}"


@pytest.mark.parametrize(
    "sent",
    [
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_malformed_http_is_no_answer(sent):
    with pytest.raises(EngineUnreachable, match=r"^backend transport error: RemoteProtocolError: "):
        await _call_once(_once(sent))


LIMIT = 10_000


@pytest.mark.parametrize(
    "answer",
    [
        response(b"x" * (LIMIT + 1)),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (LIMIT + 1),
        # A thousand times as much as is sent.
        response(gzip.compress(b"x" * 2**22), headers=(("content-encoding", "gzip"),)),
    ],
    ids=["of known length", "to the end", "compressed"],
)
async def test_an_answer_that_is_too_large_is_no_answer(answer):
    async with (
        serving(_once(answer)) as server,
        SGLangEngine(server.url, timeout=600, max_answer_bytes=LIMIT) as engine,
    ):
        with pytest.raises(EngineUnreachable) as caught:
            await engine.call(_call())
    assert re.fullmatch(
        r"backend transport error: AnswerTooLarge: the answer's body has at least \d+ bytes( when decoded)?, "
        r"10000 are allowed; raise --max-answer-mb",
        str(caught.value),
    )


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_an_answer_may_be_as_large_as_the_limit(encoding):
    body = b"x" * LIMIT
    encoded = gzip.compress(body) if encoding == "gzip" else body
    answer = response(encoded, headers=(("content-encoding", encoding),))
    async with (
        serving(_once(answer)) as server,
        SGLangEngine(server.url, timeout=600, max_answer_bytes=LIMIT) as engine,
    ):
        assert (await engine.call(_call())).body == body


async def test_a_body_that_does_not_decode_is_no_answer():
    garbled = response(b"not gzip", headers=(("content-encoding", "gzip"),))
    async with serving(garbled) as server, SGLangEngine(server.url, timeout=600) as engine:
        for _ in range(2):
            with pytest.raises(EngineUnreachable, match=r"^backend transport error: DecodingError: "):
                await engine.call(_call())
        # It was read to its end, and the connection is none the worse for it.
        assert server.connections == 1


async def test_a_reset_connection_is_no_answer():
    async def reset(connection: Connection) -> None:
        await connection.read()
        # Closing with a linger of zero sends a reset.
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with pytest.raises(EngineUnreachable, match=r"^backend transport error: ReadError: "):
        await _call_once(reset)


async def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with SGLangEngine(f"http://127.0.0.1:{free.getsockname()[1]}", timeout=600) as engine:
            with pytest.raises(EngineUnreachable, match=r"^backend transport error: ConnectError: .+"):
                await engine.call(_call())


async def test_an_engine_that_takes_no_connections_is_given_up(clock):
    raised = trio.Event()
    with socket.socket() as listener, trio.fail_after(PATIENCE):
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        async with SGLangEngine(f"http://{host}:{port}", timeout=600) as engine, trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(EngineUnreachable, match=r"^backend transport error: ConnectTimeout: "):
                    await engine.call(_call())
                raised.set()

            # Whoever connects first fills the backlog.
            async with await trio.open_tcp_stream(host, port):
                nursery.start_soon(call)
                await wait_all_tasks_blocked()
                clock.jump(5)
                await wait_all_tasks_blocked()
                assert not raised.is_set()
                clock.jump(5)
                await raised.wait()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"])
async def test_an_engine_that_takes_too_long_is_given_up_and_told_so(clock, sent):
    hanging, gone = trio.Event(), trio.Event()

    async def hang(connection: Connection) -> None:
        hanging.set()
        await connection.until_closed()
        gone.set()

    async with serving(_once(sent, hang), patience=PATIENCE) as server, SGLangEngine(server.url, timeout=7.5) as engine:
        async with trio.open_nursery() as nursery:

            async def call():
                with pytest.raises(EngineTimedOut) as caught:
                    await engine.call(_call())
                assert str(caught.value) == (
                    "backend transport error: ReadTimeout: the engine did not answer within 7.5 s"
                )

            nursery.start_soon(call)
            await hanging.wait()
            clock.jump(7.5)
        await gone.wait()


async def test_a_timeout_is_for_the_whole_call_not_for_each_read(clock):
    """An engine that sends a byte now and then does not hold a turn for ever."""
    sends = trio.open_memory_channel[None](0)

    async def drip(connection: Connection) -> None:
        await connection.read()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        async for _ in sends[1]:
            await connection.send(b"x")

    async with serving(drip, patience=PATIENCE) as server, SGLangEngine(server.url, timeout=10) as engine:
        async with trio.open_nursery() as nursery:

            async def call():
                with pytest.raises(EngineUnreachable, match="within 10 s"):
                    await engine.call(_call())

            nursery.start_soon(call)
            for _ in range(5):
                await sends[0].send(None)
                clock.jump(2)
        sends[0].close()


# -- connections ------------------------------------------------------------------------------------------------------


async def test_one_connection_serves_many_turns():
    async with serving(response()) as server, SGLangEngine(server.url, timeout=600) as engine:
        for _ in range(5):
            await engine.call(_call())
        assert (server.connections, len(server.requests)) == (1, 5)


async def test_a_connection_that_an_engine_may_be_about_to_close_is_not_used(clock):
    """Most of them close what is idle for five seconds."""
    async with serving(response(), patience=PATIENCE) as server, SGLangEngine(server.url, timeout=600) as engine:
        for seconds, connections in ((0, 1), (3, 1), (4, 2)):
            clock.jump(seconds)
            await engine.call(_call())
            assert server.connections == connections


async def test_leaving_the_engine_closes_its_connections():
    closed = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(response())
        await connection.until_closed()
        closed.set()

    async with serving(handler) as server:
        with trio.CancelScope() as scope:
            async with SGLangEngine(server.url, timeout=600) as engine:
                await engine.call(_call())
                # Also when the block is left by cancellation.
                scope.cancel()
                await trio.sleep_forever()
        await closed.wait()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_cancelled_call_closes_its_connection_at_once(sent):
    hanging, gone = trio.Event(), trio.Event()

    async def hang(connection: Connection) -> None:
        hanging.set()
        await connection.until_closed()
        gone.set()

    async with serving(_once(sent, hang)) as server, SGLangEngine(server.url, timeout=600) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.call, _call())
            await hanging.wait()
            nursery.cancel_scope.cancel()
        # The engine is still in use: nothing but the cancelled call can have closed it.
        await gone.wait()
        assert server.connections == 1


async def test_a_cancelled_call_does_not_disturb_others_of_its_session():
    waiting = trio.open_memory_channel[tuple[Connection, trio.Event]](10)

    async def handler(connection: Connection) -> None:
        while await connection.read() is not None:
            go = trio.Event()
            await waiting[0].send((connection, go))
            await go.wait()
            await connection.send(response(b"1"))

    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        answers = []
        doomed = trio.CancelScope()

        async def call(scope):
            with scope:
                answers.append((await engine.call(_call())).body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, doomed)
            _, first = await waiting[1].receive()
            nursery.start_soon(call, trio.CancelScope())
            _, second = await waiting[1].receive()
            doomed.cancel()
            await wait_all_tasks_blocked()
            first.set()
            second.set()
        assert answers == [b"1"]
        # And the next call finds the connection that is left.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, trio.CancelScope())
            _, third = await waiting[1].receive()
            third.set()
        assert answers == [b"1", b"1"]
        assert server.connections == 2


async def test_an_idle_connection_that_the_engine_has_closed_is_not_used_again():
    closed = [trio.Event(), trio.Event()]
    numbers = itertools.count()

    async def close_after_one(connection: Connection) -> None:
        await connection.read()
        await connection.send(response(b"1"))
        await connection.stream.aclose()
        closed[next(numbers)].set()

    async with serving(close_after_one) as server, SGLangEngine(server.url, timeout=600) as engine:
        for event in closed:
            assert (await engine.call(_call())).body == b"1"
            await event.wait()
        assert server.connections == 2


async def test_a_request_that_the_engine_may_have_read_is_not_sent_again():
    """Sampling twice for one turn is worse than a 502: the agent decides whether to repeat it."""
    read = []

    async def cut_the_second(connection: Connection) -> None:
        read.append(await connection.read())
        await connection.send(response(b"1"))
        read.append(await connection.read())

    async with serving(cut_the_second) as server, SGLangEngine(server.url, timeout=600) as engine:
        assert (await engine.call(_call())).body == b"1"
        with pytest.raises(EngineUnreachable, match="Server disconnected without sending a response"):
            await engine.call(_call())
        assert (server.connections, len(read)) == (1, 2)
        assert (await engine.call(_call())).body == b"1"


async def test_a_connection_that_the_engine_wants_closed_is_closed():
    async with (
        serving(_once(response(headers=(("connection", "close"),)), Connection.until_closed)) as server,
        SGLangEngine(server.url, timeout=600) as engine,
    ):
        for _ in range(2):
            await engine.call(_call())
        assert server.connections == 2


async def test_hundreds_of_calls_are_in_flight_at_once():
    calls = 200
    arrived = itertools.count(1)
    everybody = trio.Event()

    async def handler(connection: Connection) -> None:
        request = await connection.read()
        if next(arrived) == calls:
            everybody.set()
        await everybody.wait()
        await connection.send(response(request.body))

    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        answers = {}

        async def call(number):
            answers[number] = (await engine.call(_call(body=b"%d" % number, session_id=f"s{number % 50}"))).body

        async with trio.open_nursery() as nursery:
            for number in range(calls):
                nursery.start_soon(call, number)
    assert answers == {number: b"%d" % number for number in range(calls)}
    assert server.connections == calls


# -- streams ----------------------------------------------------------------------------------------------------------


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_stream_is_handed_on_piece_by_piece_and_its_connection_used_again():
    taken, seen = [], trio.Event()

    async def handler(connection: Connection) -> None:
        while await connection.read() is not None:
            await connection.send(CHUNKED + _chunk(b"a"))
            await seen.wait()
            await connection.send(_chunk(b"b") + _chunk(b""))

    async def take(piece: bytes) -> None:
        taken.append(piece)
        seen.set()

    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        for _ in range(2):
            answer = await engine.stream(_call(), take)
            assert (answer.status, answer.body) == (200, b"")
        assert server.connections == 1
    assert b"".join(taken) == b"abab"


@pytest.mark.parametrize("status", [204, 400, 429, 500])
async def test_only_a_200_is_handed_on(status):
    body = b"" if status == 204 else b"no"
    taken: list[bytes] = []

    async def take(piece: bytes) -> None:
        taken.append(piece)

    async with (
        serving(response(body, status=f"{status} X")) as server,
        SGLangEngine(server.url, timeout=600) as engine,
    ):
        answer = await engine.stream(_call(), take)
    assert (answer.status, answer.body, taken) == (status, body, [])


async def test_whoever_takes_a_stream_may_give_it_up():
    gone = trio.Event()

    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(CHUNKED + _chunk(b"a"))
        await connection.until_closed()
        gone.set()

    async def take(_: bytes) -> None:
        raise BadEngineAnswer("enough")

    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        with pytest.raises(BadEngineAnswer, match="enough"):
            await engine.stream(_call(), take)
        await gone.wait()


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (CHUNKED + _chunk(b"x" * LIMIT) + _chunk(b"x"), "AnswerTooLarge"),
        (response(b"x" * (LIMIT + 1)), "AnswerTooLarge"),
        (CHUNKED + _chunk(b"x"), "RemoteProtocolError"),
        (response(gzip.compress(b"x"), headers=(("content-encoding", "gzip"),)), "DecodingError"),
    ],
    # What gzip writes tells the time, and names of tests must not.
    ids=["too large in chunks", "too large at once", "cut off", "compressed"],
)
async def test_a_stream_that_is_no_answer(sent, kind):
    async def take(piece: bytes) -> None:
        assert piece.strip(b"x") == b""

    async with (
        serving(_once(sent)) as server,
        SGLangEngine(server.url, timeout=600, max_answer_bytes=LIMIT) as engine,
    ):
        with pytest.raises(EngineUnreachable, match=f"^backend transport error: {kind}: "):
            await engine.stream(_call(), take)


async def test_a_stream_has_to_end_in_time(clock):
    async def handler(connection: Connection) -> None:
        await connection.read()
        await connection.send(CHUNKED)
        while True:
            await connection.send(_chunk(b"x"))
            await wait_all_tasks_blocked(0.01)
            clock.jump(30)

    async def take(_: bytes) -> None:
        pass

    async with serving(handler, patience=PATIENCE) as server, SGLangEngine(server.url, timeout=100) as engine:
        with pytest.raises(EngineUnreachable, match="the engine did not answer within 100 s"):
            await engine.stream(_call(), take)
