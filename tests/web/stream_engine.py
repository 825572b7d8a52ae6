"""An engine on a real port that streams what a test tells it to, when the test says so."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.raw_server import Connection, ReceivedRequest, serving
from tests.web.support import until

__all__ = ["StreamEngine", "StreamedCall", "stream_engine"]

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


class StreamedCall:
    """A request, and its answer in pieces.

    Attributes:
        request: as it came.
        gone: whether the client closed before the answer was over.
        ids: what was sampled so far.
    """

    def __init__(self, connection: Connection, request: ReceivedRequest) -> None:
        self.request = request
        self.gone = False
        self.ids: list[int] = []
        self.over = trio.Event()
        self._connection = connection
        self._begun = False

    async def send(self, data: bytes) -> None:
        """Bytes of the body, in one chunk."""
        if not self._begun:
            self._begun = True
            await self._connection.send(_HEAD)
        await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, value: Any) -> None:
        """A server-sent event."""
        await self.send(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")

    async def say(self, content: str = "", *, reasoning: str = "", ids: Sequence[int] = (), **choice: Any) -> None:
        """A chunk with these texts, and with the ids that were sampled for it."""
        delta = {"content": content or None, "reasoning_content": reasoning or None}
        self.ids += ids
        meta = {"output_token_logprobs": [[-0.5, id_, None] for id_ in ids]}
        await self._chunk([{"index": 0, "delta": delta, "finish_reason": None, "meta_info": meta, **choice}])

    async def finish(self, *, counted: int | None = None, calls: Sequence[Any] = (), **meta: Any) -> None:
        """All that is behind the texts, to the end of the answer."""
        for call in calls:
            await self._chunk([{"index": 0, "delta": {"tool_calls": [call]}}])
        count = len(self.ids)
        await self._chunk(
            [
                {
                    "index": 0,
                    "delta": {},
                    "finish_reason": "tool_calls" if calls else "stop",
                    "meta_info": {"completion_tokens": count, **meta},
                }
            ]
        )
        usage = {"prompt_tokens": 3, "completion_tokens": count if counted is None else counted, "total_tokens": 9}
        await self._chunk([], usage=usage)
        await self.event(b"[DONE]")
        await self._connection.send(b"0\r\n\r\n")
        self.over.set()

    async def answer(self, status: str, body: bytes) -> None:
        """Answer whole."""
        await self._connection.send(
            b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)
        )
        self.over.set()

    def break_off(self) -> None:
        """Close the connection."""
        self.over.set()

    async def _chunk(self, choices: list[Any], **fields: Any) -> None:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
        await self.event({**head, "choices": choices, **fields})


class StreamEngine:
    """Keeps every request for the test to answer.

    Attributes:
        url: where.
        calls: every request so far.
    """

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[StreamedCall] = []

    async def call(self, index: int = -1, *, count: int = 1) -> StreamedCall:
        """One of the requests, once there are so many."""
        await until(lambda: len(self.calls) >= count)
        return self.calls[index]

    async def handle(self, connection: Connection) -> None:
        request = await connection.read()
        if request is None:
            return
        call = StreamedCall(connection, request)
        self.calls.append(call)
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await connection.until_closed()
                call.gone = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await call.over.wait()
            nursery.cancel_scope.cancel()
        # What was sent last is to arrive, and closing with unread bytes would take it away.
        await connection.stream.aclose()


@asynccontextmanager
async def stream_engine() -> AsyncIterator[StreamEngine]:
    """Such an engine, with a port of its own."""
    engine = StreamEngine()
    async with serving(engine.handle, patience=math.inf) as server:
        engine.url = server.url
        yield engine
