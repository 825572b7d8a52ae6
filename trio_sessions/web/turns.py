"""The routes of turns, as ASGI.

Almost every request is a turn, and Quart's request machinery would cost as much as the turn's own work. So turns are
answered here, in front of the Quart application, which serves everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trio_sessions.errors import ClientDisconnected
from trio_sessions.service.dialect import Dialect
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.replies import Reply
from trio_sessions.service.turn import CHAT_PATH, TurnRequest
from trio_sessions.web.dialects.chat import ChatDialect
from trio_sessions.web.dialects.responses import ResponsesDialect
from trio_sessions.web.errors import advice_on, failure_of
from trio_sessions.web.paths import routed
from trio_sessions.web.streams import EventStream

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

__all__ = ["TurnRoutes"]

_RESPONSES_PATH: Final = "v1/responses"
_DIALECTS: Final[Mapping[str, Dialect]] = {CHAT_PATH: ChatDialect(), _RESPONSES_PATH: ResponsesDialect()}


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
        if scope["type"] == "http" and scope["method"] == "POST":
            # Nothing, "sessions", the id, and the rest of the path.
            match routed(scope["path"]).split("/", 3):
                case ["", "sessions", session_id, path] if session_id and path in _DIALECTS:
                    await self._serve(session_id, _DIALECTS[path], scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _serve(
        self, session_id: str, dialect: Dialect, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        settings = self._gateway.settings
        stream = EventStream(send, grace=settings.stream_grace, interval=settings.keep_alive)
        request = TurnRequest(
            method=scope["method"],
            query=scope["query_string"].decode("latin-1"),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
            body=await _body(receive),
            # Behind the body a client can only go away.
            gone=receive,
            waiting=stream,
        )
        try:
            reply = await self._gateway.turns.run(self._gateway.registry.get(session_id), request, dialect)
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001
            # Whatever it was, the client gets an answer, as from Quart's error handlers.
            failure = failure_of(error, path=scope["path"])
            if stream.writer is not None:
                await stream.end_with(failure)
                return
            reply = dialect.failed(failure)
            reply = replace(reply, headers=(*reply.headers, *advice_on(failure)))
        if stream.writer is not None:
            await stream.end(reply.body)
        else:
            await _send(reply, send)


async def _body(receive: ASGIReceiveCallable) -> bytes:
    # Whole, as behind ``WholeRequests``.
    event = await receive()
    assert event["type"] == "http.request"
    assert not event["more_body"]
    return event["body"]


async def _send(reply: Reply, send: ASGISendCallable) -> None:
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    # RFC 9110, 8.6: what has no content says no length.
    if reply.status != 204:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})
