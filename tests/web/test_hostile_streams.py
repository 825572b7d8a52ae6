"""Clients that open a stream and read nothing of it: they hold up nobody."""

from __future__ import annotations

import json
import socket

import pytest
import trio

from tests.web.support import Serve, until
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine

# What begins the stream repeats it, and is more than fits between the two ends of a connection.
BODY = json.dumps({"input": "hi", "metadata": {"note": "x" * 20_000_000}, "stream": True}).encode()


@pytest.mark.parametrize("end", ["drain", "delete", "deadline"])
async def test_a_turn_ends_although_its_client_reads_nothing(serve: Serve, end: str) -> None:
    settings = {"session_deadline": 2.0} if end == "deadline" else {"on_delete": "cancel"}
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), stream_grace=0.0, **settings)
    session = await served.session()
    connection = trio.socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", served.port))
    async with trio.SocketStream(connection) as stream:
        head = f"POST {session.path}/v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n"
        await stream.send_all(head.encode() + BODY)
        await until(lambda: bool(held.waiting))
        await trio.sleep(0.3)
        if end == "delete":
            await session.delete()
        # A drain returns when no turn runs any more; with this one it has to be the grace that ends it.
        with trio.move_on_after(6) as waiting:
            if end != "drain":
                await until(lambda: served.engine.in_flight == 0)
                await trio.sleep(0.2)
            await served.gateway.registry.drain(grace=0.2 if end == "drain" else 60.0)
    assert not waiting.cancelled_caught, "the turn still runs"
