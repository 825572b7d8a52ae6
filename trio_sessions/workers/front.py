"""What stands before a worker's application: passes on what belongs to another worker, answers for all of them.

It is an ASGI application behind ``WholeRequests``, so a request's body comes in one event. Whose a request is, is told
from the decoded path, which is what the application's routes are matched against; what is passed on is the target as it
came, which the other worker decodes the same way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import trio

from trio_sessions.config import IN_MEMORY
from trio_sessions.core import json
from trio_sessions.engine.base import RawHeaders
from trio_sessions.engine.headers import HOP_BY_HOP
from trio_sessions.errors import InvalidRequest
from trio_sessions.observe import METRICS_CONTENT_TYPE
from trio_sessions.service.gateway import Gateway
from trio_sessions.web.errors import status_of
from trio_sessions.web.listing import merged_pages, page_of, read_page
from trio_sessions.web.paths import routed
from trio_sessions.web.refusals import refused
from trio_sessions.workers.address import advertised_host
from trio_sessions.workers.exposition import merge_metrics
from trio_sessions.workers.membership import Membership
from trio_sessions.workers.ownership import Placement, owner_of, session_in
from trio_sessions.workers.peers import PeerFailed, PeerRequest, Peers
from trio_sessions.workers.trust import HOP_HEADER, WorkerTrust

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
        Scope,
    )

__all__ = ["Front", "Passing"]

_HOP_BY_HOP: Final = frozenset(name.encode() for name in HOP_BY_HOP)
# The body has arrived whole and is sent as such; nobody is waited for with an expectation.
_NOT_PASSED_ON: Final = _HOP_BY_HOP | {b"content-length", b"expect", b"host"}
# The server that answers the client writes its own.
_NOT_PASSED_BACK: Final = _HOP_BY_HOP | {b"server", b"date"}
_METRICS_SECONDS: Final = 3.0
_LIST_SECONDS: Final = 5.0
# A session is created in milliseconds; a worker that takes longer hangs, and its port goes on taking connections.
_CREATE_SECONDS: Final = 5.0
_READ: Final = ("GET", "HEAD")

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.workers")


@dataclass(frozen=True, slots=True)
class _Answer:
    """A whole answer."""

    status: int
    headers: RawHeaders
    body: bytes


class Passing:
    """The requests that were passed on and wait for their answers."""

    def __init__(self) -> None:
        self._count = 0
        self._none = trio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more, for the length of the block."""
        if not self._count:
            self._none = trio.Event()
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def settle(self) -> None:
        """Return when there is none."""
        await self._none.wait()


class Front:
    """The ASGI application of one worker.

    Args:
        app: answers for the sessions of this worker.
        gateway: has them.
        members: all workers.
        peers: asks the others.
        secret: known to the workers alone; marks what one of them has passed on.
        passing: where what this one passes on is counted.
    """

    def __init__(
        self,
        app: ASGIFramework,
        *,
        gateway: Gateway,
        members: Membership,
        peers: Peers,
        secret: str,
        passing: Passing,
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._members = members
        self._peers = peers
        self._secret = secret.encode()
        self._kept = gateway.settings.store != IN_MEMORY
        self._trust = WorkerTrust(members, secret, peers)
        self._placement = Placement(members.index, len(members.urls))
        self._passing = passing

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            return
        passed_on = self._trust.vouched(list(scope["headers"]))
        if passed_on:
            kept = [header for header in scope["headers"] if not self._trust.is_mark(header)]
            scope = cast("HTTPScope", {**scope, "headers": kept})
        path = routed(scope["path"])
        session_id = session_in(path)
        owner = self._members.index if session_id is None else owner_of(session_id, len(self._members.urls))
        if owner != self._members.index:
            if passed_on:
                # Workers that disagree on whose it is would pass it on for ever.
                _log.error("misdirected", session=session_id, owner=owner)
                text = f"worker {self._members.index} does not have this session"
                await _send_answer(send, _error(path, 421, text))
            else:
                await self._pass_on(owner, scope, receive, send)
        elif path == "/sessions" and scope["method"] == "POST":
            await self._create(scope, receive, send, here=passed_on)
        elif path == "/sessions" and scope["method"] in _READ and not passed_on:
            await _send_answer(send, await self._list(scope["query_string"]))
        elif path == "/health" and scope["method"] in _READ:
            await _send_answer(send, self._health())
        elif path == "/metrics" and scope["method"] in _READ and not passed_on:
            await _send_answer(send, await self._metrics())
        else:
            await self._app(scope, receive, send)

    def _marked(self, scope: HTTPScope, body: bytes) -> PeerRequest:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        host = _host(scope).encode("latin-1")
        return PeerRequest(
            method=scope["method"],
            target=scope["raw_path"] + query,
            headers=[(b"host", host), *_without(scope["headers"], _NOT_PASSED_ON), (HOP_HEADER, self._secret)],
            body=body,
        )

    async def _pass_on(
        self, owner: int, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        request = self._marked(scope, await _body(receive))
        began = False
        with self._passing.one():
            async with _attended(receive):
                try:
                    with self._members.while_up(owner):
                        async with self._peers.ask(self._members.urls[owner], request) as response:
                            began = True
                            await _send_start(send, response.status, _without(response.headers, _NOT_PASSED_BACK))
                            async for chunk in response.chunks:
                                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                except PeerFailed as error:
                    _log.warning("no answer from a worker", asked=owner, error=str(error))
            # Where the answer had begun, the server closes the connection for want of an end, and the client knows.
            if not began:
                fate = "its sessions come back with it" if self._kept else "the sessions it had are lost"
                text = f"worker {owner}, which has this session, is down; {fate}"
                await _send_answer(send, _error(scope["path"], 503, text))

    async def _create(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, *, here: bool
    ) -> None:
        body = await _body(receive)
        order = (self._members.index,) if here else self._placement.draw(self._members.up)
        answer = _error(scope["path"], 503, "no worker takes sessions now")
        async with _attended(receive):
            for index in order:
                if index == self._members.index:
                    answer = self._with_base_url(scope, await _ask_app(self._app, scope, body))
                else:
                    request = self._marked(scope, body)
                    answer = await self._ask(index, request, seconds=_CREATE_SECONDS) or answer
                # A worker that ends takes no sessions; the next one may.
                if answer.status != 503:
                    break
        await _send_answer(send, answer)

    async def _ask(self, index: int, request: PeerRequest, *, seconds: float) -> _Answer | None:
        """The whole answer of another worker, or None if there is none within that time."""
        try:
            with self._members.while_up(index), trio.fail_after(seconds):
                async with self._peers.ask(self._members.urls[index], request) as response:
                    body = b"".join([chunk async for chunk in response.chunks])
                    return _Answer(response.status, _without(response.headers, _NOT_PASSED_BACK), body)
        except PeerFailed as error:
            _log.warning("no answer from a worker", asked=index, error=str(error))
        except trio.TooSlowError:
            _log.warning("no answer from a worker", asked=index, error=f"none within {seconds:g} s")
        return None

    def _with_base_url(self, scope: HTTPScope, answer: _Answer) -> _Answer:
        if answer.status != 200:
            return answer
        created = json.decode(answer.body)
        port = self._members.urls[self._members.index].rpartition(":")[2]
        created["base_url"] = f"{scope['scheme']}://{_host(scope)}:{port}/sessions/{created['session_id']}"
        return _json(created)

    def _health(self) -> _Answer:
        workers = [
            {
                "index": worker.index,
                "up": up,
                "restarts": worker.restarts,
                "sessions": len(self._gateway.registry) if worker.index == self._members.index else worker.sessions,
            }
            for worker, up in zip(self._members.workers, self._members.up, strict=True)
        ]
        status = "ok" if all(self._members.up) else "degraded"
        return _json({"status": status, "session_server_instance_id": self._gateway.instance_id, "workers": workers})

    async def _list(self, query: bytes) -> _Answer:
        try:
            page = read_page(query)
        except InvalidRequest as error:
            return _error("/sessions", status_of(error), str(error))
        here = self._gateway.registry.list(after=page.after, limit=page.limit + 1)
        pages = {self._members.index: page_of(here, page)}
        target = f"/sessions?{page.query}".encode()
        request = PeerRequest("GET", target, [(b"host", b"worker"), (HOP_HEADER, self._secret)], b"")

        async def fetch(index: int) -> None:
            answer = await self._ask(index, request, seconds=_LIST_SECONDS)
            if answer is not None and answer.status == 200:
                pages[index] = json.decode(answer.body)

        async with trio.open_nursery() as nursery:
            for index in range(len(self._members.urls)):
                if index != self._members.index:
                    nursery.start_soon(fetch, index)
        missing = [str(index) for index in range(len(self._members.urls)) if index not in pages]
        if missing:
            # Whoever looks for what is left behind must not take a part for the whole.
            return _error("/sessions", 503, f"worker {', '.join(missing)} does not say which sessions it has")
        return _json(merged_pages(list(pages.values()), page))

    async def _metrics(self) -> _Answer:
        pages = {self._members.index: self._gateway.metrics.render()}
        request = PeerRequest("GET", b"/metrics", [(b"host", b"worker"), (HOP_HEADER, self._secret)], b"")

        async def fetch(index: int) -> None:
            answer = await self._ask(index, request, seconds=_METRICS_SECONDS)
            if answer is not None and answer.status == 200:
                pages[index] = answer.body

        async with trio.open_nursery() as nursery:
            for index, up in enumerate(self._members.up):
                if up and index != self._members.index:
                    nursery.start_soon(fetch, index)
        body = merge_metrics(pages, self._members.workers)
        return _Answer(200, _about(METRICS_CONTENT_TYPE, body), body)


def _host(scope: HTTPScope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"host"), None)
    server = scope["server"]
    return advertised_host(header, reached=str(server[0]) if server else "127.0.0.1")


def _without(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """Leaves out ``dropped`` and what a Connection header names as its own."""
    headers = list(headers)
    named = {
        name.strip().lower() for key, value in headers if key.lower() == b"connection" for name in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in dropped | named]


async def _body(receive: ASGIReceiveCallable) -> bytes:
    event = await receive()
    return event["body"] if event["type"] == "http.request" else b""


@asynccontextmanager
async def _attended(receive: ASGIReceiveCallable) -> AsyncIterator[None]:
    """A block that is cancelled when the client goes; what is sent to it afterwards is lost."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


async def _ask_app(app: ASGIFramework, scope: HTTPScope, body: bytes) -> _Answer:
    """The whole answer of ``app``."""
    unread = [body]
    status = 500
    headers: RawHeaders = ()
    chunks: list[bytes] = []

    async def receive() -> ASGIReceiveEvent:
        if not unread:
            await trio.sleep_forever()
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(event: ASGISendEvent) -> None:
        nonlocal status, headers
        if event["type"] == "http.response.start":
            status, headers = event["status"], list(event["headers"])
        elif event["type"] == "http.response.body":
            chunks.append(event["body"])

    await app(scope, receive, send)
    return _Answer(status, headers, b"".join(chunks))


def _json(value: Any) -> _Answer:
    body = json.encode(value)
    return _Answer(200, _about("application/json", body), body)


def _error(path: str, status: int, text: str) -> _Answer:
    reply = refused(path, status, text)
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    return _Answer(reply.status, [*headers, (b"content-length", str(len(reply.body)).encode())], reply.body)


def _about(content_type: str, body: bytes) -> RawHeaders:
    return [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]


async def _send_answer(send: ASGISendCallable, answer: _Answer) -> None:
    await _send_start(send, answer.status, answer.headers)
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def _send_start(send: ASGISendCallable, status: int, headers: RawHeaders) -> None:
    # ``WholeRequests`` expects values in UTF-8, as Quart spells them.
    spelt = [(name, value.decode("latin-1").encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": spelt, "trailers": False})
