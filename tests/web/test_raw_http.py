"""HTTP/1 as it is seldom spoken: garbage, pipelining, odd methods, odd framing, old versions."""

from __future__ import annotations

import json

import pytest

from tests.web.support import CHAT, RawResponse, Served, Session, compact, settle, user
from trio_sessions.testing.engine import chat_answer

BODY = compact({"messages": [user("hi")]})
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def request(line: str, *headers: str, body: bytes | None = None) -> bytes:
    """A request, with a content-length only if it has a body."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    head = "\r\n".join((f"{line} HTTP/1.1", "Host: x", *headers, *length))
    return head.encode("latin-1") + b"\r\n\r\n" + (body or b"")


async def exchange(served: Served, raw: bytes, *, to: str = "GET") -> RawResponse:
    """The answer to these bytes."""
    async with await served.connect() as connection:
        await connection.send(raw)
        return await connection.response(to=to)


async def assert_alive(served: Served) -> None:
    assert (await exchange(served, HEALTH)).status == 200


GARBAGE = [
    b"\x00\x01\x02\r\n\r\n",
    b"hello\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    b"GET /health\r\n\r\n",
    b"GET /h\xc3\xa9alth HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("raw", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_a_client_error_and_the_connection_ends(served: Served, raw: bytes) -> None:
    async with await served.connect() as connection:
        await connection.send(raw)
        response = await connection.response()
        assert response.status in (400, 414, 431, 501, 505)
        assert response.all("connection") == [b"close"]
        await connection.closed()
    await assert_alive(served)


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n", b"GET", b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_a_request_that_never_ends_is_let_go(served: Served, raw: bytes) -> None:
    async with await served.connect() as connection:
        if raw:
            await connection.send(raw)
        await settle()
    await assert_alive(served)


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}xx0\r\n\r\n",
        b"ffffffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_a_body_with_broken_chunks_is_no_request(served: Served, chunks: bytes) -> None:
    session = await served.session()
    async with session.unchanged(), await served.connect() as connection:
        await connection.send(request(f"POST {session.path}/{CHAT}", "Transfer-Encoding: chunked") + chunks)
        await connection.closed()
    assert served.engine.calls == []
    await assert_alive(served)


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    session = await served.session()
    async with await served.connect() as connection:
        await connection.send(
            HEALTH
            + request("GET /nope")
            + request("POST /sessions", body=b"{}")
            + request(f"POST {session.path}/{CHAT}", body=BODY)
            + request(f"DELETE {session.path}")
            + request(f"GET {session.path}")
            + HEALTH
        )
        assert [(await connection.response()).status for _ in range(7)] == [200, 404, 200, 200, 204, 404, 200]


async def test_pipelined_turns_run_one_after_the_other(served: Served) -> None:
    session = await served.session()
    second = compact({"messages": [user("hi"), {"role": "assistant", "content": "ok"}, user("more")]})
    path = f"POST {session.path}/{CHAT}"
    async with await served.connect() as connection:
        await connection.send(request(path, body=BODY) + request(path, body=second))
        assert [(await connection.response()).status for _ in range(2)] == [200, 200]
    assert len(await session.records()) == 2


@pytest.mark.parametrize("path", ["/health", "/metrics", "/sessions/{id}"])
async def test_head_is_a_get_without_its_body(served: Served, path: str) -> None:
    session = await served.session()
    path = path.format(id=session.id)
    async with await served.connect() as connection:
        await connection.send(request(f"HEAD {path}") + HEALTH)
        head = await connection.response(to="HEAD")
        assert (await connection.response()).status == 200
    got = await exchange(served, request(f"GET {path}"))
    assert head.status == 200
    if path != "/metrics":
        assert head.all("content-length") == got.all("content-length")
        assert head.all("transfer-encoding") == got.all("transfer-encoding")
    assert head.all("content-type") == got.all("content-type")


@pytest.mark.parametrize("path", ["/health", "/sessions", "/sessions/{id}", "/sessions/{id}/" + CHAT])
async def test_options_changes_nothing_and_asks_nobody(served: Served, path: str) -> None:
    session = await served.session()
    async with session.unchanged(), await served.connect() as connection:
        await connection.send(request(f"OPTIONS {path.format(id=session.id)}") + HEALTH)
        options = await connection.response()
        assert options.status in (200, 204)
        assert b"OPTIONS" in options.all("allow")[0]
        assert (await connection.response()).status == 200
    assert served.engine.calls == []


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "X-ODD"])
async def test_an_odd_method_is_405(served: Served, method: str) -> None:
    session = await served.session()
    for path in ("/health", session.path, f"{session.path}/{CHAT}", f"{session.path}/v1/models"):
        assert (await exchange(served, request(f"{method} {path}"))).status == 405
    assert served.engine.calls == []


class TestFraming:
    @pytest.fixture
    async def turn_session(self, served: Served) -> Session:
        return await served.session()

    async def test_without_a_content_length_the_body_is_empty(self, turn_session: Session) -> None:
        async with turn_session.unchanged():
            answer = await exchange(turn_session.served, request(f"POST {turn_session.path}/{CHAT}"))
        assert answer.status == 400
        assert json.loads(answer.body) == {"error": "messages must be a list with at least one message"}

    async def test_a_chunked_body_is_a_body(self, turn_session: Session) -> None:
        chunks = b"".join(b"1;ext=x\r\n" + bytes([byte]) + b"\r\n" for byte in BODY) + b"0\r\nTrailer: x\r\n\r\n"
        async with await turn_session.served.connect() as connection:
            await connection.send(
                request(f"POST {turn_session.path}/{CHAT}", "Transfer-Encoding: chunked"),
                chunks[:50],
                chunks[50:],
                HEALTH,
            )
            assert (await connection.response()).body == chat_answer().body
            assert (await connection.response()).status == 200
        assert len(await turn_session.records()) == 1

    async def test_a_length_beside_chunks_does_not_smuggle_a_request(self, turn_session: Session) -> None:
        smuggled = f"DELETE {turn_session.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        raw = (
            request(f"POST {turn_session.path}/tokenize", "Transfer-Encoding: chunked", "Content-Length: 5")
            + f"{len(smuggled):x}\r\n".encode()
            + smuggled
            + b"\r\n0\r\n\r\n"
        )
        async with turn_session.unchanged():
            answer = await exchange(turn_session.served, raw)
        (call,) = turn_session.served.engine.calls
        assert (answer.status, call.body) == (200, smuggled)

    async def test_a_request_in_single_bytes(self, turn_session: Session) -> None:
        raw = request(f"POST {turn_session.path}/{CHAT}", body=BODY)
        async with await turn_session.served.connect() as connection:
            for index in range(len(raw)):
                await connection.send(raw[index : index + 1])
            assert (await connection.response()).status == 200

    async def test_expect_100_continue_is_told_to_go_on(self, turn_session: Session) -> None:
        raw = request(f"POST {turn_session.path}/{CHAT}", "Expect: 100-continue", body=BODY)
        async with await turn_session.served.connect() as connection:
            await connection.send(raw.removesuffix(BODY))
            assert (await connection.interim()).startswith(b"HTTP/1.1 100")
            await connection.send(BODY)
            assert (await connection.response()).status == 200
            await connection.send(HEALTH)
            assert (await connection.response()).status == 200

    async def test_a_line_end_after_the_body_does_not_harm_the_turn(self, turn_session: Session) -> None:
        raw = request(f"POST {turn_session.path}/{CHAT}", body=BODY)
        assert (await exchange(turn_session.served, raw + b"\r\n")).status == 200
        assert len(await turn_session.records()) == 1

    @pytest.mark.parametrize("status_line", ["GET /health", "GET /nope", "POST /sessions"])
    async def test_connection_close_is_honoured(self, served: Served, status_line: str) -> None:
        async with await served.connect() as connection:
            await connection.send(request(status_line, "Connection: close"))
            await connection.response()
            assert await connection.closed()


class TestHTTP10:
    @pytest.mark.parametrize("host", [b"", b"Host: x\r\n"])
    async def test_it_is_answered_and_the_connection_closed(self, served: Served, host: bytes) -> None:
        async with await served.connect() as connection:
            await connection.send(b"GET /health HTTP/1.0\r\n" + host + b"\r\n")
            assert (await connection.response()).status == 200
            assert await connection.closed()

    async def test_a_turn(self, served: Served) -> None:
        session = await served.session()
        head = f"POST {session.path}/{CHAT} HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        async with await served.connect() as connection:
            await connection.send(head, BODY)
            assert (await connection.response()).body == chat_answer().body
            assert await connection.closed()
        assert len(await session.records()) == 1


class TestUpgrades:
    @pytest.mark.parametrize("path", ["/health", "/sessions", "/sessions/{id}/v1/models"])
    async def test_a_websocket_is_refused(self, served: Served, path: str) -> None:
        session = await served.session()
        raw = request(
            f"GET {path.format(id=session.id)}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        )
        answer = await exchange(served, raw)
        assert 400 <= answer.status < 500
        assert served.engine.calls == []

    @pytest.mark.parametrize("settings", ["AAMAAABkAAQAoAAAAAIAAAAA", "A"])
    async def test_to_http_2_is_answered_in_http_1(self, served: Served, settings: str) -> None:
        upgrade = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", f"HTTP2-Settings: {settings}")
        async with await served.connect() as connection:
            await connection.send(request("GET /health", *upgrade) + HEALTH)
            answers = [await connection.response(), await connection.response()]
        assert [(answer.version, answer.status) for answer in answers] == [("HTTP/1.1", 200)] * 2

    async def test_http_2_by_prior_knowledge_is_refused(self, served: Served) -> None:
        """One connection of it could have any number of requests that take nothing of their answers."""
        async with await served.connect() as connection:
            await connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            answer = await connection.response()
            assert (answer.status, json.loads(answer.body)) == (505, {"error": "HTTP/2 is not served; use HTTP/1.1"})
            assert await connection.closed()

    async def test_an_upgrade_to_http_2_with_a_body_is_answered_in_http_1(self, served: Served) -> None:
        session = await served.session()
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
        answer = await exchange(served, request(f"POST {session.path}/{CHAT}", *upgrade, body=BODY))
        assert (answer.version, answer.status, answer.body) == ("HTTP/1.1", 200, chat_answer().body)
