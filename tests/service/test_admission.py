"""Places for turns: who gets one, who waits, and who is refused; under a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.service.conftest import Bench as GatewayBench
from tests.service.places import Member, Turn, Turns, queued, taken
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.errors import Overloaded, SessionNotFound, TooManySessionTurns, TurnQueueFull, TurnQueueTimeout
from trio_sessions.service.admission import Admission, AdmissionLimits
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer

settle = trio.testing.wait_all_tasks_blocked


class Bench:
    """Admission and turns that want places."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = Turns(nursery)
        self.admission = self.made()

    def made(self, *, turns: int = 1, session_turns: int = 8, waiting: int = 8, patience: float = 60.0) -> Admission:
        limits = AdmissionLimits(turns=turns, session_turns=session_turns, waiting=waiting, patience=patience)
        self.admission = Admission(limits, show_waiting=self.turns.show)
        return self.admission

    async def arrive(self, member: Member | None = None) -> Turn:
        turn = self.turns.arrive(self.admission, member or Member(f"session {len(self.turns.all)}"))
        await settle()
        return turn

    async def end(self, turn: Turn) -> None:
        turn.done.set()
        await settle()

    async def cancel(self, turn: Turn) -> None:
        turn.scope.cancel()
        await settle()

    def refused(self, turn: Turn) -> Overloaded:
        assert isinstance(turn.error, Overloaded)
        assert not turn.started
        return turn.error


@pytest.fixture
async def bench(autojump_clock: trio.testing.MockClock) -> AsyncIterator[Bench]:
    # Nothing is waited for but what a test says.
    autojump_clock.autojump_threshold = float("inf")
    async with trio.open_nursery() as nursery:
        made = Bench(nursery)
        yield made
        nursery.cancel_scope.cancel()
    assert (taken(made.admission), queued(made.admission), made.turns.shown) == (0, 0, 0)


async def test_a_free_place_is_taken_at_once_and_nothing_else_runs_meanwhile() -> None:
    admission = Admission(
        AdmissionLimits(turns=1, session_turns=1, waiting=0, patience=0), show_waiting=lambda waiting: None
    )
    with trio.CancelScope() as scope:
        scope.cancel()
        # Were there a checkpoint, this would be cancelled.
        async with admission.place(Member("s")):
            assert taken(admission) == 1
    assert (taken(admission), scope.cancelled_caught) == (0, False)


async def test_places_are_given_in_the_order_of_arrival(bench: Bench) -> None:
    bench.made(turns=2)
    turns = [await bench.arrive() for _ in range(5)]
    assert [turn.started for turn in turns] == [True, True, False, False, False]
    assert [turn.asked_to_wait for turn in turns] == [False, False, True, True, True]
    assert bench.turns.shown == 3
    for index in (1, 0, 3, 2):
        # The fourth has its place when its time comes.
        if turns[index].started:
            await bench.end(turns[index])
        begun = [turn.arrived for turn in turns if turn.started]
        assert begun == list(range(len(begun)))
    assert all(turn.started for turn in turns)


async def test_one_that_comes_when_a_place_is_given_on_does_not_get_before_those_that_wait(bench: Bench) -> None:
    first, second = await bench.arrive(), await bench.arrive()
    first.done.set()
    third = bench.turns.arrive(bench.admission, Member("third"))
    await settle()
    assert (second.started, third.started) == (True, False)


async def test_a_full_queue_refuses_and_says_when_to_come_again(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    bench.made(turns=1, waiting=1)
    await bench.arrive()
    waits = await bench.arrive()
    error = bench.refused(await bench.arrive())
    assert isinstance(error, TurnQueueFull)
    assert str(error) == "1 turns run and 1 wait (--max-turns, --turn-queue); try again in 2s"
    assert error.retry_after == 2
    await bench.cancel(waits)
    assert not (await bench.arrive()).ended


async def test_without_a_queue_nobody_waits(bench: Bench) -> None:
    bench.made(waiting=0)
    first = await bench.arrive()
    assert isinstance(bench.refused(await bench.arrive()), TurnQueueFull)
    await bench.end(first)
    assert (await bench.arrive()).started


async def test_one_that_waited_long_enough_is_refused(bench: Bench, autojump_clock: trio.testing.MockClock) -> None:
    bench.made(patience=30)
    await bench.arrive()
    waits = await bench.arrive()
    autojump_clock.jump(29.9)
    await settle()
    assert waits.waits
    autojump_clock.jump(0.2)
    await settle()
    error = bench.refused(waits)
    assert isinstance(error, TurnQueueTimeout)
    assert str(error).startswith("the turn waited 30 s for others to end")
    assert bench.turns.shown == 0


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_place_that_comes_when_the_time_is_over_is_not_lost(
    bench: Bench, autojump_clock: trio.testing.MockClock, ends_first: bool
) -> None:
    bench.made(patience=30)
    first = await bench.arrive()
    waits, behind = await bench.arrive(), await bench.arrive()
    actions = [first.done.set, lambda: autojump_clock.jump(30)]
    for action in actions if ends_first else reversed(actions):
        action()
    await settle()
    # One of them has it, or the time of both was over.
    assert taken(bench.admission) == sum(turn.started for turn in (waits, behind))
    assert (await bench.arrive()).started == (taken(bench.admission) == 1 and not (waits.started or behind.started))


async def test_a_session_has_a_limit_of_its_own_and_those_that_wait_count(bench: Bench) -> None:
    bench.made(turns=1, session_turns=2)
    busy = Member("busy")
    first, second = await bench.arrive(busy), await bench.arrive(busy)
    assert (first.started, second.waits) == (True, True)
    error = bench.refused(await bench.arrive(busy))
    assert isinstance(error, TooManySessionTurns)
    assert str(error) == "the session runs 2 turns already (--max-session-turns); try again in 1s"
    assert (await bench.arrive()).waits
    await bench.end(first)
    assert (await bench.arrive(busy)).waits


async def test_a_session_that_closes_ends_the_waits_of_its_turns_and_of_no_other(bench: Bench) -> None:
    closing = Member("closing")
    first = await bench.arrive(closing)
    waits, other = await bench.arrive(closing), await bench.arrive()
    closing.close()
    await settle()
    assert isinstance(waits.error, SessionNotFound)
    assert (first.ended, other.waits) == (False, True)
    assert isinstance((await bench.arrive(closing)).error, SessionNotFound)
    await bench.end(first)
    assert other.started


async def test_the_advice_follows_how_long_turns_take(bench: Bench, autojump_clock: trio.testing.MockClock) -> None:
    bench.made(waiting=0)
    for _ in range(60):
        turn = await bench.arrive()
        autojump_clock.jump(20)
        await bench.end(turn)
    await bench.arrive()
    assert bench.refused(await bench.arrive()).retry_after == 20
    bench.admission._usual_seconds = 10_000
    assert bench.refused(await bench.arrive()).retry_after == 60


async def test_the_time_in_the_queue_is_no_overhead(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(_: EngineCall) -> EngineAnswer:
        await trio.sleep(10)
        return chat_answer()

    made = GatewayBench(ScriptedEngine(otherwise=slow), ToyRenderer(), max_turns=1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(made.turn, await made.registry.create(), "hi")
    assert trio.current_time() == pytest.approx(30)
    assert made.metric("overhead_seconds_sum") == pytest.approx(0)
    assert made.outcomes() == {"committed": 3}
