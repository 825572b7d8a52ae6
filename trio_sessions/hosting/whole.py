"""Requests whose body has arrived before the application starts, and answers that are sent to their end.

``WholeRequests`` cures four faults of the stack it stands in (Hypercorn and Quart-Trio):

* An answer sent before the request's body arrived leaves the connection unusable for the next request. Here the body
  is read before the application starts, so no answer can come first.
* Once an answer is complete, Hypercorn reports a disconnect, on which Quart cancels the task that is still finishing
  the answer. Here that late disconnect is not passed on.
* Quart gives up a body over its limit without reading it. Here the rest is read and thrown away, so that the client
  can read the 413.
* Quart spells header values in UTF-8. Headers are bytes that are read as Latin-1; here they are sent as they were read.

An answer's head is sent with the beginning of its body. WebSockets are refused.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import TYPE_CHECKING

import trio

from trio_sessions.core import json
from trio_sessions.hosting.refusal import Refusal, Refuse, plain_refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        HTTPResponseStartEvent,
        Scope,
    )

    from trio_sessions.hosting.limits import ConnectionLimit

__all__ = ["WholeRequests"]


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
        on_limit: is told when one of these limits refused a request.
        refuse: words what is answered in the application's place.
    """

    def __init__(
        self,
        app: ASGIFramework,
        *,
        max_body_bytes: float = math.inf,
        body_timeout: float = math.inf,
        on_limit: Callable[[ConnectionLimit], None] = lambda limit: None,
        refuse: Refuse = plain_refusal,
    ) -> None:
        self._app = app
        self._on_limit = on_limit
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] == "websocket":
            await _refuse_websocket(send)
        if scope["type"] != "http":
            return
        match await self._read(receive):
            case bytes() as body:
                await self._run(scope, body, receive, send)
            case _Incomplete.TOO_LARGE:
                self._on_limit("body")
                limit = self._max_body_bytes / 2**20
                text = f"the request body is larger than {limit:g} MiB (--max-body-mb)"
                await _send_refusal(send, self._refuse(scope["path"], 413, text))
            case _Incomplete.TOO_SLOW:
                self._on_limit("body_timeout")
                text = f"the request body did not arrive within {self._body_timeout:g} s (--body-timeout)"
                await _send_refusal(send, self._refuse(scope["path"], 408, text), close=True)
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
        start: ASGISendEvent | None = None

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
            nonlocal complete, start
            if event["type"] == "http.response.start":
                start = _with_header_bytes(event)
                return
            if event["type"] == "http.response.body" and not event.get("more_body", False):
                complete = True
            if start is not None:
                await send(start)
                start = None
            await send(event)

        await self._app(scope, receive_whole, send_marking)


async def _send_refusal(send: ASGISendCallable, refusal: Refusal, *, close: bool = False) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(refusal.body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": refusal.body, "more_body": False})


async def _refuse_websocket(send: ASGISendCallable) -> None:
    # 426, not 404: clients that try WebSockets first fall back at once.
    body = json.encode({"error": "WebSockets are not served; use HTTP requests"})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"upgrade", b"HTTP/1.1"),
        (b"connection", b"close"),
    ]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _with_header_bytes(event: HTTPResponseStartEvent) -> HTTPResponseStartEvent:
    headers = [(name, value.decode().encode("latin-1", errors="replace")) for name, value in event["headers"]]
    return {**event, "headers": headers}
