"""Connections that break leave nothing behind: no task, no socket, whatever was asked over them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
import trio

from tests.web.support import CHAT, Serve, Session, settle, tasks, user
from trio_sessions.testing.engine import ScriptedEngine, chat_answer


def records(session: Session) -> bytes:
    return f"GET {session.path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def turn(session: Session, *, stream: bool = False) -> bytes:
    body = json.dumps({"messages": [user("hi")], "stream": stream}).encode()
    head = f"POST {session.path}/{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream(session: Session) -> bytes:
    return turn(session, stream=True)


async def deaf_client(port: int) -> trio.SocketStream:
    """A connection whose client takes a few kilobytes and no more."""
    connecting = trio.socket.socket()
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await connecting.connect(("127.0.0.1", port))
    return trio.SocketStream(connecting)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("request_of", [records, turn, stream], ids=["records", "turn", "stream"])
async def test_a_client_that_reads_nothing_and_goes_leaves_nothing(
    serve: Serve, request_of: Callable[[Session], bytes], times: int
) -> None:
    # More than fits between the two ends of a connection, so that the answer is stuck when its client goes; with more
    # requests behind it, which the server has read and not begun.
    large = {"role": "assistant", "content": "x" * 400_000}
    session = await (await serve(ScriptedEngine(chat_answer("ok", message=large)), mode="tree")).session()
    await session.chat(user("hi"))
    await settle()
    before = tasks()
    client = await deaf_client(session.served.port)
    await client.send_all(request_of(session) * times)
    while tasks() == before:
        await settle()
    await settle()
    # What it has not read makes the kernel reset the connection.
    await client.aclose()
    # The fixture bounds the wait.
    while tasks() > before:
        await settle()
