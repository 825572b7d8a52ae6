"""An engine on a real port that keeps every request as it came and answers bytes that a test wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
import trio

from trio_sessions.testing.engine import chat_answer


@dataclass(frozen=True)
class WireRequest:
    """A request as it stood on the wire."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


def response(
    status: int = 200,
    body: bytes | None = None,
    *,
    headers: Iterable[tuple[str, str]] = (("content-type", "application/json"),),
) -> bytes:
    """A whole response; by default a usable chat completion."""
    body = chat_answer().body if body is None else body
    lines = [f"{name}: {value}" for name, value in (*headers, ("content-length", str(len(body))))]
    return f"HTTP/1.1 {status} X\r\n".encode() + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


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
        self.requests: list[WireRequest] = []
        self.disconnects = 0
        self.held: trio.Event | None = None
        self.url = ""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connection, listeners)
            task_status.started()

    async def _connection(self, stream: trio.SocketStream) -> None:
        async with stream:
            while (request := await _read(stream)) is not None:
                self.requests.append(request)
                if self.held is not None and not await self._hold(stream, self.held):
                    return
                answer = self.script.pop(0) if self.script else self.otherwise
                await stream.send_all(answer)
                if not answer or b"connection: close" in answer:
                    return

    async def _hold(self, stream: trio.SocketStream, event: trio.Event) -> bool:
        """Whether the other side is still there when the event comes."""
        gone = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal gone
                with suppress(trio.BrokenResourceError):
                    await stream.receive_some()
                gone = True
                self.disconnects += 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await event.wait()
            nursery.cancel_scope.cancel()
        return not gone


async def _read(stream: trio.SocketStream) -> WireRequest | None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive_some())
                except trio.BrokenResourceError:
                    return None
            case h11.Request():
                head = event
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                assert head is not None
                return WireRequest(
                    method=head.method.decode(),
                    target=head.target.decode(),
                    headers=[(n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items()],
                    body=body,
                )
            case _:
                return None
