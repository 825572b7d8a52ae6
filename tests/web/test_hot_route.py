"""Turns are answered in front of Quart: as by it, and what is sent for them is whole."""

from __future__ import annotations

import json

import pytest
import trio

from tests.web.support import CHAT, RawConnection, Serve, Served, Session, compact, settle, tasks, until, user
from trio_sessions.core.samples import decode_samples
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.testing.engine import ScriptedEngine, chat_answer

BODY = compact({"messages": [user("a")]})

HINT = b"turns go to /sessions/{id}/v1/..., and POST /sessions makes a session"


def request(line: str, body: bytes = BODY, *headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def plain(text: bytes, status: int = 200) -> EngineAnswer:
    return EngineAnswer(status=status, headers=(("content-type", "text/plain"),), body=text)


@pytest.mark.parametrize("target", ["http://x{path}/" + CHAT, "/{path}/" + CHAT, "///{path}/" + CHAT])
async def test_a_target_is_read_as_by_the_other_routes(served: Served, session: Session, target: str) -> None:
    async with await served.connect() as connection:
        await connection.send(request(f"POST {target.format(path=session.path)}"))
        assert (await connection.response()).status == 200
    assert len(await session.records()) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_another_method_is_no_turn(served: Served, session: Session, method: str) -> None:
    async with session.unchanged(), await served.connect() as connection:
        await connection.send(request(f"{method} {session.path}/{CHAT}"))
        assert (await connection.response()).status == 404


async def test_an_engine_that_has_no_content_is_passed_through_as_that(serve: Serve) -> None:
    served = await serve(ScriptedEngine(otherwise=plain(b"", 204)))
    session = await served.session()
    async with session.unchanged(), await served.connect() as connection:
        for _ in range(2):
            await connection.send(request(f"POST {session.path}/{CHAT}"))
            response = await connection.response()
            assert (response.status, response.all("content-length")) == (204, [])


async def test_no_session_is_no_turn(served: Served) -> None:
    async with await served.connect() as connection:
        await connection.send(request(f"POST /sessions//{CHAT}"))
        response = await connection.response()
    assert (response.status, response.body) == (
        404,
        b'{"error":"not found: POST /sessions//%b; %b"}' % (CHAT.encode(), HINT),
    )


class TestHeads:
    """The head of an answer is sent together with the beginning of its body."""

    @pytest.mark.parametrize(
        "text", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-injected: 1\r\n\r\nhi", b"HTTP/1.1 2"]
    )
    async def test_a_body_that_looks_like_one_is_a_body(self, serve: Serve, text: bytes) -> None:
        served = await serve(ScriptedEngine(otherwise=plain(text)))
        session = await served.session()
        async with await served.connect() as connection:
            for _ in range(2):
                await connection.send(request(f"GET {session.path}/version", b""))
                response = await connection.response()
                assert (response.body, response.all("x-injected")) == (text, [])

    async def test_so_is_that_of_a_turn_that_failed(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(otherwise=plain(b"HTTP/1.1 503 upstream said no", 503)))
        session = await served.session()
        async with await served.connect() as connection:
            await connection.send(request(f"POST {session.path}/{CHAT}"))
            response = await connection.response()
        assert (response.status, response.body) == (503, b"HTTP/1.1 503 upstream said no")

    async def test_of_many_requests_at_once(self, served: Served, session: Session) -> None:
        turn, get = request(f"POST {session.path}/{CHAT}"), request(f"GET {session.path}", b"")
        head, delete = request(f"HEAD {session.path}", b""), request(f"DELETE {session.path}", b"")
        async with await served.connect() as connection:
            await connection.send(turn + get + head + turn + get + delete + get + turn)
            statuses = [(await connection.response(to=to)).status for to in ("", "", "HEAD", "", "", "", "", "")]
        assert statuses == [200, 200, 200, 200, 200, 204, 404, 404]

    async def test_behind_an_interim_response(self, served: Served, session: Session) -> None:
        async with await served.connect() as connection:
            await connection.send(
                f"POST {session.path}/{CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                "transfer-encoding: chunked\r\n\r\n".encode()
            )
            assert await connection.interim() == b"HTTP/1.1 100 "
            await connection.send(b"%x\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(BODY), BODY))
            assert (await connection.response()).status == 200

    @pytest.mark.parametrize("raw", [b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n"])
    async def test_of_what_is_no_request(self, served: Served, raw: bytes) -> None:
        async with await served.connect() as connection:
            await connection.send(raw)
            assert (await connection.response()).status == 400


async def small_receiver(port: int) -> trio.SocketStream:
    """A client that takes little at a time."""
    sock = trio.socket.socket()
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 65536)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


class TestStreamedRecords:
    async def several_turns(self, serve: Serve) -> Session:
        served = await serve(ScriptedEngine(otherwise=chat_answer("x" * 400_000, token_ids=[1, 257])))
        session = await served.session()
        messages = []
        for number in range(6):
            messages += [user(str(number))]
            messages += [await session.turn(*messages)]
        return session

    async def test_they_come_in_pieces_none_of_which_is_large(self, serve: Serve) -> None:
        payload = {"routed_experts": "A" * 5_000_000}
        served = await serve(ScriptedEngine(otherwise=chat_answer("x", meta_info=payload)))
        session = await served.session()
        await session.turn(user("a"))
        described = await served.gateway.inspector.describe(served.gateway.registry.in_memory(session.id))
        sizes = [len(piece) async for piece in described]
        assert sum(sizes) > 5_000_000
        assert max(sizes) <= 2**20

    async def test_a_slow_reader_gets_all_of_them_though_the_session_is_deleted(self, serve: Serve) -> None:
        session = await self.several_turns(serve)
        expected = await session.state()
        stream = await small_receiver(session.served.port)
        async with RawConnection(stream) as connection:
            await connection.send(request(f"GET {session.path}", b""))
            await stream.receive_some(1)
            await session.delete()
            await settle()
            # One byte of the head is gone.
            connection.unread(b"H")
            assert (await connection.response()).body == expected

    @pytest.mark.parametrize("what", ["GET", "samples"])
    @pytest.mark.parametrize("how", ["close", "half"])
    async def test_one_that_vanishes_leaves_nothing_behind(self, serve: Serve, what: str, how: str) -> None:
        session = await self.several_turns(serve)
        await settle()
        before = tasks()
        for _ in range(4):
            async with await small_receiver(session.served.port) as stream:
                line = f"GET {session.path}" if what == "GET" else f"POST {session.path}/samples"
                await stream.send_all(request(line, b""))
                await stream.receive_some(500)
                if how == "half":
                    await stream.send_eof()
                    await settle()
        await until(lambda: tasks() <= before)
        assert (await session.served.client.get("/health")).status_code == 200


async def test_samples_say_how_long_they_are(serve: Serve) -> None:
    served = await serve(
        ScriptedEngine(otherwise=chat_answer("x" * 400_000, token_ids=[1] * 100_000 + [257])), mode="tree"
    )
    session = await served.session()
    await session.turn(user("a"))
    async with await served.connect() as connection:
        await connection.send(request(f"POST {session.path}/samples", b""))
        response = await connection.response()
    assert response.all("content-length") == [b"%d" % len(response.body)]
    assert len(decode_samples(response.body).samples[0].tokens) > 100_000


class TestKnownPrefix:
    """What a client sends again is known by its bytes, and is still what it sent."""

    said, more = '{"role":"assistant","content":"ok"}', '{"role":"user","content":"b"}'

    async def test_in_another_order_of_keys_it_is_passed_on_in_that_order(self, served: Served) -> None:
        session = await served.session()
        first, again = '{"role":"user","content":"a"}', '{"content":"a","role":"user"}'
        rest = f"{self.said},{self.more}"
        for messages in (f"[{first}]", f"[{again},{rest}]", f"[{again},{rest},{rest}]"):
            assert (await session.post(b'{"messages":%b}' % messages.encode())).status_code == 200
            assert b'"messages":%b' % messages.encode() in served.engine.calls[-1].body

    async def test_and_rendered_in_that_order_under_a_new_root(self, serve: Serve) -> None:
        asked = []
        for space in ("", " "):
            served = await serve(mode="tree", on_tools_change="branch")
            session = await served.session()
            first = '{"role":"user","content":[{"type":"text","text":"a"}]}'
            again = '{"role":"user","content":[{"text":"a","type":"text"}]}'
            rest, tools = f"{self.said},{self.more}", '"tools":[{"type":"function","function":{"name":"f"}}]'
            for body in (
                f'{{"messages":[{first}]}}',
                f'{{"messages":[{again},{rest}]}}',
                # With the space the bytes are not those that were sent before.
                f'{{"messages":[{space}{again},{rest},{rest}],{tools}}}',
            ):
                assert (await session.post(body.encode())).status_code == 200
            asked.append(json.loads(served.engine.calls[-1].body)["input_ids"])
        assert asked[0] == asked[1]

    async def test_white_space_is_not_kept(self, served: Served) -> None:
        session = await served.session()
        of = served.gateway.registry.in_memory(session.id)
        assert (await session.post(b'{"messages":[%b]}' % self.more.encode())).status_code == 200
        assert of.sent is not None
        spaced = b'{"messages":[%b%b,%b,%b]}' % (
            self.more.encode(),
            b" " * 2**20,
            self.said.encode(),
            self.more.encode(),
        )
        assert (await session.post(spaced)).status_code == 200
        assert of.sent is None
