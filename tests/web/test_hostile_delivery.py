"""Who received an answer: one that was sent to its end before its client left is delivered."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest
import trio

from tests.web.support import CHAT, Serve, Session, settle, user
from tests.web.test_retries import KEY
from trio_sessions.testing.engine import ScriptedEngine, chat_answer

BODY = json.dumps({"messages": [user("hi")]}).encode()
STREAM = json.dumps({"messages": [user("hi")], "stream": True}).encode()


def request(session: Session, headers: str = "", *, version: str = "1.1", body: bytes = BODY) -> bytes:
    head = f"POST {session.path}/{CHAT} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@pytest.mark.parametrize(("version", "headers"), [("1.1", "connection: close\r\n"), ("1.0", "")])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_connection_that_the_server_closes_behind_the_answer_lost_nothing(
    serve: Serve, version: str, headers: str, body: bytes
) -> None:
    session = await (await serve()).session()
    async with await trio.open_tcp_stream("127.0.0.1", session.served.port) as stream:
        await stream.send_all(request(session, headers, version=version, body=body))
        received = b"".join([piece async for piece in stream])
    assert b'"ok"' in received
    await settle()
    assert "undelivered" not in await session.metadata()


async def test_a_client_that_leaves_as_soon_as_it_has_the_answer_lost_nothing(serve: Serve) -> None:
    session = await (await serve(mode="tree")).session()

    def ask_and_leave() -> None:
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", session.served.port)) as connection:
                connection.sendall(request(session))
                received = b""
                while b'"usage"' not in received:
                    received += connection.recv(65536)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.to_thread.run_sync, ask_and_leave)
    await settle()
    assert (await session.metadata()).get("undelivered", []) == []


async def test_answers_of_pipelined_requests_that_were_read_are_delivered(serve: Serve) -> None:
    session = await (await serve(mode="tree")).session()
    async with await session.served.connect() as connection:
        await connection.send(request(session) * 2)
        for _ in range(2):
            assert (await connection.response()).status == 200
    await settle()
    assert not [node for node in (await session.metadata())["tree"]["nodes"] if node.get("undelivered")]


async def test_a_repetition_that_is_lost_does_not_take_back_that_the_first_was_delivered(serve: Serve) -> None:
    # More than fits between the two ends of a connection.
    large: dict[str, Any] = {"role": "assistant", "content": "x" * 8_000_000}
    session = await (await serve(ScriptedEngine(chat_answer("ok", message=large)))).session()
    first = await session.chat(user("hi"), headers=KEY)
    assert len(first.content) > 8_000_000
    stream = await trio.open_tcp_stream("127.0.0.1", session.served.port)
    await stream.send_all(request(session, "idempotency-key: k\r\n"))
    await stream.receive_some(100)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
    await settle()
    assert "undelivered" not in await session.metadata()
