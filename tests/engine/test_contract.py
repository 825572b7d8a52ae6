"""The contract of ``Engine``, kept by the client on the wire and by the scripted engine that stands in for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints

from tests.raw_server import Connection, response, serving
from trio_sessions.engine.base import Engine, EngineAnswer, EngineCall
from trio_sessions.engine.headers import ROUTING_KEY, from_engine
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import ScriptedEngine

PATIENCE = 10


@dataclass(eq=False)
class Arrived:
    """A call that has reached the engine."""

    method: str
    target: str
    body: bytes
    session_id: str
    answer: Callable[[EngineAnswer], Awaitable[None]]
    cut: Callable[[], Awaitable[None]]
    gone: trio.Event


@dataclass
class Rig:
    """An engine, and its other side."""

    engine: Engine
    arrivals: trio.MemoryReceiveChannel[Arrived]

    async def next(self) -> Arrived:
        return await self.arrivals.receive()


@asynccontextmanager
async def scripted() -> AsyncIterator[Rig]:
    arrivals, arrived = trio.open_memory_channel[Arrived](100)

    async def step(request: EngineCall) -> EngineAnswer:
        outcome, outcomes = trio.open_memory_channel[EngineAnswer | Exception](1)
        gone = trio.Event()
        cut = EngineUnreachable("ReadError", "cut")
        await arrivals.send(
            Arrived(
                request.method,
                f"/{request.path}" + (f"?{request.query}" if request.query else ""),
                request.body,
                request.session_id,
                outcome.send,
                lambda: outcome.send(cut),
                gone,
            )
        )
        try:
            answer = await outcomes.receive()
        except trio.Cancelled:
            gone.set()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    yield Rig(ScriptedEngine(otherwise=step), arrived)


@asynccontextmanager
async def on_the_wire() -> AsyncIterator[Rig]:
    arrivals, arrived = trio.open_memory_channel[Arrived](100)

    async def handler(connection: Connection) -> None:
        while (request := await connection.read()) is not None:
            gone, done = trio.Event(), trio.Event()

            async def answer(answer: EngineAnswer, done: trio.Event = done) -> None:
                await connection.send(response(answer.body, status=f"{answer.status} X", headers=tuple(answer.headers)))
                done.set()

            await arrivals.send(
                Arrived(
                    request.method,
                    request.target,
                    request.body,
                    request.all_of(ROUTING_KEY)[0],
                    answer,
                    connection.stream.aclose,
                    gone,
                )
            )
            async with trio.open_nursery() as nursery:

                async def watch(gone: trio.Event = gone) -> None:
                    with suppress(OSError, trio.ClosedResourceError):
                        await connection.stream.socket.recv(1, trio.socket.MSG_PEEK)
                    gone.set()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await done.wait()
                nursery.cancel_scope.cancel()
            if gone.is_set():
                return

    async with serving(handler) as server, SGLangEngine(server.url, timeout=600) as engine:
        yield Rig(engine, arrived)


@pytest.fixture(params=[scripted, on_the_wire])
def rigs(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Rig]]:
    """Makes rigs. A test enters one itself: only so does the time limit hold for the test."""
    make: Callable[[], AbstractAsyncContextManager[Rig]] = request.param

    @asynccontextmanager
    async def bounded() -> AsyncIterator[Rig]:
        with trio.fail_after(PATIENCE):
            async with make() as rig:
                yield rig

    return bounded


def _call(**changes: Any) -> EngineCall:
    fields: dict[str, Any] = {
        "method": "POST",
        "path": "v1/chat/completions",
        "query": "",
        "headers": (),
        "body": b"{}",
        "session_id": "s1",
    }
    return EngineCall(**{**fields, **changes})


async def _one(rig: Rig, answer: EngineAnswer, **changes: Any) -> tuple[Arrived, EngineAnswer]:
    answers = []

    async def call() -> None:
        with assert_checkpoints():
            answers.append(await rig.engine.call(_call(**changes)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        arrived = await rig.next()
        await arrived.answer(answer)
    return arrived, answers[0]


@pytest.mark.parametrize("body", [b"", b"{}", bytes(range(256))])
async def test_the_engine_gets_the_call_as_it_is(rigs, body):
    async with rigs() as rig:
        arrived, _ = await _one(
            rig, EngineAnswer(200, (), b""), method="PUT", path="a%2Fb", query="c=%20d", body=body, session_id="s9"
        )
        assert (arrived.method, arrived.target, arrived.body, arrived.session_id) == (
            "PUT",
            "/a%2Fb?c=%20d",
            body,
            "s9",
        )


@pytest.mark.parametrize("status", [200, 302, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("body", [b"", b'{ "a" : 1 }', b"\xff\x00" * 100_000])
async def test_any_whole_answer_is_one(rigs, status, body):
    async with rigs() as rig:
        headers = (("x-a", "1"), ("x-a", "2"), ("retry-after", "1"))
        _, answer = await _one(rig, EngineAnswer(status, headers, body))
        assert (answer.status, answer.body) == (status, body)
        assert from_engine(answer.headers) == list(headers)


async def test_a_cut_connection_is_unreachable_and_the_next_call_is_not(rigs):
    async with rigs() as rig:

        async def call() -> None:
            with pytest.raises(EngineUnreachable, match=r"^backend transport error: \w+: .+"):
                await rig.engine.call(_call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await (await rig.next()).cut()
        _, answer = await _one(rig, EngineAnswer(200, (), b"1"))
        assert answer.body == b"1"


async def test_a_cancelled_call_is_given_up_at_once(rigs):
    async with rigs() as rig:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.engine.call, _call())
            arrived = await rig.next()
            assert not arrived.gone.is_set()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        await arrived.gone.wait()
        _, answer = await _one(rig, EngineAnswer(200, (), b"1"))
        assert answer.body == b"1"


async def test_calls_of_one_session_overlap_and_are_answered_in_any_order(rigs):
    answered, answers = trio.open_memory_channel[tuple[bytes, bytes]](3)

    async with rigs() as rig:

        async def call(body: bytes) -> None:
            await answered.send((body, (await rig.engine.call(_call(body=body))).body))

        async with trio.open_nursery() as nursery:
            for body in (b"1", b"2", b"3"):
                nursery.start_soon(call, body)
            arrived = {one.body: one for one in [await rig.next() for _ in range(3)]}
            for body in (b"3", b"1", b"2"):
                await arrived[body].answer(EngineAnswer(200, (), b"to " + body))
                assert await answers.receive() == (body, b"to " + body)


async def test_cancelling_one_call_leaves_the_others(rigs):
    async with rigs() as rig:
        answers = []

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                answers.append(await rig.engine.call(_call()))

        doomed = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, doomed)
            first = await rig.next()
            nursery.start_soon(call, trio.CancelScope())
            second = await rig.next()
            doomed.cancel()
            await first.gone.wait()
            await second.answer(EngineAnswer(200, (), b"1"))
        assert [answer.body for answer in answers] == [b"1"]
