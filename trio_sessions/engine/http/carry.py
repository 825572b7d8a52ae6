"""One exchange over one wire.

A server may answer before it has read the whole request: 413 to a large one, 429 to any. What the kernel does not take
at once is therefore sent while the answer is awaited, and given up when the answer begins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

import httpx
import trio

from trio_sessions.engine.http.exchange import Exchange, Head
from trio_sessions.engine.http.timeouts import Timeouts
from trio_sessions.engine.http.wire import Wire

__all__ = ["Carried", "NothingSent"]

# Up to here copying a body behind its head is cheaper than another system call.
_SMALL_BODY_BYTES: Final = 64 * 1024


class NothingSent(Exception):
    """The server has closed a used connection: not a byte of the request has left, and another one may carry it."""


class Carried:
    """A request on its way over ``wire``, and its answer on the way back.

    After any error, or after a call was cancelled, the wire has to be closed.

    Args:
        wire: what carries it.
        used_before: whether the wire has carried others, so that one that takes nothing may just have grown old.
        exchange: what is sent, and what the answer means.
        timeouts: how long to wait.
    """

    __slots__ = ("_exchange", "_sent", "_timeouts", "_used_before", "_wire")

    def __init__(self, wire: Wire, exchange: Exchange, timeouts: Timeouts, *, used_before: bool) -> None:
        self._wire = wire
        self._used_before = used_before
        self._exchange = exchange
        self._timeouts = timeouts
        self._sent = False

    @property
    def finished(self) -> bool:
        """Whether the answer is there to its last byte."""
        return self._exchange.finished

    @property
    def reusable(self) -> bool:
        """Whether the wire can carry another exchange now."""
        return self._sent and self._exchange.reusable

    async def head(self, request: httpx.Request, target: bytes) -> Head:
        """Send the request and read the answer's head.

        Raises:
            NothingSent: see there.
            httpx.TransportError: any other failure.
        """
        exchange = self._exchange
        first = exchange.send_head(request.method, target, request.headers.raw)
        if not isinstance(request.stream, httpx.ByteStream):
            return await self._send_stream(first, request)
        body = exchange.send_body(b"".join(request.stream))
        # Nothing, but for a body in chunks.
        if end := exchange.send_end():
            body += end
        if len(body) <= _SMALL_BODY_BYTES:
            first, body = first + body, b""
        rest = [memoryview(piece) for piece in (first, body) if piece]
        # Most requests are taken at once, and cost no second task.
        if not await self._send_begin(rest):
            return await self._send_and_read(lambda: self._send_pieces(rest))
        self._sent = True
        return await self._read_head()

    async def body(self) -> bytes | None:
        """The next piece of the answer's body; None at its end.

        Raises:
            httpx.TransportError: it was cut off, or is no HTTP, or too slow, or too large.
        """
        exchange = self._exchange
        while (piece := exchange.body()) is None and not exchange.finished:
            exchange.receive(await self._receive())
        return piece

    async def _send_begin(self, rest: list[memoryview]) -> bool:
        """Send pieces while they are taken whole, and leave what is left in ``rest``; whether that is nothing."""
        begun = False
        while rest:
            piece = rest[0]
            try:
                sent = await self._send(piece)
            except httpx.WriteError as error:
                if not begun and self._used_before and self._wire.tells_what_it_sent:
                    raise NothingSent from error
                # What the server said before it closed may be there to be read.
                return False
            begun = True
            if sent < len(piece):
                rest[0] = piece[sent:]
                return False
            del rest[0]
        return True

    async def _send_pieces(self, rest: list[memoryview]) -> None:
        for piece in rest:
            await self._send_whole(piece)

    async def _send_body(self, pieces: AsyncIterator[bytes]) -> None:
        async for piece in pieces:
            await self._send_whole(self._exchange.send_body(piece))

    async def _send_whole(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[await self._send(left) :]

    async def _send_stream(self, first: bytes, request: httpx.Request) -> Head:
        rest = [memoryview(first)]
        await self._send_begin(rest)

        async def send_rest() -> None:
            await self._send_pieces(rest)
            assert isinstance(request.stream, httpx.AsyncByteStream)
            pieces = aiter(request.stream)
            if isinstance(pieces, AsyncGenerator):
                async with aclosing(pieces):
                    await self._send_body(pieces)
            else:
                await self._send_body(pieces)
            await self._send_whole(self._exchange.send_end())

        return await self._send_and_read(send_rest)

    async def _send_and_read(self, send_rest: Callable[[], Awaitable[None]]) -> Head:
        """The answer's head, while the rest of the request is being sent; no more of that once the head is there."""
        not_sent: Exception | None = None
        not_read: httpx.TransportError | None = None
        head: Head | None = None
        reading = trio.CancelScope()

        async def send() -> None:
            nonlocal not_sent
            try:
                await send_rest()
                self._sent = True
            # It is raised below, as it is and not in the nursery's group.
            except Exception as error:  # noqa: BLE001
                not_sent = error
                if not isinstance(error, httpx.WriteError):
                    reading.cancel()
            # Until now the server had something to do other than to answer.
            if self._timeouts.read is not None:
                reading.deadline = min(reading.deadline, trio.current_time() + self._timeouts.read)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with reading:
                try:
                    head = await self._read_head(timed=False)
                except httpx.TransportError as error:
                    not_read = error
            nursery.cancel_scope.cancel()
        if head is not None:
            return head
        if not_sent is not None:
            raise not_sent
        raise not_read or self._read_timeout()

    async def _read_head(self, *, timed: bool = True) -> Head:
        exchange = self._exchange
        while (head := exchange.head()) is None:
            exchange.receive(await (self._receive() if timed else self._wire.receive()))
        return head

    async def _send(self, data: memoryview) -> int:
        timeout = self._timeouts.write
        if timeout is None:
            return await self._wire.send(data)
        with trio.move_on_after(timeout):
            return await self._wire.send(data)
        raise httpx.WriteTimeout(f"the server took none of the request for {timeout:g} s")

    async def _receive(self) -> bytes:
        timeout = self._timeouts.read
        if timeout is None:
            return await self._wire.receive()
        with trio.move_on_after(timeout):
            return await self._wire.receive()
        raise self._read_timeout()

    def _read_timeout(self) -> httpx.ReadTimeout:
        return httpx.ReadTimeout(f"the server sent nothing for {self._timeouts.read:g} s")
