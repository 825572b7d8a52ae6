"""The embedded engine over HTTP: a Quart-Trio application, and the coroutine that serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from quart import Response, request
from quart_trio import QuartTrio

from trio_sessions.engine.embedded.chat import EmbeddedEngine
from trio_sessions.engine.embedded.desk import BrokenOff, Desk
from trio_sessions.engine.embedded.faults import FAULT_HEADER, Fault
from trio_sessions.hosting import AppServer, WholeRequests, bind, url_of

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )

__all__ = ["create_engine_app", "serve_engine"]

_METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH"]
# Names an answer that has to break off; it never reaches the wire.
_BREAK_HEADER: Final = b"x-engine-break-off"


def create_engine_app(engine: EmbeddedEngine, *, latency: float = 0.0, fault: Fault | None = None) -> QuartTrio:
    """An application that answers as SGLang does, and ``GET /engine/stats`` with the counters of ``desk.Stats``.

    Args:
        engine: computes the answers.
        latency: seconds to wait before each generated answer.
        fault: strikes generating requests that name no fault in ``x-engine-fault``.
    """
    desk = Desk(engine, latency=latency, fault=fault)
    app = QuartTrio("trio_sessions.engine.embedded", static_folder=None)
    # Prompts of long sessions are larger than Quart's 16 MiB, and an engine that hangs is a fault worth showing.
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)

    async def answer(path: str) -> Response:
        body = cast("bytes", await request.get_data(cache=False))
        reply = await desk.answer(request.method, path, body, fault_spec=request.headers.get(FAULT_HEADER))
        breaks = isinstance(reply, BrokenOff)
        if isinstance(reply, BrokenOff):
            reply = reply.reply
        events = None if breaks else reply.events
        response = Response(reply.body if events is None else _OneByOne(events), status=reply.status)
        for name, value in reply.headers:
            response.headers[name] = value
        if breaks:
            response.headers[_BREAK_HEADER.decode()] = "1"
        return response

    app.add_url_rule("/", "root", partial(answer, ""), methods=_METHODS)
    app.add_url_rule("/<path:path>", "answer", answer, methods=_METHODS)
    # Assigning it is how Quart has an application wrapped.
    app.asgi_app = _BreaksOff(app.asgi_app)  # type: ignore[method-assign]
    return app


async def serve_engine(
    engine: EmbeddedEngine,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    latency: float = 0.0,
    fault: Fault | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``engine`` until cancelled; ``task_status`` is told the base URL once requests are answered.

    Args:
        engine: computes the answers.
        host: address to listen on.
        port: 0 picks a free one.
        latency, fault: as in ``create_engine_app``.

    Raises:
        AddressInUse: the address cannot be bound.
    """
    app = create_engine_app(engine, latency=latency, fault=fault)
    with bind(host, port) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(AppServer(WholeRequests(app), listener).run)
            task_status.started(url_of(listener))


class _OneByOne:
    """The events of a stream, each sent by itself."""

    def __init__(self, events: Iterable[bytes]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = next(self._events, None)
        if data is None:
            raise StopAsyncIteration
        # Others get their turn, a client that goes away is noticed.
        await trio.lowlevel.checkpoint()
        return b"data: %b\n\n" % data


class _BreaksOff:
    """Sends half of the body that content-length announced when an answer has to break off.

    An answer left unfinished makes Hypercorn close the connection.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        breaks = False

        async def send_half(event: ASGISendEvent) -> None:
            nonlocal breaks
            if event["type"] == "http.response.start":
                headers = list(event["headers"])
                kept = [(name, value) for name, value in headers if name.lower() != _BREAK_HEADER]
                breaks = len(kept) != len(headers)
                await send(cast("Any", {**event, "headers": kept}))
            elif event["type"] != "http.response.body" or not breaks:
                await send(event)
            elif event["body"]:
                half = event["body"][: len(event["body"]) // 2]
                await send({"type": "http.response.body", "body": half, "more_body": True})

        await self._app(scope, receive, send_half)
