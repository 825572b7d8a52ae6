"""An ASGI wrapper that gives the application whole requests and an undisturbed end.

It cures three faults of the stack it stands between (Hypercorn and Quart-Trio):

* An answer sent before the request's body arrived leaves the connection unusable for the next request. Here the body
  is read before the application starts, so no answer can come first.
* Once an answer is complete, Hypercorn reports a disconnect, on which Quart cancels the task that is still finishing
  the answer: the connection's idle timer is then never restarted. Here that late disconnect is not passed on.
* Quart gives up a body over its limit without reading it. Here the rest is read and thrown away, so that the client
  can read the 413.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import trio

from trio_sessions.service.turn import Reply
from trio_sessions.web.errors import error_reply

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )

__all__ = ["WholeRequests"]

_CLOSE: Final = (("connection", "close"),)


class _Incomplete(Enum):
    """Why there is no whole body."""

    TOO_LARGE = auto()
    TOO_SLOW = auto()
    GONE = auto()


class WholeRequests:
    """Wraps an ASGI application as described above.

    Args:
        app: gets each request's body in one piece.
        max_body_bytes: a larger body is answered 413.
        body_timeout: seconds in which the whole body must arrive, else 408.
    """

    def __init__(self, app: ASGIFramework, *, max_body_bytes: int, body_timeout: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        match await self._read(receive):
            case bytes() as body:
                await self._run(scope, body, receive, send)
            case _Incomplete.TOO_LARGE:
                limit = self._max_body_bytes / 2**20
                await _send(send, error_reply(413, f"the request body is larger than {limit:g} MiB (--max-body-mb)"))
            case _Incomplete.TOO_SLOW:
                text = f"the request body did not arrive within {self._body_timeout:g} s"
                await _send(send, error_reply(408, text), close=True)
            case _Incomplete.GONE:
                pass

    async def _read(self, receive: ASGIReceiveCallable) -> bytes | _Incomplete:
        chunks: list[bytes] = []
        size = 0
        with trio.move_on_after(self._body_timeout):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    return _Incomplete.GONE
                size += len(event["body"])
                if size <= self._max_body_bytes:
                    chunks.append(event["body"])
                else:
                    chunks.clear()
                if not event["more_body"]:
                    return b"".join(chunks) if size <= self._max_body_bytes else _Incomplete.TOO_LARGE
        return _Incomplete.TOO_SLOW

    async def _run(self, scope: Scope, body: bytes, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        delivered = False
        complete = False

        async def receive_whole() -> ASGIReceiveEvent:
            nonlocal delivered
            if not delivered:
                delivered = True
                return {"type": "http.request", "body": body, "more_body": False}
            event = await receive()
            if complete and event["type"] == "http.disconnect":
                await trio.sleep_forever()
            return event

        async def send_marking(event: ASGISendEvent) -> None:
            nonlocal complete
            if event["type"] == "http.response.body" and not event.get("more_body", False):
                complete = True
            await send(event)

        await self._app(scope, receive_whole, send_marking)


async def _send(send: ASGISendCallable, reply: Reply, *, close: bool = False) -> None:
    headers = [*reply.headers, ("content-length", str(len(reply.body))), *(_CLOSE if close else ())]
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
            "trailers": False,
        }
    )
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})
