"""Streams whose client waits for the engine.

An error that comes soon keeps its status and its JSON. After that, or with the first part of the answer, the head goes
out, because clients give up a reply without headers, and what follows shows that the stream is alive.

A client that reads slowly keeps neither its turn nor the engine waiting: what it was not yet sent is put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from trio_sessions.core.stream import Delta
from trio_sessions.service.dialect import EventWriter
from trio_sessions.service.failure import Failure
from trio_sessions.service.replies import STREAM_HEADERS
from trio_sessions.web.headers import budget_header

if TYPE_CHECKING:
    from hypercorn.typing import ASGISendCallable

__all__ = ["EventStream"]


class EventStream:
    """The reply to one request, should it become a stream that begins before the answer is there.

    Args:
        send: the ASGI callable of the request.
        nursery: of the request; what is being sent outlives the turn there.
        grace: seconds until the stream is opened.
        interval: seconds between signs of life.

    """

    def __init__(self, send: ASGISendCallable, nursery: trio.Nursery, *, grace: float, interval: float) -> None:
        self._writer: EventWriter | None = None
        self._begun = False
        self._remaining_tokens: int | None = None
        self._send = send
        self._nursery = nursery
        self._grace = grace
        self._interval = interval
        self._offered = _Offered()
        self._settled = False
        self._news = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    @property
    def opened(self) -> bool:
        """Whether its head was sent, or is being sent."""
        return self._writer is not None

    def begin(self, writer: EventWriter, remaining_tokens: int | None) -> None:
        """See ``trio_sessions.service.request.Waiting``."""
        self._remaining_tokens = remaining_tokens
        if self._begun:
            return
        self._begun = True
        self._idle = trio.Event()
        self._nursery.start_soon(self._run, writer)

    def offer(self, delta: Delta) -> None:
        """See ``trio_sessions.service.request.Waiting``."""
        self._offered.add(delta)
        self._news.set()

    def settle(self) -> bool:
        """See ``trio_sessions.service.request.Waiting``."""
        self._settled = True
        self._news.set()
        return self.opened

    async def end(self, body: bytes) -> None:
        """The rest of a stream that was opened and settled."""
        await self._idle.wait()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def end_with(self, failure: Failure) -> None:
        """The error event that ends a stream that was opened and settled."""
        assert self._writer is not None
        await self.end(self._writer.broken(failure))

    async def _run(self, writer: EventWriter) -> None:
        try:
            due = trio.current_time() + self._grace
            while not self._settled:
                with trio.move_on_at(due):
                    await self._news.wait()
                if self._settled:
                    return
                if self._news.is_set():
                    self._news = trio.Event()
                    body = writer.delta(self._offered.take())
                else:
                    body = writer.opening() if self._writer is None else writer.keep_alive()
                if body:
                    await self._write(writer, body)
                    due = trio.current_time() + self._interval
        finally:
            self._idle.set()

    async def _write(self, writer: EventWriter, body: bytes) -> None:
        if self._writer is None:
            self._writer = writer
            headers = (*STREAM_HEADERS, *budget_header(self._remaining_tokens))
            head = [(name.encode(), value.encode()) for name, value in headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": head, "trailers": False})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


class _Offered:
    """What was offered and not yet taken, as one delta."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._head: Mapping[str, Any] = {}

    def add(self, delta: Delta) -> None:
        self._reasoning.append(delta.reasoning)
        self._content.append(delta.content)
        self._head = delta.head

    def take(self) -> Delta:
        delta = Delta("".join(self._reasoning), "".join(self._content), self._head)
        self._reasoning, self._content = [], []
        return delta
