"""The routes of turns, as ASGI.

Almost every request is a turn, and Quart's request machinery would cost as much as the turn's own work. So turns are
answered here, in front of the Quart application, which serves everything else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import trio

from trio_sessions.engine.base import Headers
from trio_sessions.errors import ClientDisconnected
from trio_sessions.hosting import fate_of
from trio_sessions.service.ask import CHAT_PATH
from trio_sessions.service.dialect import CountingDialect, Dialect
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.replies import Reply
from trio_sessions.service.request import TurnRequest
from trio_sessions.service.session import Session
from trio_sessions.service.turn import TurnReply
from trio_sessions.web.callers import caller_of
from trio_sessions.web.dialects.routes import COUNTS, DIALECTS
from trio_sessions.web.errors import failure_of
from trio_sessions.web.headers import budget_header
from trio_sessions.web.marks import retry_mark
from trio_sessions.web.paths import SessionTarget, routed, session_target
from trio_sessions.web.refusals import failed
from trio_sessions.web.streams import EventStream

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

__all__ = ["TurnRoutes"]

# A nursery is opened only for requests that may be answered with a stream. One that hides the word behind escapes is
# answered, and its stream begins with the answer.
_MAY_STREAM: Final = b'"stream"'


class TurnRoutes:
    """Serves turns, and hands every other request to ``app``.

    Behind ``trio_sessions.hosting.WholeRequests``, like the application.

    Args:
        gateway: runs the turns.
        app: the other routes.
    """

    def __init__(self, gateway: Gateway, app: ASGIFramework) -> None:
        self._gateway = gateway
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            # Quart would read it itself, and knows no way out where it cannot.
            scope = cast("HTTPScope", {**scope, "path": routed(scope["path"]) or "/"})
        if scope["type"] == "http" and scope["method"] == "POST":
            target = session_target(scope["path"])
            if target is not None and target.path in DIALECTS:
                await self._serve(target, DIALECTS[target.path], scope, receive, send)
                return
            if target is not None and target.path in COUNTS:
                await self._count(target, COUNTS[target.path], scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _serve(
        self,
        target: SessionTarget,
        dialect: Dialect,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        request = await _request(target, scope, receive)
        # Behind the body a client can only go away.
        request = replace(request, gone=receive)
        if _MAY_STREAM not in request.body:
            await self._answer(target, dialect, request, scope, send, None)
            return
        settings = self._gateway.settings
        async with trio.open_nursery() as nursery:
            stream = EventStream(send, nursery, grace=settings.stream_grace, interval=settings.stream_keep_alive)
            await self._answer(target, dialect, replace(request, waiting=stream), scope, send, stream)

    async def _answer(
        self,
        target: SessionTarget,
        dialect: Dialect,
        request: TurnRequest,
        scope: HTTPScope,
        send: ASGISendCallable,
        stream: EventStream | None,
    ) -> None:
        turn: TurnReply | None = None
        try:
            # Until it is known what became of the answer.
            async with self._gateway.registry.using(target.session_id) as session:
                turn = await self._gateway.turns.run(session, request, dialect)
                await self._deliver(session, turn, scope, send, stream)
        except ClientDisconnected:
            return
        except Exception as error:
            if turn is not None:
                raise
            # Whatever it was, the client gets an answer, as from Quart's error handlers.
            failure = failure_of(error, path=scope["path"], metrics=self._gateway.metrics)
            if stream is not None and stream.settle():
                await stream.end_with(failure)
            else:
                await _send(failed(dialect, failure), send)
        finally:
            if stream is not None:
                stream.settle()

    async def _deliver(
        self, session: Session, turn: TurnReply, scope: HTTPScope, send: ASGISendCallable, stream: EventStream | None
    ) -> None:
        fate = fate_of(scope)
        too_late = fate.closed
        if stream is not None and stream.settle():
            await stream.end(turn.reply.body)
        else:
            await _send(turn.reply, send, budget_header(turn.remaining_tokens))
        lost = too_late or fate.broken
        if turn.committed is not None and (lost or turn.shared):
            self._gateway.turns.note_delivery(session, turn.committed, received=not lost)

    async def _count(
        self,
        target: SessionTarget,
        dialect: CountingDialect,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        request = await _request(target, scope, receive)
        try:
            async with self._gateway.registry.using(target.session_id) as session:
                reply = dialect.counted(await self._gateway.turns.count(session, request, dialect))
        except Exception as error:  # noqa: BLE001
            # As for a turn.
            reply = failed(dialect, failure_of(error, path=scope["path"], metrics=self._gateway.metrics))
        await _send(reply, send)


async def _request(target: SessionTarget, scope: HTTPScope, receive: ASGIReceiveCallable) -> TurnRequest:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return TurnRequest(
        method=scope["method"],
        # The engine is asked by chat, to which another dialect's query means nothing.
        query=scope["query_string"].decode("latin-1") if target.path == CHAT_PATH else "",
        headers=headers,
        body=await _body(receive),
        caller=caller_of(headers, agent=target.agent),
        mark=retry_mark(headers),
    )


async def _body(receive: ASGIReceiveCallable) -> bytes:
    # Whole, as behind ``WholeRequests``.
    event = await receive()
    assert event["type"] == "http.request"
    assert not event["more_body"]
    return event["body"]


async def _send(reply: Reply, send: ASGISendCallable, more: Headers = ()) -> None:
    headers = [(name.encode(), value.encode()) for name, value in (*reply.headers, *more)]
    # RFC 9110, 8.6: what has no content says no length.
    if reply.status != 204:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})
