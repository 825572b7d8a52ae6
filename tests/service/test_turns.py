"""One turn among others: what the lock covers, what cancelling undoes, and how errors come out."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_sessions.core.history import path_of
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import BadEngineAnswer, EngineUnreachable, SessionNotFound
from trio_sessions.testing.engine import chat_answer


def _recorded(session):
    return [json.loads(checkpoint.record.request_fields).get("user") for checkpoint in path_of(session.history.active)]


async def test_the_lock_is_free_while_a_turn_is_at_the_engine(held, nursery):
    session = await held.registry.create()
    nursery.start_soon(held.turn, session, "a")
    nursery.start_soon(held.turn, session, "b")
    await wait_all_tasks_blocked()
    assert len(held.calls.waiting) == 2
    assert not session.lock.locked()
    for call in list(held.calls.waiting):
        call.answer(chat_answer())


async def test_of_two_turns_at_the_engine_the_first_to_be_answered_is_recorded(held):
    session = await held.registry.create()
    replies = {}

    async def turn(name):
        replies[name] = await held.turn(session, name, user=name)

    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(turn, name)
            await wait_all_tasks_blocked()
        first, second = held.calls.waiting
        second.answer(chat_answer("to b"))
        await wait_all_tasks_blocked()
        assert list(replies) == ["b"]
        first.answer(chat_answer("to a"))
    assert [reply.status for reply in replies.values()] == [200, 200]
    assert json.loads(replies["a"].body)["choices"][0]["message"]["content"] == "to a"
    assert _recorded(session) == ["b"]
    assert held.outcomes() == {"committed": 1, "stale": 1}


async def test_a_retry_that_makes_the_line_as_long_as_before_makes_older_turns_stale(held):
    session = await held.registry.create()

    async def turn(name, *contents):
        await held.turn(session, *contents, user=name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn, "first", "a")
        await wait_all_tasks_blocked()
        held.call.answer(chat_answer("ok"))
        await wait_all_tasks_blocked()
        # One turn extends what the other gives up.
        nursery.start_soon(turn, "extension", "a", {"role": "assistant", "content": "ok"}, "b")
        await wait_all_tasks_blocked()
        extension = held.call
        nursery.start_soon(turn, "retry", "c")
        await wait_all_tasks_blocked()
        held.calls.waiting[-1].answer(chat_answer("else"))
        await wait_all_tasks_blocked()
        assert _recorded(session) == ["retry"]
        extension.answer(chat_answer("late"))
    assert _recorded(session) == ["retry"]
    assert held.outcomes() == {"committed": 2, "stale": 1}


async def test_the_lock_is_held_to_commit(held, nursery):
    session = await held.registry.create()
    nursery.start_soon(held.turn, session, "a")
    await wait_all_tasks_blocked()
    async with session.lock:
        held.call.answer(chat_answer())
        await wait_all_tasks_blocked()
        assert session.history.active is None
    await wait_all_tasks_blocked()
    assert session.history.active is not None


async def test_the_lock_is_held_to_prepare(held, nursery):
    session = await held.registry.create()
    async with session.lock:
        nursery.start_soon(held.turn, session, "a")
        await wait_all_tasks_blocked()
        assert not held.calls.waiting
    await wait_all_tasks_blocked()
    held.call.answer(chat_answer())


async def test_a_client_that_goes_while_its_turn_commits_does_not_take_it_back(held):
    session = await held.registry.create()
    client = trio.CancelScope()
    replies = []

    async def turn():
        with client:
            replies.append(await held.turn(session, "a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        async with session.lock:
            held.call.answer(chat_answer())
            await wait_all_tasks_blocked()
            client.cancel()
            await wait_all_tasks_blocked()
            assert session.history.active is None
    assert session.history.active is not None
    assert [reply.status for reply in replies] == [200]
    assert held.outcomes() == {"committed": 1}


@pytest.mark.parametrize("where", ["waiting for the lock", "at the engine"])
async def test_a_client_that_goes_before_leaves_nothing(held, where):
    session = await held.registry.create()
    async with trio.open_nursery() as nursery:
        if where == "waiting for the lock":
            await session.lock.acquire()
        nursery.start_soon(held.turn, session, "a")
        await wait_all_tasks_blocked()
        assert held.engine.in_flight == (where == "at the engine")
        nursery.cancel_scope.cancel()
    if where == "waiting for the lock":
        session.lock.release()
    assert nursery.cancel_scope.cancelled_caught
    assert session.history.active is None
    assert not session.lock.locked()
    assert (held.engine.cancelled, held.engine.in_flight) == ((where == "at the engine"), 0)
    assert held.outcomes() == {"cancelled": 1}
    assert held.metric("turns_in_flight") == 0


async def test_a_deadline_of_the_caller_ends_a_hanging_engine_call(held, autojump_clock):
    session = await held.registry.create()
    began = trio.current_time()
    with pytest.raises(trio.TooSlowError), trio.fail_after(7):
        await held.turn(session, "a")
    assert trio.current_time() == began + 7
    assert session.history.active is None
    assert held.engine.in_flight == 0


async def test_times_of_a_turn_are_told_apart(bench, autojump_clock):
    async def slow(_):
        await trio.sleep(5)
        return chat_answer()

    made = bench(slow)
    await made.turn(await made.registry.create(), "a")
    assert made.metric("engine_seconds_sum") == 5
    assert made.metric("overhead_seconds_sum") == 0
    assert made.metric("overhead_seconds_count") == 1


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (EngineUnreachable("X", "y"), EngineUnreachable),
        (EngineAnswer(200, (), b"{}"), BadEngineAnswer),
        (ZeroDivisionError("a defect"), ZeroDivisionError),
    ],
)
async def test_errors_come_out_as_they_are_not_in_groups(bench, step, kind):
    made = bench(step)
    session = await made.registry.create()
    with pytest.raises(kind) as caught:
        await made.turn(session, "a")
    if isinstance(step, Exception):
        assert caught.value is step
    assert session.history.active is None
    assert made.outcomes() == {"failed" if kind is ZeroDivisionError else "engine_error": 1}
    assert made.metric("turns_in_flight") == 0
    # The session goes on.
    assert (await made.turn(session, "other")).status == 200


async def test_a_session_deleted_while_a_turn_waits_to_prepare_is_not_found(held):
    session = await held.registry.create()
    async with session.lock, trio.open_nursery() as nursery:

        async def turn():
            with pytest.raises(SessionNotFound):
                await held.turn(session, "a")

        nursery.start_soon(turn)
        await wait_all_tasks_blocked()
        await held.registry.delete(session.id)
        session.lock.release()
        await wait_all_tasks_blocked()
        await session.lock.acquire()
    assert held.outcomes() == {"refused": 1}
    assert not held.engine.calls
