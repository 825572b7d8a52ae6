"""Headers across the gateway, and the engine's connection, with the engine behind a real port."""

from __future__ import annotations

import gzip
import re
import zlib

import pytest
import trio

from tests.raw_server import ReceivedRequest
from tests.web.support import (
    CHAT,
    LIMIT_SECONDS,
    RawResponse,
    Serve,
    Served,
    Session,
    assert_error,
    compact,
    error_text,
    until,
    user,
)
from tests.web.wire_engine import WireEngine, response
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.testing.engine import chat_answer

BODY = compact({"messages": [user("hi")]})
BODY_HEADERS = f"Content-Length: {len(BODY)}\r\n\r\n".encode()


async def raw_turn(session: Session, *headers: str) -> RawResponse:
    """A turn with exactly these headers beside host and content-length."""
    lines = "".join(f"{header}\r\n" for header in headers).encode("latin-1")
    async with await session.served.connect() as connection:
        await connection.send(
            f"POST {session.path}/{CHAT} HTTP/1.1\r\nHost: gateway.example\r\n".encode() + lines + BODY_HEADERS + BODY
        )
        return await connection.response()


async def received(over_http: Served, wire: WireEngine, *headers: str) -> tuple[Session, ReceivedRequest]:
    """What the engine got for such a turn."""
    session = await over_http.session()
    assert (await raw_turn(session, *headers)).status == 200
    return session, wire.requests[-1]


class TestToTheEngine:
    async def test_client_headers_are_forwarded(self, over_http: Served, wire: WireEngine) -> None:
        _, request = await received(
            over_http,
            wire,
            "Authorization: Bearer k",
            "X-Request-Id: r-1",
            "User-Agent: agent/1",
            "Content-Type: application/json; charset=utf-8",
            "Cookie: a=b; c=d",
            "Accept: application/json",
            "X-Empty:",
        )
        for name, value in [
            ("authorization", "Bearer k"),
            ("x-request-id", "r-1"),
            ("user-agent", "agent/1"),
            ("content-type", "application/json; charset=utf-8"),
            ("cookie", "a=b; c=d"),
            ("accept", "application/json"),
            ("x-empty", ""),
        ]:
            assert request.all_of(name) == [value]

    async def test_a_header_that_is_not_ascii_is_forwarded_to_the_byte(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        _, request = await received(over_http, wire, "X-Latin: caf\xe9")
        assert request.all_of("x-latin") == ["caf\xe9"]

    async def test_a_header_that_came_twice_is_forwarded_twice(self, over_http: Served, wire: WireEngine) -> None:
        _, request = await received(over_http, wire, "X-Twice: 1", "X-Other: x", "x-twice: 2")
        assert request.all_of("x-twice") == ["1", "2"]

    async def test_what_a_connection_header_names_stays_on_that_connection(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        _, request = await received(over_http, wire, "Connection: keep-alive, X-Hop", "X-Hop: 1", "X-End: 1")
        assert (request.all_of("x-hop"), request.all_of("x-end")) == ([], ["1"])

    async def test_host_and_content_length_are_those_of_our_request(self, over_http: Served, wire: WireEngine) -> None:
        _, request = await received(over_http, wire)
        assert request.all_of("host") == [wire.url.removeprefix("http://")]
        assert request.all_of("content-length") == [str(len(request.body))]
        assert request.all_of("transfer-encoding") == []
        assert len(request.body) > len(BODY)

    async def test_transfer_encoding_is_dropped(self, over_http: Served, wire: WireEngine) -> None:
        session = await over_http.session()
        async with await over_http.connect() as connection:
            await connection.send(
                f"POST {session.path}/{CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
                + f"{len(BODY):x}\r\n".encode()
                + BODY
                + b"\r\n0\r\n\r\n"
            )
            assert (await connection.response()).status == 200
        assert wire.requests[0].all_of("transfer-encoding") == []
        assert wire.requests[0].all_of("content-length") == [str(len(wire.requests[0].body))]

    async def test_headers_of_the_clients_connection_are_not_the_engines(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        _, request = await received(
            over_http, wire, "Connection: close", "Keep-Alive: timeout=1", "TE: trailers", "Expect: 100-continue"
        )
        assert request.all_of("connection") in ([], ["keep-alive"])
        for name in ("keep-alive", "te", "expect"):
            assert request.all_of(name) == []

    async def test_the_routing_key_is_the_session(self, over_http: Served, wire: WireEngine) -> None:
        session, request = await received(over_http, wire)
        assert request.all_of("X-SMG-Routing-Key") == [session.id]
        assert "X-SMG-Routing-Key" in dict(request.headers)

    async def test_a_routing_key_of_the_client_is_replaced(self, over_http: Served, wire: WireEngine) -> None:
        session, request = await received(
            over_http, wire, "X-SMG-Routing-Key: mine", "x-smg-routing-key: mine", "X-Smg-Routing-Key: mine"
        )
        assert request.all_of("X-SMG-Routing-Key") == [session.id]

    @pytest.mark.parametrize("path", ["v1/models", "tokenize"])
    async def test_every_engine_call_has_the_routing_key(self, over_http: Served, wire: WireEngine, path: str) -> None:
        session = await over_http.session()
        await over_http.client.post(f"{session.path}/{path}", headers={"x-smg-routing-key": "mine"})
        assert wire.requests[0].all_of("x-smg-routing-key") == [session.id]

    async def test_turn_after_turn_is_sent_over_one_connection_each_to_its_own_prompt(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        session = await over_http.session()
        answer = await session.turn(user("hi"))
        await session.turn(user("hi"), answer, user("more"))
        first, second = (request.json()["input_ids"] for request in wire.requests)
        assert second[: len(first)] == first


class TestFromTheEngine:
    async def answered(self, over_http: Served, wire: WireEngine, *headers: tuple[str, str]) -> RawResponse:
        wire.script.append(response(headers=[("content-type", "application/json"), *headers]))
        return await raw_turn(await over_http.session())

    async def test_response_headers_are_passed_on(self, over_http: Served, wire: WireEngine) -> None:
        answer = await self.answered(
            over_http,
            wire,
            ("X-Request-Id", "r"),
            ("X-Two", "1"),
            ("X-Two", "2"),
            ("Set-Cookie", "a=b"),
            ("X-Empty", ""),
        )
        assert answer.all("x-request-id") == [b"r"]
        assert answer.all("x-two") == [b"1", b"2"]
        assert answer.all("set-cookie") == [b"a=b"]
        assert answer.all("x-empty") == [b""]

    async def test_a_header_that_is_not_ascii_is_passed_on_to_the_byte(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        answer = await self.answered(over_http, wire, ("X-Latin", "caf\xe9"))
        assert answer.all("x-latin") == [b"caf\xe9"]

    async def test_what_the_engines_connection_header_names_is_not_passed_on(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        answer = await self.answered(over_http, wire, ("Connection", "X-Hop"), ("X-Hop", "1"), ("X-End", "1"))
        assert (answer.all("x-hop"), answer.all("x-end")) == ([], [b"1"])

    async def test_there_is_one_server_and_one_date_and_they_are_ours(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        answer = await self.answered(over_http, wire, ("Server", "engine/1"), ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"))
        assert len(answer.all("server")) == len(answer.all("date")) == 1
        assert answer.all("server") != [b"engine/1"]
        assert b"1970" not in answer.all("date")[0]

    async def test_every_route_has_one_server_and_one_date(self, served: Served) -> None:
        session = await served.session()
        for line in ("GET /health", f"GET {session.path}", "GET /nope", f"DELETE {session.path}"):
            async with await served.connect() as connection:
                await connection.send(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answer = await connection.response()
            assert len(answer.all("server")) == len(answer.all("date")) == 1

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    async def test_an_encoded_body_comes_decoded_and_without_content_encoding(
        self, over_http: Served, wire: WireEngine, encoding: str
    ) -> None:
        body = chat_answer("é").body
        packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        wire.script.append(
            response(200, packed, headers=[("content-type", "application/json"), ("content-encoding", encoding)])
        )
        session = await over_http.session()
        answer = await raw_turn(session, "Accept-Encoding: identity")
        assert answer.body == body
        assert answer.all("content-encoding") == []
        assert answer.all("content-length") == [str(len(body)).encode()]
        assert answer.all("transfer-encoding") == []

    async def test_a_chunked_answer_comes_with_its_length(self, over_http: Served, wire: WireEngine) -> None:
        body = chat_answer("é").body
        half = len(body) // 2
        chunks = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (body[:half], body[half:], b""))
        wire.script.append(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
        )
        answer = await raw_turn(await over_http.session())
        assert (answer.status, answer.body) == (200, body)
        assert answer.all("transfer-encoding") == []

    @pytest.mark.parametrize("name", ["Connection", "Keep-Alive", "Upgrade", "Trailer"])
    async def test_headers_of_the_engines_connection_are_not_the_clients(
        self, over_http: Served, wire: WireEngine, name: str
    ) -> None:
        answer = await self.answered(over_http, wire, (name, "x-foreign"))
        assert b"x-foreign" not in answer.all(name.lower())

    async def test_a_cookie_of_one_session_is_not_sent_for_another(self, over_http: Served, wire: WireEngine) -> None:
        wire.otherwise = response(headers=[("content-type", "application/json"), ("Set-Cookie", "route=a; Path=/")])
        # Enough sessions that two of them share a connection pool.
        for _ in range(40):
            await raw_turn(await over_http.session())
        assert [request.all_of("cookie") for request in wire.requests] == [[]] * 40

    async def test_a_turn_sends_no_cookie_but_the_clients(self, over_http: Served, wire: WireEngine) -> None:
        wire.otherwise = response(headers=[("content-type", "application/json"), ("Set-Cookie", "route=a; Path=/")])
        session = await over_http.session()
        for _ in range(2):
            await raw_turn(session, "Cookie: mine=1")
        assert [request.all_of("cookie") for request in wire.requests] == [["mine=1"]] * 2

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_non_200_keeps_its_bytes_and_headers(
        self, over_http: Served, wire: WireEngine, stream: bool
    ) -> None:
        wire.script.append(response(503, b"busy  \n", headers=[("Content-Type", "text/x"), ("Retry-After", "3")]))
        session = await over_http.session()
        async with session.unchanged():
            answer = await session.chat(user("hi"), stream=stream)
        assert (answer.status_code, answer.content) == (503, b"busy  \n")
        assert (answer.headers["content-type"], answer.headers["retry-after"]) == ("text/x", "3")

    async def test_an_answer_without_a_content_type_is_not_given_a_wrong_one(
        self, over_http: Served, wire: WireEngine
    ) -> None:
        wire.script.append(response(500, b"not json", headers=[]))
        answer = await raw_turn(await over_http.session())
        assert (answer.status, answer.body) == (500, b"not json")
        assert answer.all("content-type") != [b"application/json"]


class TestUnreachable:
    async def test_nobody_listens(self, serve: Serve) -> None:
        async with SGLangEngine("http://127.0.0.1:1", timeout=LIMIT_SECONDS) as engine:
            session = await (await serve(engine)).session()
            async with session.unchanged():
                response = await session.chat(user("hi"))
        assert re.fullmatch(r"backend transport error: ConnectError: .+", error_text(response, 502))

    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_engine_hangs_up_without_an_answer(
        self, over_http: Served, wire: WireEngine, stream: bool
    ) -> None:
        wire.script.append(b"")
        session = await over_http.session()
        async with session.unchanged():
            text = error_text(await session.chat(user("hi"), stream=stream), 502)
        assert text.startswith("backend transport error: RemoteProtocolError: ")
        # A request that was written may have been served, so it is not sent again.
        assert len(wire.requests) == 1

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(b"connection: close\r\ncontent-length: 1000\r\n\r\n{", id="cut-off"),
            pytest.param(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{", id="cut-off-chunk"),
            pytest.param(
                b"connection: close\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
                id="not-gzip",
                # httpx forgets to close a body that it failed to decode, and trio says so.
                marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
            ),
            pytest.param(b"connection: close\r\nno header\r\n\r\n", id="not-http"),
        ],
    )
    async def test_an_answer_that_is_broken(self, over_http: Served, wire: WireEngine, answer: bytes) -> None:
        wire.script.append(b"HTTP/1.1 200 OK\r\n" + answer)
        session = await over_http.session()
        async with session.unchanged():
            text = error_text(await session.chat(user("hi")), 502)
        assert text.startswith("backend transport error: ")
        await session.turn(user("hi"))

    async def test_the_engine_takes_too_long(self, serve: Serve, wire: WireEngine) -> None:
        wire.held = trio.Event()
        async with SGLangEngine(wire.url, timeout=0.1) as engine:
            session = await (await serve(engine)).session()
            async with session.unchanged():
                response = await session.chat(user("hi"))
        assert_error(response, 502, "backend transport error: ReadTimeout: the engine did not answer within 0.1 s")
        await until(lambda: wire.disconnects == 1)


async def test_a_vanished_client_closes_its_engine_connection(over_http: Served, wire: WireEngine) -> None:
    wire.held = trio.Event()
    session = await over_http.session()
    async with session.unchanged():
        async with await over_http.connect() as connection:
            await connection.send(f"POST {session.path}/{CHAT} HTTP/1.1\r\nHost: x\r\n".encode() + BODY_HEADERS + BODY)
            await until(lambda: len(wire.requests) == 1)
        await until(lambda: wire.disconnects == 1)


async def test_a_vanished_client_of_the_proxy_closes_its_engine_connection(over_http: Served, wire: WireEngine) -> None:
    wire.held = trio.Event()
    session = await over_http.session()
    async with await over_http.connect() as connection:
        await connection.send(f"GET {session.path}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until(lambda: len(wire.requests) == 1)
    await until(lambda: wire.disconnects == 1)
