"""Limits of connections: how many, how slow, and whether they end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from tests.web.support import CHAT, RawConnection, Serve, Served, Session, compact, http_client, settle, until, user
from tests.web.test_turn_limits import refused
from trio_sessions.hosting import AppServer, ConnectionLimits, Room, bind, hypercorn_config
from trio_sessions.hosting.connection import Connection
from trio_sessions.testing.engine import ScriptedEngine, chat_answer

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = compact({"messages": [user("hi")]})
SHORT = 0.2


def post(path: str, *headers: str, length: int) -> bytes:
    """The head of a request with a body."""
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", "")).encode()


def room(served: Served) -> float:
    """How many connections there are; the client keeps one."""
    value = served.limits.room.taken
    assert value <= served.gateway.settings.max_connections
    return value


class TestHowMany:
    async def test_one_too_many_is_told_so_and_closed_and_there_is_room_again(self, serve: Serve) -> None:
        served = await serve(max_connections=2)
        first, second = await served.connect(), await served.connect()
        async with first, second:
            await first.send(HEALTH)
            await second.send(HEALTH)
            assert [(await each.response()).status for each in (first, second)] == [200, 200]
            async with await served.connect() as third:
                # Whatever it sends, and before it does.
                answer = await third.response()
                assert answer.status == 503
                assert json.loads(answer.body) == {"error": "the server has 2 connections already (--max-connections)"}
                assert (answer.all("connection"), answer.all("retry-after")) == ([b"close"], [b"1"])
                assert (len(answer.all("date")), len(answer.all("server"))) == (1, 1)
                assert await third.closed()
            # Those that there was room for are not touched.
            await first.send(HEALTH)
            assert (await first.response()).status == 200
        await until(lambda: room(served) == 0)
        async with await served.connect() as fourth:
            await fourth.send(HEALTH)
            assert (await fourth.response()).status == 200
        assert refused(served, "connections") == 1

    async def test_a_client_that_sends_its_request_first_reads_the_refusal(self, serve: Serve) -> None:
        served = await serve(max_connections=1)
        async with await served.connect() as first:
            await first.send(HEALTH)
            await first.response()
            async with http_client(served.port) as client:
                response = await client.post("/sessions", content=b"x" * 2**20)
                assert response.status_code == 503

    async def test_many_refusals_do_not_take_room_without_an_end(self, serve: Serve) -> None:
        served = await serve(max_connections=1)
        async with await served.connect() as first:
            await first.send(HEALTH)
            await first.response()
            others = [await served.connect() for _ in range(80)]
            await until(lambda: refused(served, "connections") == 80)
            # None of them closes by itself.
            for other in others:
                await other.closed()
            await first.send(HEALTH)
            assert (await first.response()).status == 200
            for other in others:
                async with other:
                    pass

    async def test_servers_may_share_the_room(self) -> None:
        async def app(scope: object, receive: object, send: object) -> None:
            await trio.sleep_forever()

        limits = ConnectionLimits(room=Room(1_000_000))
        limits.room.taken = 999_999
        with bind("127.0.0.1", 0) as one, bind("127.0.0.1", 0) as other:
            async with trio.open_nursery() as nursery:
                for listener in (one, other):
                    await nursery.start(AppServer(app, listener, limits=limits).run)
                async with RawConnection(await trio.open_tcp_stream("127.0.0.1", one.getsockname()[1])):
                    await until(lambda: limits.room.taken == 1_000_000)
                    stream = await trio.open_tcp_stream("127.0.0.1", other.getsockname()[1])
                    async with RawConnection(stream) as refused_one:
                        answer = await refused_one.response()
                        assert (answer.status, b"has 1000000 connections already" in answer.body) == (503, True)
                nursery.cancel_scope.cancel()


class TestHeads:
    @pytest.mark.parametrize("part", [b"G", HEALTH[:-1], HEALTH[:-4] + b"X: " + b"y" * 10_000])
    async def test_one_that_does_not_arrive_is_408(self, serve: Serve, part: bytes) -> None:
        served = await serve(header_timeout=SHORT)
        async with await served.connect() as connection:
            await connection.send(part)
            answer = await connection.response()
            assert answer.status == 408
            assert json.loads(answer.body) == {"error": f"the request's head did not arrive within {SHORT} s"}
            assert answer.all("connection") == [b"close"]
            assert await connection.closed()
        assert refused(served, "header_timeout") == 1

    async def test_one_that_comes_byte_by_byte_gets_no_more_time(self, serve: Serve) -> None:
        served = await serve(header_timeout=0.2)
        async with await served.connect() as connection:

            async def drip() -> None:
                for _ in range(1000):
                    await connection.send(b"a")
                    await trio.sleep(0.01)

            with pytest.raises(trio.BrokenResourceError):
                await drip()
            assert refused(served, "header_timeout") == 1

    async def test_one_on_a_connection_that_was_used_before(self, serve: Serve) -> None:
        # Long enough for the heads that arrive, also where the machine has more to do.
        limit = 1.0
        served = await serve(header_timeout=limit)
        async with await served.connect() as connection:
            await connection.send(HEALTH)
            assert (await connection.response()).status == 200
            # An idle connection is no head that does not come.
            await trio.sleep(1.1 * limit)
            await connection.send(HEALTH + HEALTH[:9])
            assert (await connection.response()).status == 200
            await connection.send(HEALTH[9:] + HEALTH[:5])
            assert (await connection.response()).status == 200
            await connection.send(HEALTH[5:9])
            assert (await connection.response()).status == 408
            assert await connection.closed()
        assert refused(served, "header_timeout") == 1

    async def test_a_connection_that_sends_nothing_is_closed_without_a_word(self, serve: Serve) -> None:
        served = await serve(header_timeout=SHORT)
        async with await served.connect() as connection:
            assert await connection.closed()
        assert refused(served, "header_timeout") == 0

    async def test_a_turn_that_takes_longer_than_a_head_may_is_answered(self, serve: Serve) -> None:
        async def slow(_: object) -> object:
            await trio.sleep(3 * SHORT)
            return chat_answer()

        served = await serve(ScriptedEngine(otherwise=slow), header_timeout=SHORT)
        session = await served.session()
        async with await served.connect() as connection:
            await connection.send(post(f"{session.path}/{CHAT}", length=len(BODY)), BODY)
            assert (await connection.response()).status == 200

    async def test_one_that_is_too_large_is_431(self, serve: Serve) -> None:
        served = await serve()
        async with await served.connect() as connection:
            await connection.send(HEALTH[:-2] + b"X: " + b"a" * 200_000)
            assert (await connection.response()).status == 431
        assert refused(served, "header") == 1

    async def test_a_server_that_stops_does_not_blame_a_head(self, serve: Serve) -> None:
        served = await serve()
        async with await served.connect() as connection:
            await connection.send(HEALTH[:9])
            await settle()
            await served.server.stop()
            assert await connection.closed()
        assert refused(served, "header_timeout") == 0


class TestBodies:
    async def test_one_that_does_not_arrive_is_408(self, serve: Serve) -> None:
        served = await serve(body_timeout=SHORT)
        session = await served.session()
        async with session.unchanged(), await served.connect() as connection:
            await connection.send(post(f"{session.path}/{CHAT}", length=len(BODY)), BODY[:-1])
            answer = await connection.response()
            assert (answer.status, answer.all("connection")) == (408, [b"close"])
            assert await connection.closed()
        assert refused(served, "body_timeout") == 1

    async def test_one_that_is_too_large_is_413(self, serve: Serve) -> None:
        served = await serve(max_body_mb=0.001)
        session = await served.session()
        async with session.unchanged():
            response = await session.post(b"x" * 2000)
        assert response.status_code == 413
        assert refused(served, "body") == 1


@asynccontextmanager
async def reading_nothing(served: Served) -> AsyncIterator[Session]:
    """The session of a client whose large answer is stuck on the way to it."""
    session = await served.session()
    async with await served.connect() as connection:
        await connection.send(post(f"{session.path}/{CHAT}", length=len(BODY)), BODY)
        history = served.gateway.registry.in_memory(session.id).history
        await until(lambda: history.active is not None)
        yield session


class TestAnswers:
    async def test_a_client_that_takes_nothing_of_its_answer_is_left(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(chat_answer(note="x" * 2**24)), send_timeout=0.2)
        async with reading_nothing(served) as session:
            await until(lambda: refused(served, "send_timeout") == 1)
            # The other is the test's own client.
            await until(lambda: room(served) <= 1)
        assert served.gateway.admission.of_session(session.id) == 0

    @pytest.mark.parametrize(("between", "in_time"), [(50.0, True), (70.0, False)])
    async def test_one_that_takes_it_slowly_gets_it_whole(
        self, autojump_clock: trio.testing.MockClock, between: float, in_time: bool
    ) -> None:
        ours, theirs = trio.testing.lockstep_stream_pair()
        told: list[str] = []
        limits = ConnectionLimits(send_seconds=60, on_limit=told.append)
        connection = Connection(
            cast("Any", None), hypercorn_config(), WorkerContext(None), ConnectionState({}), cast("Any", ours), limits
        )
        connection.protocol = ended = Ended()  # type: ignore[assignment]
        whole = bytes(range(256)) * 2**12
        received = b""

        async def take() -> None:
            nonlocal received
            piece = b"none yet"
            while piece:
                await trio.sleep(between)
                piece = await theirs.receive_some(2**18)
                received += piece

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await connection.protocol_send(RawData(whole))
            await ours.aclose()
        # In all it takes longer than any part of it may.
        assert (received == whole, told, ended.times) == (in_time, [] if in_time else ["send_timeout"], not in_time)


class Ended:
    """Hypercorn's protocol, as far as it is told of an end."""

    def __init__(self) -> None:
        self.times = 0

    async def handle(self, event: Event) -> None:
        self.times += isinstance(event, Closed)
