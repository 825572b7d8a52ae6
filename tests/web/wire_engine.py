"""An engine on a real port that keeps every request as it came and answers bytes that a test wrote."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from tests.raw_server import Connection, ReceivedRequest, serving
from tests.raw_server import response as raw_response
from trio_sessions.testing.engine import chat_answer

__all__ = ["WireEngine", "response", "wire_engine"]


def response(
    status: int = 200,
    body: bytes | None = None,
    *,
    headers: Iterable[tuple[str, str]] = (("content-type", "application/json"),),
) -> bytes:
    """A whole response; by default a usable chat completion."""
    body = chat_answer().body if body is None else body
    return raw_response(body, status=f"{status} X", headers=tuple(headers))


class WireEngine:
    """Answers ``script`` in order, then ``otherwise``; an empty answer closes the connection.

    Attributes:
        requests: every whole request so far.
        disconnects: how many connections were closed by the other side while a request was held.
        held: requests wait for this event, if there is one.
    """

    def __init__(self) -> None:
        self.script: list[bytes] = []
        self.otherwise = response()
        self.requests: list[ReceivedRequest] = []
        self.disconnects = 0
        self.held: trio.Event | None = None
        self.url = ""

    async def handle(self, connection: Connection) -> None:
        while (request := await connection.read()) is not None:
            self.requests.append(request)
            if self.held is not None and not await self._hold(connection, self.held):
                return
            answer = self.script.pop(0) if self.script else self.otherwise
            await connection.send(answer)
            if not answer or b"connection: close" in answer:
                return

    async def _hold(self, connection: Connection, event: trio.Event) -> bool:
        """Whether the other side is still there when the event comes."""
        gone = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal gone
                await connection.until_closed()
                gone = True
                self.disconnects += 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await event.wait()
            nursery.cancel_scope.cancel()
        return not gone


@asynccontextmanager
async def wire_engine() -> AsyncIterator[WireEngine]:
    """Such an engine, with a port of its own."""
    engine = WireEngine()
    async with serving(engine.handle, patience=math.inf) as server:
        engine.url = server.url
        yield engine
