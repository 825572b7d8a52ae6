"""The concurrency section of the contract: overlapping turns, deletion, clients that go away."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.web.support import (
    CHAT,
    Serve,
    Served,
    Session,
    assert_error,
    assistant,
    compact,
    settle,
    until,
    user,
)
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import HeldCall, HeldCalls, ScriptedEngine, chat_answer


class Overlap:
    """Turns of a session that wait at the engine until a test answers them."""

    def __init__(self, session: Session, held: HeldCalls, nursery: trio.Nursery) -> None:
        self.session = session
        self.held = held
        self.nursery = nursery

    async def start(self, *messages: Any, **fields: Any) -> Turn:
        """Send a turn and wait until it is at the engine."""
        turn = Turn()
        waiting = len(self.held.waiting)

        async def run() -> None:
            turn.response = await self.session.chat(*messages, **fields)
            turn.done.set()

        self.nursery.start_soon(run)
        await until(lambda: len(self.held.waiting) > waiting)
        turn.call = self.held.waiting[-1]
        return turn


class Turn:
    """A turn at the engine."""

    def __init__(self) -> None:
        self.call: HeldCall
        self.response: Any = None
        self.done = trio.Event()

    async def answer(self, text: str) -> Any:
        """Answer the engine call; what the client got."""
        return await self.settle(chat_answer(text))

    async def settle(self, step: EngineAnswer | Exception) -> Any:
        self.call.answer(step)
        await self.done.wait()
        return self.response


@pytest.fixture
async def overlap(serve: Serve, nursery: trio.Nursery) -> Overlap:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held))
    return Overlap(await served.session(), held, nursery)


def said(response: Any, text: str) -> bool:
    """Whether the client got that text with a 200."""
    return (response.status_code, response.content) == (200, chat_answer(text).body)


async def texts(session: Session) -> list[str]:
    return [record["response"]["choices"][0]["message"]["content"] for record in await session.records()]


async def test_turns_of_one_session_overlap_at_the_engine(overlap: Overlap) -> None:
    turns = [await overlap.start(user(str(index))) for index in range(3)]
    assert overlap.session.served.engine.in_flight == 3
    for turn in turns:
        await turn.answer("x")


async def test_the_first_to_commit_wins_and_the_loser_answers_200_unrecorded(overlap: Overlap) -> None:
    first, second = await overlap.start(user("one")), await overlap.start(user("two"))
    assert said(await second.answer("winner"), "winner")
    async with overlap.session.unchanged():
        assert said(await first.answer("loser"), "loser")
    assert await texts(overlap.session) == ["winner"]


async def test_a_loser_that_streams_gets_its_stream(overlap: Overlap) -> None:
    loser, winner = await overlap.start(user("one"), stream=True), await overlap.start(user("two"))
    await winner.answer("w")
    response = await loser.answer("l")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content.endswith(b"data: [DONE]\n\n")
    assert await texts(overlap.session) == ["w"]


async def test_the_same_turn_sent_twice_is_recorded_once(overlap: Overlap) -> None:
    twins = [await overlap.start(user("one")), await overlap.start(user("one"))]
    for twin, text in zip(twins, "ab", strict=True):
        assert said(await twin.answer(text), text)
    assert await texts(overlap.session) == ["a"]


async def test_a_turn_whose_session_lost_a_checkpoint_records_nothing(overlap: Overlap) -> None:
    first = await overlap.start(user("u"))
    await first.answer("a")
    second = await overlap.start(user("u"), assistant("a"), user("v"))
    await second.answer("b")
    stale = await overlap.start(user("u"), assistant("a"), user("v"), assistant("b"), user("w"))
    # A refused role rolls back without a turn at the engine.
    refused = await overlap.session.chat(user("u"), assistant("a"), user("x"), assistant("mine"))
    assert refused.status_code == 400
    async with overlap.session.unchanged():
        assert said(await stale.answer("c"), "c")
    assert await texts(overlap.session) == ["a"]


async def test_a_retry_that_overlaps_the_line_going_on_is_stale(overlap: Overlap) -> None:
    await (await overlap.start(user("u"))).answer("a")
    retry = await overlap.start(user("other"))
    onward = await overlap.start(user("u"), assistant("a"), user("v"))
    await onward.answer("b")
    async with overlap.session.unchanged():
        assert said(await retry.answer("r"), "r")
    assert await texts(overlap.session) == ["a", "b"]


async def test_a_line_that_is_as_long_as_before_is_not_the_same_line(overlap: Overlap) -> None:
    await (await overlap.start(user("u"))).answer("a")
    stale = await overlap.start(user("u"), assistant("a"), user("v"))
    await (await overlap.start(user("other"))).answer("b")
    async with overlap.session.unchanged():
        assert said(await stale.answer("c"), "c")
    assert await texts(overlap.session) == ["b"]


@pytest.mark.parametrize(
    "failure", [EngineUnreachable("ReadError", "gone"), EngineAnswer(500, (), b"{}"), EngineAnswer(200, (), b"{}")]
)
async def test_a_failed_turn_does_not_make_an_overlapping_one_stale(overlap: Overlap, failure: Any) -> None:
    failing, good = await overlap.start(user("one")), await overlap.start(user("two"))
    assert (await failing.settle(failure)).status_code >= 500
    assert said(await good.answer("good"), "good")
    assert await texts(overlap.session) == ["good"]


async def test_a_session_can_be_read_while_a_turn_is_at_the_engine(overlap: Overlap) -> None:
    turn = await overlap.start(user("one"))
    assert json.loads(await overlap.session.state())["records"] == []
    await turn.answer("x")


class TestDelete:
    async def test_it_does_not_wait_for_a_turn_at_the_engine(self, overlap: Overlap) -> None:
        turn = await overlap.start(user("one"))
        assert (await overlap.session.delete()).status_code == 204
        assert not turn.done.is_set()
        assert overlap.session.served.engine.in_flight == 1
        await turn.answer("x")

    async def test_a_turn_at_the_engine_answers_200(self, overlap: Overlap) -> None:
        turn = await overlap.start(user("one"))
        await overlap.session.delete()
        assert said(await turn.answer("late"), "late")
        assert 'outcome="closed"} 1.0' in (await overlap.session.served.client.get("/metrics")).text

    async def test_a_later_turn_gets_404_though_one_is_at_the_engine(self, overlap: Overlap) -> None:
        turn = await overlap.start(user("one"))
        await overlap.session.delete()
        missing = f"session not found: session_id={overlap.session.id}"
        assert_error(await overlap.session.chat(user("two")), 404, missing)
        assert_error(await overlap.session.served.client.get(overlap.session.path), 404, missing)
        assert_error(await overlap.session.delete(), 404, missing)
        await turn.answer("x")
        assert_error(await overlap.session.chat(user("two")), 404, missing)

    async def test_a_turn_that_waits_to_be_prepared_gets_404(self, serve: Serve, nursery: trio.Nursery) -> None:
        served = await serve()
        session = await served.session()
        lock = served.gateway.registry.in_memory(session.id).lock
        responses: list[Any] = []

        async def run() -> None:
            responses.append(await session.chat(user("hi")))

        async with lock:
            nursery.start_soon(run)
            await until(lambda: lock.statistics().tasks_waiting == 1)
            assert (await session.delete()).status_code == 204
        await until(lambda: bool(responses))
        assert_error(responses[0], 404, f"session not found: session_id={session.id}")
        assert served.engine.calls == []


class TestVanishedClient:
    async def test_it_cancels_its_engine_request_and_changes_nothing(self, overlap: Overlap) -> None:
        await (await overlap.start(user("u"))).answer("a")
        session, engine = overlap.session, overlap.session.served.engine
        async with session.unchanged():
            await abandon(session, overlap.held, user("u"), assistant("a"), user("v"))
            await until(lambda: engine.in_flight == 0)
        assert engine.cancelled == 1
        metrics = (await session.served.client.get("/metrics")).text
        assert 'outcome="cancelled"} 1.0' in metrics
        assert "trio_sessions_turns_in_flight 0.0" in metrics

    async def test_a_retry_loses_nothing(self, overlap: Overlap) -> None:
        await (await overlap.start(user("u"))).answer("a")
        session = overlap.session
        async with session.unchanged():
            await abandon(session, overlap.held, user("other"))
            await until(lambda: session.served.engine.in_flight == 0)
        await (await overlap.start(user("u"), assistant("a"), user("v"))).answer("b")
        assert await texts(session) == ["a", "b"]

    async def test_it_cancels_only_its_own_turn(self, overlap: Overlap) -> None:
        other = await overlap.start(user("stays"))
        await abandon(overlap.session, overlap.held, user("goes"))
        await until(lambda: overlap.session.served.engine.in_flight == 1)
        assert said(await other.answer("x"), "x")
        assert await texts(overlap.session) == ["x"]

    async def test_a_disconnect_while_the_turn_waits_to_commit_does_not_lose_it(self, overlap: Overlap) -> None:
        session = overlap.session
        lock = session.served.gateway.registry.in_memory(session.id).lock
        async with session.served.raw_client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(post, client, session, user("hi"))
            await until(lambda: len(overlap.held.waiting) == 1)
            async with lock:
                overlap.held.waiting[0].answer(chat_answer("kept"))
                await until(lambda: lock.statistics().tasks_waiting == 1)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await client.aclose()
                    await settle()
                assert lock.statistics().tasks_waiting == 1
        await until(lambda: lock.statistics().tasks_waiting == 0 and not lock.locked())
        assert await texts(session) == ["kept"]

    async def test_a_disconnect_while_the_turn_waits_to_be_prepared_asks_nobody(self, overlap: Overlap) -> None:
        session = overlap.session
        lock = session.served.gateway.registry.in_memory(session.id).lock
        async with session.unchanged(), lock, session.served.raw_client() as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(post, client, session, user("hi"))
                    await until(lambda: lock.statistics().tasks_waiting == 1)
                    scope.cancel()
            await until(lambda: lock.statistics().tasks_waiting == 0)
        assert session.served.engine.calls == []


class TestShutdown:
    async def test_draining_refuses_new_turns_and_lets_running_ones_finish(self, overlap: Overlap) -> None:
        turn = await overlap.start(user("one"))
        overlap.nursery.start_soon(lambda: overlap.session.served.gateway.registry.drain(grace=10))
        await settle()
        refused = await overlap.session.chat(user("two"))
        assert_error(refused, 503, "the server is shutting down and takes no more turns")
        assert refused.headers["retry-after"] == "1"
        assert said(await turn.answer("x"), "x")
        assert await texts(overlap.session) == ["x"]

    async def test_a_turn_that_does_not_finish_in_time_is_503_and_unrecorded(self, overlap: Overlap) -> None:
        turn = await overlap.start(user("one"))
        await overlap.session.served.gateway.registry.drain(grace=0.01)
        await turn.done.wait()
        assert turn.response.status_code == 503
        assert turn.response.headers["retry-after"] == "1"
        assert await texts(overlap.session) == []
        assert overlap.session.served.engine.cancelled == 1


async def post(client: Any, session: Session, *messages: Any) -> None:
    await client.post(f"{session.path}/{CHAT}", content=compact({"messages": list(messages)}))


async def abandon(session: Session, held: HeldCalls, *messages: Any) -> None:
    """Send a turn, and close the connection once it is at the engine."""
    waiting = len(held.waiting)
    async with session.served.raw_client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(post, client, session, *messages)
        await until(lambda: len(held.waiting) > waiting)
        nursery.cancel_scope.cancel()


async def test_sessions_come_and_go_while_turns_run(served: Served) -> None:
    sessions = [await served.session() for _ in range(12)]
    statuses: dict[str, int] = {}

    async def run(session: Session) -> None:
        statuses[session.id] = (await session.chat(user("hi"))).status_code

    async with trio.open_nursery() as nursery:
        for index, session in enumerate(sessions):
            nursery.start_soon(run, session)
            if index % 2:
                nursery.start_soon(session.delete)
    for session in sessions[1::2]:
        assert statuses[session.id] in (200, 404)
    for session in sessions[::2]:
        assert statuses[session.id] == 200
        assert await texts(session) == ["ok"]
