"""Sessions that need not be in memory: they leave it, come back the same, and are counted, limited and forgotten."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.service.conftest import Bench, HeldBench
from trio_sessions.errors import (
    MemoryExhausted,
    NodeCapReached,
    SessionExpired,
    SessionNotFound,
    SessionUnreadable,
    StoreUnavailable,
    TooManySessions,
)
from trio_sessions.service.request import TurnRequest
from trio_sessions.service.retries import RetryMark
from trio_sessions.service.session import Session
from trio_sessions.store import AnswerNoted
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.store import RecordingStore
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.dialects.chat import ChatDialect

SMALL = 1.0  # MiB: four of the turns below are more


async def answer_long(call: Any) -> Any:
    return chat_answer("x" * 12_000)


def made(store: RecordingStore | None = None, **settings: Any) -> Bench:
    return Bench(ScriptedEngine(otherwise=answer_long), ToyRenderer(), store=store or RecordingStore(), **settings)


async def used(made: Bench, session_id: str) -> Session:
    async with made.registry.using(session_id) as session:
        return session


async def talk(made: Bench, session_id: str, *contents: str | dict[str, Any]) -> dict[str, Any]:
    async with made.registry.using(session_id) as session:
        message: dict[str, Any] = json.loads((await made.turn(session, *contents)).body)["choices"][0]["message"]
        return message


async def test_the_session_that_was_used_longest_ago_leaves_memory_and_comes_back_the_same() -> None:
    made_ = made(max_memory_mb=SMALL)
    first, second, third = [(await made_.registry.create()).id for _ in range(3)]
    said = await talk(made_, first, "a")
    before = await made_.described(await used(made_, first))
    await talk(made_, second, "b")
    assert made_.registry.in_memory(first) is not None
    await talk(made_, third, "c")
    assert made_.registry.in_memory(first) is None
    assert made_.registry.in_memory(third) is not None
    assert (made_.metric("sessions_open"), made_.metric("sessions_in_memory")) == (3, 2)
    assert made_.metric("sessions_spilled_total") == 1
    assert await made_.described(await used(made_, first)) == before
    assert made_.metric("sessions_loaded_total") == 1
    await talk(made_, first, "a", said, "and on")
    assert len((await used(made_, first)).history.nodes) == 2


async def test_what_is_in_use_stays() -> None:
    made_ = made(max_memory_mb=SMALL)
    ids = [(await made_.registry.create()).id for _ in range(4)]
    async with made_.registry.using(ids[0]) as held:
        for session_id in ids:
            await talk(made_, session_id, "a")
        assert made_.registry.in_memory(ids[0]) is held
        assert [made_.registry.in_memory(name) is None for name in ids] == [False, True, True, False]


async def test_many_who_ask_at_once_get_one_session() -> None:
    store = RecordingStore()
    made_ = made(store)
    session_id = (await made_.registry.create()).id
    again = made(store)
    found: list[Session] = []

    async def use() -> None:
        async with again.registry.using(session_id) as session:
            found.append(session)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(use)
    assert len(found) == 10
    assert len(set(map(id, found))) == 1
    assert store.loads == 1


async def test_one_who_gives_up_while_it_loads_leaves_the_others_their_session() -> None:
    store = RecordingStore()
    session_id = (await made(store).registry.create()).id
    again = made(store)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            nursery.start_soon(used, again, session_id)
            await used(again, session_id)
    assert again.registry.in_memory(session_id) is not None


async def test_a_session_that_is_deleted_while_it_loads_is_not_found() -> None:
    store = RecordingStore()
    session_id = (await made(store).registry.create()).id
    again = made(store)
    async with trio.open_nursery() as nursery:

        async def use() -> None:
            with pytest.raises(SessionNotFound):
                await used(again, session_id)

        nursery.start_soon(use)
        await trio.lowlevel.checkpoint()
        await again.registry.delete(session_id)
    assert store.payloads == {}
    assert len(again.registry) == 0


async def test_sessions_of_a_process_that_ended_are_there_and_can_be_deleted_unseen() -> None:
    store = RecordingStore()
    before = made(store)
    names = [(await before.registry.create()).id for _ in range(3)]
    again = made(store)
    assert len(again.registry) == 3
    await again.registry.delete(names[1])
    with pytest.raises(SessionNotFound):
        await again.registry.delete(names[1])
    assert store.payloads.keys() == {names[0], names[2]}
    assert again.metric("sessions_open") == 2
    assert store.loads == 0


async def test_a_template_is_told_the_same_date_again() -> None:
    store = RecordingStore()
    before = made(store)
    session_id = (await before.registry.create()).id
    again = made(store)
    again.now = datetime(2030, 1, 1)
    assert (await used(again, session_id)).created == before.now


async def test_a_deadline_goes_on_over_an_end_of_the_process() -> None:
    store = RecordingStore()
    session_id = (await made(store, session_deadline=100.0).registry.create()).id
    again = made(store, session_deadline=100.0)
    session = await used(again, session_id)
    assert session.expires == pytest.approx(trio.current_time() + 100, abs=5)
    late = made(store, session_deadline=100.0, clock=1000.0 + 101)
    with pytest.raises(SessionExpired):
        await talk(late, session_id, "a")


async def test_what_became_of_answers_is_known_again() -> None:
    store = RecordingStore()
    before = made(store)
    session = await before.registry.create()
    await before.turn(session, "a")
    [turn] = session.history.nodes
    before.gateway.turns.note_delivery(session, turn, received=False)
    described = json.loads(await before.described(session))
    assert described["metadata"]["undelivered"] == [0]
    again = made(store)
    assert json.loads(await again.described(await used(again, session.id))) == described


async def test_one_session_too_many_is_refused_until_one_is_deleted() -> None:
    made_ = made(max_sessions=2)
    first = await made_.registry.create()
    await made_.registry.create()
    with pytest.raises(TooManySessions, match=r"^there are 2 sessions, as many as there may be \(--max-sessions\)"):
        await made_.registry.create()
    await made_.registry.delete(first.id)
    await made_.registry.create()


async def test_sessions_that_are_being_made_count() -> None:
    made_ = made(max_sessions=2)
    refused = 0

    async def create() -> None:
        nonlocal refused
        try:
            await made_.registry.create()
        except TooManySessions:
            refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(create)
    assert (len(made_.registry), refused) == (2, 3)


async def test_without_a_store_memory_that_is_full_refuses_turns_and_sessions_and_nothing_else() -> None:
    made_ = Bench(ScriptedEngine(otherwise=answer_long), ToyRenderer(), max_memory_mb=SMALL)
    session = await made_.registry.create()
    other = await made_.registry.create()
    third = await made_.registry.create()
    for one in (session, other, third):
        await made_.turn(one, "a")
    for refused in (made_.registry.create, lambda: made_.turn(session, "b")):
        with pytest.raises(MemoryExhausted, match=r"\(--max-memory-mb\); delete those that are done, or serve with"):
            await refused()
    assert len(session.history.nodes) == 1
    assert json.loads(await made_.described(session))["records"]
    await made_.registry.delete(other.id)
    await made_.turn(session, "b")


async def test_memory_is_reckoned_as_much_when_it_comes_back() -> None:
    store = RecordingStore()
    before = made(store)
    session = await before.registry.create()
    said = json.loads((await before.turn(session, "a", tools=[{"type": "function"}])).body)["choices"][0]["message"]
    await before.turn(session, "a", said, "b", tools=[{"type": "function"}])
    # The last turn is replaced by another.
    await before.turn(session, "a", said, "c", tools=[{"type": "function"}])
    again = made(store)
    restored = await used(again, session.id)
    # What its client sent last is not written down.
    assert session.sent is not None
    assert restored.footprint == session.footprint - session.sent.footprint
    assert before.metric("session_bytes") == session.footprint
    assert again.metric("session_bytes") == restored.footprint
    await again.registry.delete(session.id)
    assert again.metric("session_bytes") == 0


async def test_nobodys_session_is_deleted_in_time(autojump_clock: trio.testing.MockClock) -> None:
    store = RecordingStore()
    before = made(store)
    # Ids are numbers here, from one on in every process.
    *others, stored = [(await before.registry.create()).id for _ in range(5)]
    for name in others:
        await before.registry.delete(name)
    held = HeldBench(ToyRenderer(), store=store, session_ttl=100.0)
    kept, busy, idle = [(await held.registry.create()).id for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.registry.expire_idle_for_ever)

        async def be_busy() -> None:
            async with held.registry.using(busy) as session:
                await held.turn(session, "a")

        nursery.start_soon(be_busy)
        for _ in range(4):
            await trio.sleep(50)
            await used(held, kept)
        assert store.payloads.keys() == {kept, busy}
        assert held.metric("sessions_expired_total") == 2
        for gone in (idle, stored):
            with pytest.raises(SessionNotFound):
                await used(held, gone)
        held.call.answer(chat_answer("b"))
        await trio.sleep(200)
        assert store.payloads == {}
        nursery.cancel_scope.cancel()


async def test_a_store_that_cannot_be_written_leaves_everything_as_it_was() -> None:
    store = RecordingStore()
    made_ = made(store)
    session = await made_.registry.create()
    said = await talk(made_, session.id, "a")
    payloads = {name: list(events) for name, events in store.payloads.items()}
    described = await made_.described(session)
    store.broken = "the disk is full"
    for fails in (
        made_.registry.create,
        lambda: made_.registry.delete(session.id),
        lambda: talk(made_, session.id, "a", said, "b"),
        lambda: talk(made_, session.id, "other", {"role": "developer", "content": "refused, after a rollback"}),
    ):
        with pytest.raises(StoreUnavailable, match=r"^the disk is full$"):
            await fails()
        assert await made_.described(session) == described
        assert store.payloads == payloads
        assert not session.closed
    assert made_.outcomes() == {"committed": 1, "unavailable": 2}
    store.broken = ""
    await talk(made_, session.id, "a", said, "b")
    assert len(session.history.nodes) == 2


class SlowStore(RecordingStore):
    """Writes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.hold()
        self.gate.set()

    def hold(self) -> None:
        """Write nothing more until ``gate`` is set; ``reached`` is once there is something to write."""
        self.gate, self.reached = trio.Event(), trio.Event()

    async def append(self, session_id: str, event: Any) -> None:
        self.reached.set()
        await self.gate.wait()
        await super().append(session_id, event)


async def test_no_answer_before_it_is_written_down() -> None:
    store = SlowStore()
    made_ = made(store)
    session = await made_.registry.create()
    store.hold()
    replies: list[Any] = []

    async def take_turn() -> None:
        replies.append(await made_.turn(session, "a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turn)
        await store.reached.wait()
        assert replies == []
        assert session.history.nodes == []
        store.gate.set()
    assert replies[0].status == 200
    assert len(session.history.nodes) == 1


async def test_a_client_that_goes_while_it_is_written_down_takes_nothing_back() -> None:
    store = SlowStore()
    made_ = made(store)
    session = await made_.registry.create()
    store.hold()
    async with trio.open_nursery() as nursery:
        client = trio.CancelScope()

        async def take_turn() -> None:
            with client:
                await made_.turn(session, "a")

        nursery.start_soon(take_turn)
        await store.reached.wait()
        client.cancel()
        await wait_all_tasks_blocked()
        store.gate.set()
    assert len(session.history.nodes) == 1
    assert len(store.events(session.id)) == 2


async def test_events_that_contradict_each_other_are_a_session_that_is_lost() -> None:
    store = RecordingStore()
    before = made(store)
    session_id = (await before.registry.create()).id
    await talk(before, session_id, "a")
    store.payloads[session_id] *= 2
    after = made(store)
    after.registry.take_found()
    with pytest.raises(SessionUnreadable, match=f"^session lost: session_id={session_id}"):
        await used(after, session_id)
    await after.registry.delete(session_id)


async def test_a_session_that_is_larger_than_may_be_now_comes_back_whole_and_takes_no_more() -> None:
    store = RecordingStore()
    before = made(store, mode="tree")
    session = await before.registry.create()
    for text in "abc":
        await before.turn(session, text)
    again = made(store, mode="tree", max_nodes=2)
    assert len((await used(again, session.id)).history.nodes) == 3
    with pytest.raises(NodeCapReached, match=r"^node cap reached \(2\)"):
        await talk(again, session.id, "d")


async def test_answers_that_are_kept_for_retries_hold_no_session_in_memory() -> None:
    made_ = made(max_memory_mb=SMALL)
    ids = [(await made_.registry.create()).id for _ in range(6)]
    for session_id in ids:
        async with made_.registry.using(session_id) as session:
            body = json.dumps({"messages": [{"role": "user", "content": session_id}]}).encode()
            mark = RetryMark(key="k", is_retry=False)
            request = TurnRequest(method="POST", query="", headers=(), body=body, mark=mark)
            assert (await made_.gateway.turns.run(session, request, ChatDialect())).reply.status == 200
    assert made_.metric("sessions_spilled_total") >= 3


async def test_only_what_changes_something_is_written_down_of_answers() -> None:
    store = RecordingStore()
    made_ = made(store)
    session = await made_.registry.create()
    await made_.turn(session, "a")
    [turn] = session.history.nodes

    def noted(*received: bool) -> list[bool]:
        before = len(store.events(session.id))
        for each in received:
            made_.gateway.turns.note_delivery(session, turn, received=each)
        return [event.received for event in store.events(session.id)[before:] if isinstance(event, AnswerNoted)]

    assert noted(True, True) == []
    assert noted(False, False) == [False, True]
    assert noted(True) == []
    assert (await used(made(store), session.id)).delivery.undelivered() == frozenset()
