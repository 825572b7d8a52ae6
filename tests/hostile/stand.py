"""A gateway under attack: on a real port, in a thread of its own, with an engine that keeps every byte it got.

Beside the attacker's session there is another, whose content is a canary.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import h11
import httpx
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.hostile.background import Background, background
from tests.raw_server import response as raw_response
from tests.web.support import CHAT, Served, serving
from tests.workers.cluster import cluster
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.render.base import Renderer
from trio_sessions.service.proxy import ALLOWED_PATHS
from trio_sessions.testing.engine import chat_answer

CANARY = "c4n4ry-of-another-session"
ENGINE_TARGETS = re.compile(
    rf"/({CHAT}|{'|'.join(map(re.escape, sorted(ALLOWED_PATHS)))}|v1/models/[^?#]+)(\?[\x21-\x7e]*)?"
)
ANY_TARGET = re.compile(r"/[\x21-\x7e]*")
# Of domain errors; what h11 says of a request that it cannot read; what a method or framing nobody knows is answered.
_STATUSES = {200, 204, 400, 404, 405, 408, 409, 411, 413, 414, 417, 422, 426, 431, 501, 502, 503, 505}
# Interim ones say nothing. No body of ours has such a line in it.
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-9]\d\d) \r\n")
_SECONDS = 10.0


@dataclass
class EngineRequest:
    """A request as the engine got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def all_of(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class RecordingEngine:
    """Answers turns, and reads as strictly as h11 does.

    Attributes:
        requests: whole ones.
        raw: every byte of every connection.
        broken: what was no HTTP.
    """

    requests: list[EngineRequest] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    broken: list[str] = field(default_factory=list)

    def forget(self) -> None:
        self.requests.clear()
        self.raw.clear()

    async def handle(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        try:
            while True:
                match connection.next_event():
                    case h11.NEED_DATA:
                        data = bytes(await stream.receive_some())
                        self.raw += data
                        connection.receive_data(data)
                    case h11.Request() as head:
                        body = b""
                    case h11.Data(data=data):
                        body += data
                    case h11.EndOfMessage():
                        assert head is not None
                        request = EngineRequest(
                            head.method.decode(),
                            head.target.decode("latin-1"),
                            [(n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items()],
                            body,
                        )
                        self.requests.append(request)
                        await stream.send_all(self._answer(request))
                        # What was answered without h11 is told it.
                        connection = self._next(connection)
                    case _:
                        return
        except h11.RemoteProtocolError as error:
            if head is not None or connection.trailing_data[0]:
                self.broken.append(str(error))
        except trio.BrokenResourceError:
            pass

    def _answer(self, request: EngineRequest) -> bytes:
        if request.target.partition("?")[0] == f"/{CHAT}":
            said = CANARY if CANARY.encode() in request.body else "ok"
            return raw_response(chat_answer(said).body, headers=(("content-type", "application/json"),))
        body = b"" if request.method == "HEAD" else b"{}"
        return raw_response(body, headers=(("content-type", "application/json"),))

    def _next(self, connection: h11.Connection) -> h11.Connection:
        rest = connection.trailing_data[0]
        following = h11.Connection(h11.SERVER)
        if rest:
            following.receive_data(rest)
        return following


@dataclass(frozen=True)
class _Opened:
    engine: RecordingEngine
    served: Served
    attacker: str
    canary: str
    canary_state: bytes


@dataclass
class Stand:
    """The gateway, and what tests do to it from their own thread.

    Attributes:
        session_id: the attacker's session.
    """

    _opened: Background[_Opened]
    session_id: str
    _open_proxy: bool

    @property
    def engine(self) -> RecordingEngine:
        """What it asks."""
        return self._opened.value.engine

    @property
    def served(self) -> Served:
        """What is attacked."""
        return self._opened.value.served

    @property
    def run(self) -> Callable[..., Any]:
        """Runs something in the gateway's thread."""
        return self._opened.run

    def attack(self, raw: bytes, *, requests: int | None = None) -> Reply:
        """Send bytes over a connection of their own; what came back. Whatever they are, all that must hold holds.

        Args:
            raw: to be sent.
            requests: how many there are in it, in HTTP/2; None for HTTP/1, where bytes and answers tell.
        """
        self.engine.forget()
        with watched_logs() as logs:
            received = self.run(self._send, raw)
        if requests is not None:
            # Which is the end of this connection and of nothing else; HTTP/2 can say what no library can read.
            logs = [line for line in logs if line["event"] != "connection broke"]
        self._examine(received, logs)
        reply = Reply([int(status) for status in _STATUS_LINE.findall(received)], received)
        # One in, one out at the most; of the last the answer may not have been waited for.
        most = min(raw.count(b"HTTP/"), len(reply.statuses) + 1) if requests is None else requests
        assert len(self.engine.requests) <= most, self.engine.requests
        self.renew()
        return reply

    def post(self, path: str, body: bytes, *, headers: dict[str, Any] | None = None) -> httpx.Response:
        """A request that is well framed; what holds for all holds for its answer."""
        self.engine.forget()
        with watched_logs() as logs:
            answer = self.run(self._post, path, body, headers)
        self._examine(b"HTTP/1.1 %d \r\n" % answer.status_code + answer.content, logs)
        assert len(self.engine.requests) <= 1
        return answer

    def start_over(self) -> None:
        """The attacker goes on with a new session."""
        self.session_id = self.run(self.served.session).id

    def state(self) -> bytes:
        """Of the attacker's session."""
        state: bytes = self.run(self._state, self.session_id)
        return state

    def assert_other_session_is_as_it_was(self) -> None:
        """The canary is where it was, and nowhere else."""
        assert self.run(self._state, self._opened.value.canary) == self._opened.value.canary_state

    def _examine(self, received: bytes, logs: list[Any]) -> None:
        assert b"internal error" not in received
        assert CANARY.encode() not in received
        for status in _STATUS_LINE.findall(received):
            assert int(status) in _STATUSES, received
        worst = [line for line in logs if line["event"] in ("unexpected error", "connection broke", "server error")]
        assert worst == []
        assert self.engine.broken == []
        assert CANARY.encode() not in self.engine.raw
        for request in self.engine.requests:
            assert (ANY_TARGET if self._open_proxy else ENGINE_TARGETS).fullmatch(request.target), request
            segments = unquote(unquote(request.target.partition("?")[0])).split("/")[1:]
            assert not {".", ".."} & {segment.partition(";")[0] for segment in segments}
            # The last may be empty: that is a path of its own.
            assert "" not in segments[:-1]
            assert request.all_of("x-smg-routing-key") == [self.session_id]
            assert len(request.all_of("host")) == 1
            assert len(request.all_of("content-length")) + (request.method in ("GET", "HEAD", "DELETE")) >= 1
            assert request.all_of("transfer-encoding") == []
            if request.target.partition("?")[0] == f"/{CHAT}" and not self._open_proxy:
                assert request.method == "POST"
                assert isinstance(json.loads(request.body)["input_ids"], list)

    def renew(self) -> None:
        """The gateway answers, and the attacker has a session."""
        self.session_id = self.run(self._alive)

    async def _alive(self) -> str:
        with trio.fail_after(_SECONDS):
            assert (await self.served.client.get("/health")).status_code == 200
            if (await self.served.client.get(f"/sessions/{self.session_id}")).status_code == 200:
                return self.session_id
            created: str = (await self.served.client.post("/sessions")).json()["session_id"]
            return created

    async def _post(self, path: str, body: bytes, headers: dict[str, Any] | None) -> httpx.Response:
        with trio.fail_after(_SECONDS):
            return await self.served.client.post(path, content=body, headers=headers)

    async def _state(self, session_id: str) -> bytes:
        return (await self.served.client.get(f"/sessions/{session_id}")).content

    async def _send(self, raw: bytes) -> bytes:
        received = bytearray()
        stream = await trio.open_tcp_stream("127.0.0.1", self.served.port)
        with trio.fail_after(_SECONDS):
            async with stream, trio.open_nursery() as nursery:
                ended = trio.Event()

                async def receive() -> None:
                    with suppress(trio.BrokenResourceError):
                        while data := await stream.receive_some():
                            received.extend(data)
                    ended.set()

                async def send() -> None:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(raw)

                nursery.start_soon(receive)
                nursery.start_soon(send)
                seen = -1
                while seen != len(received) and not ended.is_set():
                    seen = len(received)
                    await trio.testing.wait_all_tasks_blocked(0.003)
                # Whatever it still waits for does not come: then it has to end.
                with suppress(trio.BrokenResourceError, OSError):
                    await stream.send_eof()
                await ended.wait()
        return bytes(received)


@contextmanager
def watched_logs() -> Iterator[list[Any]]:
    """What is logged inside, by the server below the gateway as well."""
    logger = logging.getLogger("trio_sessions.hypercorn")
    with capture_logs() as logs:

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                logs.append({"event": "server error", "text": record.getMessage(), "trace": record.exc_text})

        handler = Handler(logging.ERROR)
        logger.addHandler(handler)
        try:
            yield logs
        finally:
            logger.removeHandler(handler)


@dataclass(frozen=True)
class Reply:
    """What came back over a connection.

    Attributes:
        statuses: of the responses.
        raw: all of it.
    """

    statuses: list[int]
    raw: bytes


@asynccontextmanager
async def _gateway(engine: SGLangEngine, **options: Any) -> AsyncIterator[Served]:
    async with serving(engine, **options) as served:
        yield served


@asynccontextmanager
async def _worker(engine: SGLangEngine, **settings: Any) -> AsyncIterator[Served]:
    """The first of two workers, which have the sessions by turns."""
    async with cluster(engines=[engine, engine], patience=math.inf, **settings) as made:
        yield made.served[0]


@asynccontextmanager
async def _opened(open_: Callable[[SGLangEngine], AbstractAsyncContextManager[Served]]) -> AsyncIterator[_Opened]:
    engine = RecordingEngine()
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, engine.handle, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with SGLangEngine(url, timeout=_SECONDS) as client, open_(client) as served:
            canary = await served.session()
            await canary.turn({"role": "user", "content": CANARY})
            yield _Opened(engine, served, (await served.session()).id, canary.id, await canary.state())
        nursery.cancel_scope.cancel()


@contextmanager
def standing(renderer: Renderer | None = None, **settings: Any) -> Iterator[Stand]:
    """A gateway, until the end of the block. At the end the canary is as it was."""
    open_ = partial(_gateway, renderer=renderer, **settings)
    with _standing(open_, open_proxy=settings.get("open_proxy", False)) as stand:
        yield stand


@contextmanager
def standing_before_workers(**settings: Any) -> Iterator[Stand]:
    """As ``standing``, with two workers, of which one is attacked."""
    with _standing(partial(_worker, **settings)) as stand:
        yield stand


@contextmanager
def _standing(
    open_: Callable[[SGLangEngine], AbstractAsyncContextManager[Served]], *, open_proxy: bool = False
) -> Iterator[Stand]:
    with background(lambda: _opened(open_)) as opened:
        stand = Stand(opened, opened.value.attacker, open_proxy)
        yield stand
        stand.assert_other_session_is_as_it_was()
