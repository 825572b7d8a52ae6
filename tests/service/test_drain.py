"""Shutdown: running turns get their time, new ones are refused, what is left is cancelled and says why."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.service.conftest import Bench
from trio_sessions.errors import ServerDraining, SessionExpired
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer


async def test_draining_an_idle_server_takes_no_time(held, autojump_clock):
    began = trio.current_time()
    await held.registry.drain(grace=60)
    assert trio.current_time() == began


async def test_running_turns_finish_and_new_ones_are_refused(held, autojump_clock):
    session = await held.registry.create()
    statuses = []

    async def turn():
        statuses.append((await held.turn(session, "a")).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        began = trio.current_time()

        async def drain():
            await held.registry.drain(grace=60)
            assert trio.current_time() == began + 10
            assert statuses == [200]

        nursery.start_soon(drain)
        await wait_all_tasks_blocked()
        with pytest.raises(ServerDraining, match="takes no more turns"):
            await held.turn(session, "b")
        await trio.sleep(10)
        held.call.answer(chat_answer())
    assert session.history.active is not None
    assert held.outcomes() == {"cancelled": 1, "committed": 1}


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("grace", [0, 30])
async def test_turns_that_take_too_long_are_cancelled_and_say_so(held, autojump_clock, deleted, grace):
    session = await held.registry.create()
    errors = []

    async def turn(text):
        with pytest.raises(ServerDraining, match="nothing was recorded") as caught:
            await held.turn(session, text)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn, "a")
        nursery.start_soon(turn, "b")
        await wait_all_tasks_blocked()
        if deleted:
            await held.registry.delete(session.id)
        began = trio.current_time()
        await held.registry.drain(grace=grace)
        assert trio.current_time() == began + grace
        assert held.metric("turns_in_flight") == 0
        assert held.engine.in_flight == 0
    assert len(errors) == 2
    assert session.history.active is None
    assert held.outcomes() == {"cancelled": 2}


async def test_a_turn_that_waits_for_its_lock_is_cancelled_too(held, autojump_clock, nursery):
    session = await held.registry.create()
    await session.lock.acquire()

    async def turn():
        with pytest.raises(ServerDraining):
            await held.turn(session, "a")

    nursery.start_soon(turn)
    await wait_all_tasks_blocked()
    await held.registry.drain(grace=1)
    session.lock.release()
    assert not held.engine.calls


async def test_a_turn_that_commits_when_time_is_up_is_recorded_and_answered(held, autojump_clock):
    session = await held.registry.create()
    statuses = []

    async def turn():
        statuses.append((await held.turn(session, "a")).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        await session.lock.acquire()
        held.call.answer(chat_answer())
        await wait_all_tasks_blocked()

        async def drain():
            await held.registry.drain(grace=1)
            assert statuses == [200]

        nursery.start_soon(drain)
        await trio.sleep(2)
        assert session.history.active is None
        session.lock.release()
    assert session.history.active is not None
    assert held.outcomes() == {"committed": 1}


async def test_a_client_that_goes_during_the_drain_is_not_told_about_it(held, autojump_clock):
    session = await held.registry.create()
    client = trio.CancelScope()

    async def turn():
        with client:
            await held.turn(session, "a")
            pytest.fail("the turn was answered")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        nursery.start_soon(lambda: held.registry.drain(grace=60))
        await trio.sleep(10)
        client.cancel()
        await wait_all_tasks_blocked()
        assert client.cancelled_caught
        assert trio.current_time() == 10
    # The drain ends with the last turn, not when its time is up.
    assert trio.current_time() == 10
    assert held.outcomes() == {"cancelled": 1}


async def test_draining_twice_waits_for_both(held, autojump_clock):
    session = await held.registry.create()
    async with trio.open_nursery() as nursery:

        async def turn():
            with pytest.raises(ServerDraining):
                await held.turn(session, "a")

        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        nursery.start_soon(lambda: held.registry.drain(grace=60))
        await wait_all_tasks_blocked()
        await held.registry.drain(grace=5)
        assert trio.current_time() == 5
    assert trio.current_time() == 5


async def test_a_session_takes_turns_until_its_deadline(autojump_clock):
    made = Bench(ScriptedEngine(), ToyRenderer(), session_deadline=100.0)
    session = await made.registry.create()
    await trio.sleep(99)
    await made.turn(session, "in time")
    await trio.sleep(1)
    with pytest.raises(
        SessionExpired, match=f"session deadline passed: session_id={session.id}; it takes no more turns"
    ):
        await made.turn(session, "too late")
    assert len(session.history.nodes) == 1
