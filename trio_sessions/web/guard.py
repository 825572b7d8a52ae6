"""What stands in front where keys are configured: whoever may not ask is refused before a large body is read.

It is an ASGI application around ``WholeRequests``, whose first fault it has to mind itself: an answer that is sent
before the request's body has arrived ends the connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from trio_sessions.engine.base import RawHeaders
from trio_sessions.errors import PermissionDenied, SessionError
from trio_sessions.observe import Metrics
from trio_sessions.service.keys import ApiKeys
from trio_sessions.service.replies import Reply
from trio_sessions.web.access import Admitted, Judge, Refused
from trio_sessions.web.errors import failure_of
from trio_sessions.web.refusals import failed_at

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

__all__ = ["Guard", "Neighbours"]

# A body that is no larger is waited for, so that the connection can be used again.
_SMALL_BYTES: Final = 64 * 1024
# For how long what a client sends is thrown away: it may have to be sent before the client looks for an answer.
_PATIENCE_SECONDS: Final = 0.5
_CHALLENGE: Final = (("www-authenticate", "Bearer"),)

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.web")


class _Body(Enum):
    """What became of a body that nobody wants."""

    READ = auto()
    UNREAD = auto()
    GONE = auto()


class Neighbours(Protocol):
    """Other processes that serve the same sessions."""

    def elsewhere(self, session_id: str) -> bool:
        """Whether a session is one of theirs."""

    def vouched(self, headers: RawHeaders) -> bool:
        """Whether a request comes from one of them."""

    async def admits(self, scope: HTTPScope) -> bool:
        """Whether the one that has the session admits the request; also where it does not say."""


class Guard:
    """Lets through to ``app`` what is admitted.

    Args:
        app: gets requests without our credentials in them, but for those that a neighbour wants to see.
        keys: open everything.
        token_digest: the digest of the token of a session; None where there is none.
        metrics: count what is refused.
        neighbours: other processes that serve the same sessions, if there are any.
    """

    def __init__(
        self,
        app: ASGIFramework,
        *,
        keys: ApiKeys,
        token_digest: Callable[[str], bytes | None],
        metrics: Metrics,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._neighbours = neighbours
        if neighbours is None:
            self._judge = Judge(keys, token_digest)
        else:
            self._judge = Judge(keys, token_digest, elsewhere=neighbours.elsewhere, vouched=neighbours.vouched)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            # WebSockets are refused there, whoever asks.
            await self._app(scope, receive, send)
            return
        verdict = self._judge.decide(scope["method"], scope["path"], list(scope["headers"]))
        if isinstance(verdict, Admitted) and not verdict.judged and not await self._admitted_elsewhere(scope):
            verdict = Refused(PermissionDenied())
        match verdict:
            case Admitted(headers):
                admitted: HTTPScope = {**scope, "headers": headers}
                await self._app(admitted, receive, send)
            case Refused(error):
                _log.info("refused", code=error.code, method=scope["method"])
                self._metrics.denied.labels(error.code).inc()
                await _refuse(self._reply(scope, error), receive, send)

    async def _admitted_elsewhere(self, scope: HTTPScope) -> bool:
        """Asked before a large body is read; a small one is passed on with the question."""
        small = _announced_bytes(scope) <= _SMALL_BYTES
        return small or self._neighbours is None or await self._neighbours.admits(scope)

    def _reply(self, scope: HTTPScope, error: SessionError) -> Reply:
        failure = failure_of(error, path=scope["path"], metrics=self._metrics)
        # Where no turn goes, there is no dialect to go by.
        return failed_at(scope["path"], failure, default=None)


async def _refuse(reply: Reply, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    body = await _small_body(receive)
    if body is _Body.GONE:
        return
    challenge = _CHALLENGE if reply.status == 401 else ()
    headers = [(name.encode(), value.encode()) for name, value in (*reply.headers, *challenge)]
    headers.append((b"content-length", str(len(reply.body)).encode()))
    if body is _Body.UNREAD:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    if body is _Body.UNREAD:
        # A connection that is closed on data that nobody read takes the answer with it.
        with trio.move_on_after(_PATIENCE_SECONDS):
            while await _more(receive):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _announced_bytes(scope: HTTPScope) -> float:
    """How long the body may be at most, by what is said of it."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers or not length.isdigit():
        return math.inf
    return int(length)


async def _small_body(receive: ASGIReceiveCallable) -> _Body:
    """Throw away a body that comes soon and is small."""
    size = 0
    with trio.move_on_after(_PATIENCE_SECONDS):
        while size <= _SMALL_BYTES:
            event = await receive()
            if event["type"] != "http.request":
                return _Body.GONE
            size += len(event["body"])
            if not event["more_body"]:
                return _Body.READ
    return _Body.UNREAD


async def _more(receive: ASGIReceiveCallable) -> bool:
    """Throw away a piece of the body; whether there is more."""
    event = await receive()
    return event["type"] == "http.request" and event["more_body"]
