"""Traps of the stack (Hypercorn, Quart-Trio, httpx), each with the gateway out of it.

Where it is quick, the same is done to the bare stack first: if such a control stops failing, the cure can go.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
import trio
import trio.abc
import trio.lowlevel

from tests.web.support import (
    CHAT,
    RawConnection,
    Serve,
    Served,
    Session,
    compact,
    error_text,
    http_client,
    serving_app,
    settle,
    until,
    user,
)
from trio_sessions.config import Settings
from trio_sessions.core.completion import extract_completion
from trio_sessions.engine.base import EngineCall
from trio_sessions.hosting import AppServer, WholeRequests, bind, hypercorn_config
from trio_sessions.serve import gateway_app
from trio_sessions.service.gateway import Gateway
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.app import create_app

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
TURN = compact({"messages": [user("hi")]})
STUCK_SECONDS = 0.4
"""Long enough for an answer that comes at once, short enough to wait for one that never does."""


def gateway(*, script: Sequence[Any] = (), otherwise: Any = None) -> Gateway:
    engine = ScriptedEngine(*script, otherwise=otherwise)
    return Gateway(Settings(port=0), engine=engine, renderer=ToyRenderer())


def bare(of: Gateway) -> ASGIFramework:
    """The application without what makes its requests whole."""
    return cast("ASGIFramework", create_app(of))


@asynccontextmanager
async def connected(app: ASGIFramework, *, keep_alive: float = 60) -> AsyncIterator[RawConnection]:
    """A connection to Hypercorn over ``app``."""
    async with (
        serving_app(app, keep_alive=keep_alive) as port,
        RawConnection(await trio.open_tcp_stream("127.0.0.1", port)) as connection,
    ):
        yield connection


def split(line: str, body: bytes = b"{}") -> tuple[bytes, bytes]:
    """A request whose head and body are segments of their own."""
    return f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode(), body


UNREAD = [
    ("POST /nope", 404),
    ("POST /health", 405),
    ("PUT /sessions", 405),
    (f"POST /sessions/{'0' * 32}/{CHAT}", 404),
    (f"POST /sessions/{'0' * 32}/tokenize", 404),
    ("POST /sessions", 200),
    ("GET /health", 200),
    ("GET /metrics", 200),
]


class TestKeepAliveWedge:
    async def test_the_bare_stack_is_wedged(self) -> None:
        async with connected(bare(gateway())) as connection:
            await connection.send(*split("POST /nope"))
            assert (await connection.response()).status == 404
            await connection.send(HEALTH)
            with trio.move_on_after(STUCK_SECONDS) as patience:
                await connection.response()
            assert patience.cancelled_caught

    @pytest.mark.parametrize(("line", "status"), UNREAD)
    async def test_the_next_request_is_answered(self, served: Served, line: str, status: int) -> None:
        async with await served.connect() as connection:
            for _ in range(2):
                await connection.send(*split(line))
                assert (await connection.response()).status == status
                await connection.send(HEALTH)
                assert (await connection.response()).status == 200

    async def test_also_when_the_body_comes_in_many_segments(self, served: Served) -> None:
        head, body = split("POST /nope", b"x" * 50)
        async with await served.connect() as connection:
            await connection.send(head, *[body[index : index + 10] for index in range(0, 50, 10)])
            assert (await connection.response()).status == 404
            await connection.send(HEALTH)
            assert (await connection.response()).status == 200


class TestClosedByTheClient:
    async def test_the_connection_is_given_up_at_once_not_when_it_has_been_idle_for_long(self) -> None:
        async with serving_app(gateway_app(gateway()), keep_alive=60) as port:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with RawConnection(stream) as connection:
                await connection.send(HEALTH)
                assert (await connection.response()).status == 200
                await stream.send_eof()
                with trio.fail_after(5):
                    assert await connection.closed()


class TestKeepAliveTimeout:
    """The idle timer of a connection, which is ours, starts again after each answer.

    Hypercorn's own does not when Quart cancels the task that has answered.
    """

    @pytest.mark.parametrize(("line", "status"), UNREAD)
    async def test_it_fires_after_a_request(self, line: str, status: int) -> None:
        async with connected(gateway_app(gateway()), keep_alive=0.1) as connection:
            await connection.send(*split(line))
            assert (await connection.response()).status == status
            with trio.fail_after(2):
                assert await connection.closed()

    async def test_it_fires_on_a_connection_that_never_asks(self) -> None:
        async with connected(gateway_app(gateway()), keep_alive=0.1) as connection:
            with trio.fail_after(2):
                assert await connection.closed()

    async def test_it_does_not_fire_while_a_turn_is_at_the_engine(self) -> None:
        held = HeldCalls()
        of = gateway(otherwise=held)
        session = await of.registry.create()
        async with connected(gateway_app(of), keep_alive=0.1) as connection:
            await connection.send(*split(f"POST /sessions/{session.id}/{CHAT}", TURN))
            await until(lambda: len(held.waiting) == 1)
            await trio.sleep(0.3)
            held.waiting[0].answer(chat_answer())
            assert (await connection.response()).status == 200


class Crash(Exception):
    """A service task's end."""


class TestCrash:
    async def test_a_service_that_crashes_takes_the_server_with_it(self) -> None:
        async def crashing(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            task_status.started()
            await asked.wait()
            raise Crash

        async def serve_beside_it() -> None:
            async with trio.open_nursery() as services:
                await services.start(AppServer(gateway_app(gateway()), listener).run)
                await services.start(crashing)
                async with http_client(port) as client:
                    assert (await client.get("/health")).status_code == 200
                asked.set()

        asked = trio.Event()
        with bind("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with trio.fail_after(5), pytest.RaisesGroup(Crash, flatten_subgroups=True):
                await serve_beside_it()
        async with http_client(port) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("/health")

    async def test_a_request_that_crashes_is_a_500_and_the_server_goes_on(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(*[Crash("said by a client")] * 3))
        session = await served.session()
        for _ in range(3):
            text = error_text(await session.chat(user("hi")), 500)
            assert text == "internal error: the server's log has the details"
        await session.turn(user("hi"))


class TestDisconnect:
    """More is in ``test_concurrency``; here the control on what would happen to a commit."""

    async def test_the_proxy_gives_its_engine_call_up(self, serve: Serve) -> None:
        held = HeldCalls()
        served = await serve(ScriptedEngine(otherwise=held))
        session = await served.session()
        async with await served.connect() as connection:
            await connection.send(*split(f"POST {session.path}/tokenize"))
            await until(lambda: len(held.waiting) == 1)
        await until(lambda: served.engine.cancelled == 1)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_reset_connection_is_a_disconnect_too(self, serve: Serve, stream: bool) -> None:
        held = HeldCalls()
        served = await serve(ScriptedEngine(otherwise=held))
        session = await served.session()
        body = compact({"messages": [user("hi")], "stream": stream})
        async with session.unchanged():
            async with await trio.open_tcp_stream("127.0.0.1", served.port) as connection:
                # Closing with a linger time of 0 sends a reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await connection.send_all(b"".join(split(f"POST {session.path}/{CHAT}", body)))
                await until(lambda: len(held.waiting) == 1)
            await until(lambda: served.engine.cancelled == 1)

    async def test_a_body_that_is_cut_off_is_no_request(self, served: Served) -> None:
        session = await served.session()
        head, body = split(f"POST {session.path}/{CHAT}", TURN)
        async with session.unchanged():
            async with await served.connect() as connection:
                await connection.send(head, body[:-1])
            assert (await served.client.get("/health")).status_code == 200
        assert served.engine.calls == []

    async def test_a_client_that_reads_nothing_of_its_answer_does_not_hold_the_session(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(big_answer(4)))
        session = await served.session()
        async with await served.connect() as connection:
            await connection.send(*split(f"POST {session.path}/{CHAT}", TURN))
            await until(lambda: served.gateway.registry.in_memory(session.id).history.active is not None)
            await session.turn(user("another"))
        assert len(await session.records()) == 1


def big_answer(megabytes: float) -> Any:
    """A usable answer of about that size."""
    entry_bytes = len(b"[-0.251953125,12345,null],")
    return chat_answer("ok", token_ids=[12345] * int(megabytes * 2**20 / entry_bytes))


class TestStop:
    async def test_an_idle_connection_does_not_hold_it_up(self) -> None:
        async with (
            stoppable() as (server, port, _),
            RawConnection(await trio.open_tcp_stream("127.0.0.1", port)) as connection,
        ):
            await connection.send(HEALTH)
            assert (await connection.response()).status == 200
            with trio.fail_after(1):
                await server.stop()
            assert await connection.closed()

    async def test_a_client_that_reads_nothing_of_its_answer_does_not_hold_it_up(self) -> None:
        """Hypercorn sends under a shield, so that its own grace period cannot end this."""
        async with stoppable(big_answer(16)) as (server, port, of), reading_nothing(port, of):
            with trio.fail_after(6):
                await server.stop()

    async def test_nor_does_it_hold_up_a_cancellation(self) -> None:
        """Which is what a second signal, and a crash of another service, come to."""
        of = gateway(script=[big_answer(16)])
        ended = trio.Event()

        async def run(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as services:
                    await services.start(AppServer(gateway_app(of), listener).run)
                    task_status.started(scope)
            ended.set()

        with bind("127.0.0.1", 0) as listener:
            async with trio.open_nursery() as nursery:
                scope: trio.CancelScope = await nursery.start(run)
                async with reading_nothing(listener.getsockname()[1], of):
                    scope.cancel()
                    with trio.fail_after(2):
                        await ended.wait()


@asynccontextmanager
async def reading_nothing(port: int, of: Gateway) -> AsyncIterator[None]:
    """A client whose large answer is stuck on the way to it."""
    session = await of.registry.create()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"".join(split(f"POST /sessions/{session.id}/{CHAT}", TURN)))
        await until(lambda: session.history.active is not None)
        await settle()
        yield


@asynccontextmanager
async def stoppable(*script: Any) -> AsyncIterator[tuple[AppServer, int, Gateway]]:
    """A server to stop, its port and its gateway."""
    of = gateway(script=script)
    with bind("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            server = AppServer(gateway_app(of), listener)
            await nursery.start(server.run)
            yield server, listener.getsockname()[1], of


class TestDefaults:
    async def test_a_body_over_16_mib_is_taken(self, serve: Serve) -> None:
        served = await serve(max_body_mb=20)
        session = await served.session()
        filler = "x" * (17 * 2**20)
        response = await session.chat(user("hi"), note=filler)
        assert response.status_code == 200
        assert served.engine.calls[0].body.count(b"x") >= len(filler)

    async def test_quarts_own_limits_are_off(self) -> None:
        config = create_app(gateway()).config
        assert {name: config[name] for name in ("MAX_CONTENT_LENGTH", "RESPONSE_TIMEOUT", "BODY_TIMEOUT")} == {
            "MAX_CONTENT_LENGTH": None,
            "RESPONSE_TIMEOUT": None,
            "BODY_TIMEOUT": None,
        }

    async def test_hypercorns_defaults_are_overridden(self) -> None:
        config = hypercorn_config()
        assert config.keep_alive_timeout > 60
        assert config.keep_alive_max_requests > 10**6
        assert config.read_timeout is None
        assert config.max_requests is None

    async def test_a_connection_serves_more_than_a_thousand_requests(self, served: Served) -> None:
        async with await served.connect() as connection:
            for _ in range(11):
                await connection.send(HEALTH * 100)
                for _ in range(100):
                    response = await connection.response()
                    assert response.status == 200
                    assert response.all("connection") == []

    async def test_many_clients_connect_at_once(self, served: Served) -> None:
        statuses: list[int] = []

        async def ask() -> None:
            async with await served.connect() as connection:
                await connection.send(HEALTH)
                statuses.append((await connection.response()).status)

        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(ask)
        assert statuses == [200] * 300

    async def test_an_answer_may_take_longer_than_the_timeouts_of_a_slow_body(self) -> None:
        """What bounds the arrival of a body does not bound its answer."""
        held = HeldCalls()
        of = gateway(otherwise=held)
        session = await of.registry.create()
        app = WholeRequests(bare(of), max_body_bytes=2**20, body_timeout=0.05)
        async with connected(app) as connection:
            await connection.send(*split(f"POST /sessions/{session.id}/{CHAT}", TURN))
            await until(lambda: len(held.waiting) == 1)
            await trio.sleep(0.15)
            held.waiting[0].answer(chat_answer())
            assert (await connection.response()).status == 200

    async def test_a_body_that_does_not_arrive_is_408(self) -> None:
        app = WholeRequests(bare(gateway()), max_body_bytes=2**20, body_timeout=0.1)
        async with connected(app) as connection:
            await connection.send(split("POST /sessions")[0])
            response = await connection.response()
            assert response.status == 408
            assert response.body == b'{"error":"the request body did not arrive within 0.1 s (--body-timeout)"}'
            assert response.all("content-type") == [b"application/json"]
            assert await connection.closed()


class TestBodyLimit:
    LIMIT = 1024
    TEXT = b'{"error":"the request body is larger than 0.000976562 MiB (--max-body-mb)"}'

    @pytest.fixture
    async def limited(self, serve: Serve) -> Session:
        return await (await serve(max_body_mb=self.LIMIT / 2**20)).session()

    @pytest.mark.parametrize("size", [LIMIT + 1, LIMIT * 100])
    @pytest.mark.parametrize("below", [CHAT, "tokenize"])
    async def test_over_it_is_413_json_and_the_connection_goes_on(
        self, limited: Session, below: str, size: int
    ) -> None:
        async with limited.unchanged(), await limited.served.connect() as connection:
            await connection.send(*split(f"POST {limited.path}/{below}", b"x" * size))
            response = await connection.response()
            assert (response.status, response.body) == (413, self.TEXT)
            assert response.all("content-type") == [b"application/json"]
            await connection.send(HEALTH)
            assert (await connection.response()).status == 200
        assert limited.served.engine.calls == []

    async def test_a_chunked_body_over_it_is_413(self, limited: Session) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        response = await limited.served.client.post(f"{limited.path}/{CHAT}", content=chunks())
        assert (response.status_code, response.content) == (413, self.TEXT)
        assert (await limited.served.client.get("/health")).status_code == 200

    async def test_exactly_at_it_is_taken(self, limited: Session) -> None:
        body = compact({"messages": [user("hi")], "x": ""})
        body = body.replace(b'"x":""', b'"x":"' + b"y" * (self.LIMIT - len(body)) + b'"')
        assert len(body) == self.LIMIT
        assert (await limited.post(body)).status_code == 200

    @pytest.mark.parametrize("line", ["POST /nope", "POST /health", "POST /sessions"])
    async def test_it_holds_on_every_route(self, limited: Session, line: str) -> None:
        async with await limited.served.connect() as connection:
            await connection.send(*split(line, b"x" * 5000))
            assert (await connection.response()).status == 413


class TestLargeAnswers:
    async def test_a_large_answer_comes_whole_and_is_recorded_whole(self, serve: Serve) -> None:
        answer = big_answer(4)
        assert len(answer.body) > 4 * 10**6
        session = await (await serve(ScriptedEngine(answer))).session()
        response = await session.chat(user("hi"))
        assert response.content == answer.body
        assert answer.body in await session.state()

    async def test_the_event_loop_does_not_handle_it(self, serve: Serve) -> None:
        """So that ``/health``, and every other session, is answered meanwhile."""
        answer = big_answer(8)
        session = await (await serve(ScriptedEngine(answer, answer))).session()
        began = time.thread_time()
        extract_completion(answer.body)
        cost = time.thread_time() - began
        with LongestStep() as longest:
            assert (await session.chat(user("hi"))).status_code == 200
            assert (await session.chat(user("other"), stream=True)).status_code == 200
            await session.state()
        assert longest.seconds < cost / 2

    async def test_health_is_answered_while_they_are_handled(self, serve: Serve) -> None:
        held = HeldCalls()
        served = await serve(ScriptedEngine(otherwise=held))
        sessions = [await served.session() for _ in range(4)]
        finished = 0

        async def turn(session: Session) -> None:
            nonlocal finished
            assert (await session.chat(user("hi"))).status_code == 200
            finished += 1

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(turn, session)
            await until(lambda: len(held.waiting) == 4)
            answer = big_answer(4)
            async with await served.connect() as connection:
                for call in held.waiting:
                    call.answer(answer)
                await connection.send(HEALTH)
                with trio.fail_after(1):
                    assert (await connection.response()).status == 200
                assert finished < 4


@dataclass(eq=False)
class LongestStep(trio.abc.Instrument):
    """As a context manager, the longest any task but the test's own kept the event loop to itself.

    Attributes:
        seconds: of processor time, so that other processes do not count.
    """

    seconds: float = 0.0
    _began: float = 0.0
    _test: trio.lowlevel.Task = field(default_factory=trio.lowlevel.current_task)

    def __enter__(self) -> LongestStep:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._test:
            self.seconds = max(self.seconds, time.thread_time() - self._began)


class TestLogProbs:
    """msgspec would write ``null`` for what is not finite, and the standard library accepts ``-Infinity``."""

    @pytest.mark.parametrize("spelling", ["-Infinity", "NaN", "-1e400"])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_one_that_is_not_finite_is_never_recorded(self, serve: Serve, spelling: str, stream: bool) -> None:
        async def answer(_: EngineCall) -> Any:
            usable = chat_answer("o")
            body = usable.body.replace(b"[[-0.25,", b"[[" + spelling.encode() + b",")
            return type(usable)(usable.status, usable.headers, body)

        session = await (await serve(ScriptedEngine(answer))).session()
        async with session.unchanged():
            error_text(await session.chat(user("hi"), stream=stream), 502)
