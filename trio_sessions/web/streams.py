"""Streams whose client waits for the engine.

An error that comes soon keeps its status and its JSON. After that the head goes out, because clients give up a reply
without headers, and what follows shows that the stream is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

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
        grace: seconds until the stream is opened.
        interval: seconds between signs of life.

    Attributes:
        writer: of the stream once it was opened, else None.
    """

    def __init__(self, send: ASGISendCallable, *, grace: float, interval: float) -> None:
        self.writer: EventWriter | None = None
        self._send = send
        self._grace = grace
        self._interval = interval
        self._settled = False
        self._sleep = trio.CancelScope()
        self._lock = trio.Lock()

    async def keep(self, writer: EventWriter, remaining_tokens: int | None) -> None:
        """See ``trio_sessions.service.dialect.Waiting``."""
        with self._sleep:
            await trio.sleep(self._grace)
        if self._settled:
            return
        await self._write(writer, remaining_tokens, writer.opening())
        while not self._settled:
            self._sleep = trio.CancelScope()
            with self._sleep:
                await trio.sleep(self._interval)
            if not self._settled:
                await self._write(writer, remaining_tokens, writer.keep_alive())

    async def write(self, writer: EventWriter, remaining_tokens: int | None, body: bytes) -> None:
        """See ``trio_sessions.service.dialect.Waiting``."""
        self.settle()
        await self._write(writer, remaining_tokens, body)

    def settle(self) -> bool:
        """See ``trio_sessions.service.dialect.Waiting``."""
        self._settled = True
        self._sleep.cancel()
        return self.writer is not None

    async def end(self, body: bytes) -> None:
        """The rest of a stream that was opened."""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def end_with(self, failure: Failure) -> None:
        """The error event that ends a stream that was opened."""
        assert self.writer is not None
        await self.end(self.writer.broken(failure))

    async def _write(self, writer: EventWriter, remaining_tokens: int | None, body: bytes) -> None:
        opens = self.writer is None
        self.writer = writer
        # An event that was cut in the middle would be no event, and what follows would be part of it.
        with trio.CancelScope(shield=True):
            async with self._lock:
                if opens:
                    head = [
                        (name.encode(), value.encode())
                        for name, value in (*STREAM_HEADERS, *budget_header(remaining_tokens))
                    ]
                    await self._send({"type": "http.response.start", "status": 200, "headers": head, "trailers": False})
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
