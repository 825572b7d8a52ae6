"""Retries that say so get the answer of the turn they repeat; the others are turns of their own."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio

from tests.web.support import (
    CHAT,
    RawConnection,
    Serve,
    Served,
    Session,
    assistant,
    serving_app,
    settle,
    until,
    user,
)
from trio_sessions.config import Settings
from trio_sessions.core.samples import decode_samples
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.hosting import fate_of
from trio_sessions.serve import gateway_app
from trio_sessions.service.gateway import Gateway
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer

FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}
KEY = {"idempotency-key": "k"}


def numbered() -> ScriptedEngine:
    """An engine whose answers tell which of them they are."""
    engine = ScriptedEngine()

    async def answer(_: Any) -> EngineAnswer:
        return chat_answer(str(len(engine.calls)))

    engine.script = [answer] * 100
    return engine


def content(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize(("first", "again"), [(FIRST, AGAIN), (KEY, KEY), ({**KEY, **FIRST}, {**KEY, **AGAIN})])
async def test_a_retry_gets_the_committed_answer_again(serve: Serve, mode: str, first: Any, again: Any) -> None:
    session = await (await serve(numbered(), mode=mode)).session()
    before = await session.chat(user("hi"), headers=first)
    async with session.unchanged():
        after = await session.chat(user("hi"), headers=again)
    assert after.content == before.content
    assert after.headers["content-type"] == before.headers["content-type"]
    assert len(session.served.engine.calls) == 1


async def test_later_turns_do_not_take_the_answer_away(serve: Serve) -> None:
    session = await (await serve(numbered())).session()
    await session.chat(user("hi"), headers=FIRST)
    await session.chat(user("hi"), assistant("1"), user("go on"), headers=FIRST)
    async with session.unchanged():
        assert content(await session.chat(user("hi"), headers=AGAIN)) == "1"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {}),
        (FIRST, FIRST),
        ({}, AGAIN),
        (FIRST, {"x-stainless-retry-count": "one"}),
        (KEY, {"idempotency-key": "other"}),
        (KEY, FIRST),
    ],
)
async def test_the_same_request_without_a_mark_is_a_turn_of_its_own(serve: Serve, first: Any, again: Any) -> None:
    session = await (await serve(numbered(), mode="tree")).session()
    assert content(await session.chat(user("hi"), headers=first)) == "1"
    assert content(await session.chat(user("hi"), headers=again)) == "2"


@pytest.mark.parametrize(
    "other", [{"temperature": 0.5}, {"messages": [user("hi!")]}, {"tools": [{"name": "f"}]}, {"model": "m"}]
)
async def test_another_request_is_no_retry(serve: Serve, other: dict[str, Any]) -> None:
    session = await (await serve(numbered(), mode="tree")).session()
    body = {"messages": [user("hi")]}
    await session.post(json.dumps(body).encode(), headers=FIRST)
    assert content(await session.post(json.dumps({**body, **other}).encode(), headers=AGAIN)) == "2"


async def test_a_key_that_is_used_for_another_request_is_refused(serve: Serve) -> None:
    session = await (await serve(numbered())).session()
    await session.chat(user("hi"), headers=KEY)
    async with session.unchanged():
        response = await session.chat(user("other"), headers=KEY)
    assert response.status_code == 400
    assert response.json()["error"].startswith("the idempotency-key was used for another request of this session;")


async def test_sessions_and_callers_have_attempts_of_their_own(serve: Serve) -> None:
    served = await serve(numbered(), mode="tree")
    one, other = await served.session(), await served.session()
    assert content(await one.chat(user("hi"), headers=KEY)) == "1"
    assert content(await other.chat(user("hi"), headers=KEY)) == "2"
    assert content(await one.chat(user("hi"), headers={**AGAIN, "thread-id": "t"})) == "3"


async def test_a_retry_may_ask_for_another_form(serve: Serve) -> None:
    session = await (await serve(numbered())).session()
    streamed = await session.chat(user("hi"), stream=True, stream_options={"include_usage": True}, headers=FIRST)
    assert b'"content":"1"' in streamed.content
    async with session.unchanged():
        assert content(await session.chat(user("hi"), headers=AGAIN)) == "1"
        again = await session.chat(user("hi"), stream=True, headers=AGAIN)
    assert again.content == streamed.content


@pytest.mark.parametrize("failure", [EngineAnswer(500, (), b'{"message":"broken"}'), EngineAnswer(200, (), b"no")])
async def test_what_failed_is_tried_again(serve: Serve, failure: EngineAnswer) -> None:
    session = await (await serve(ScriptedEngine(failure))).session()
    assert (await session.chat(user("hi"), headers=FIRST)).status_code >= 500
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "ok"


@pytest.mark.parametrize("failure", [EngineAnswer(503, (), b"{}"), EngineUnreachable("ReadError", "cut")])
async def test_a_retry_of_what_failed_does_not_get_the_answer_of_another_sample(serve: Serve, failure: Any) -> None:
    """Two samples of one prompt look the same, but for the attempt that failed and comes again."""
    session = await (
        await serve(ScriptedEngine(chat_answer("one"), failure, chat_answer("two")), mode="tree")
    ).session()
    assert content(await session.chat(user("hi"), headers=FIRST)) == "one"
    assert (await session.chat(user("hi"), headers=FIRST)).status_code >= 500
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "two"
    # From now on a retry can only be one of those that were answered.
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "one"
    assert len(await session.records()) == 1
    assert len(session.served.engine.calls) == 3


@pytest.mark.parametrize("count", ["0" * 5000, "9" * 5000, "-1", "1.5", "", "\u00b2"])
async def test_a_retry_count_may_be_anything(serve: Serve, count: str) -> None:
    session = await (await serve(numbered(), mode="tree")).session()
    await session.chat(user("hi"), headers=FIRST)
    again = await session.chat(user("hi"), headers={"x-stainless-retry-count": count.encode("latin-1")})
    assert content(again) == ("1" if count.startswith("9") else "2")


async def test_the_window_closes(serve: Serve) -> None:
    session = await (await serve(numbered(), retry_window=0.0, mode="tree")).session()
    assert content(await session.chat(user("hi"), headers=FIRST)) == "1"
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "2"


async def test_a_session_remembers_the_latest_answers_alone(serve: Serve) -> None:
    session = await (await serve(numbered(), mode="tree")).session()
    for number in range(20):
        await session.chat(user(str(number)), headers=FIRST)
    assert content(await session.chat(user("19"), headers=AGAIN)) == "20"
    assert content(await session.chat(user("0"), headers=AGAIN)) == "21"


# -- in flight ----------------------------------------------------------------------------------------------------


class Flights:
    """Requests of one session whose engine answers when the test says so."""

    def __init__(self, served: Served, session: Session, held: HeldCalls, nursery: trio.Nursery) -> None:
        self.session, self.held = session, held
        self.replies: dict[str, httpx.Response] = {}
        self._clients = {name: served.raw_client() for name in ("first", "second", "third", "fourth")}
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def start(self, name: str, headers: Any, **fields: Any) -> None:
        """A request; it has arrived when this returns."""
        scope = self._scopes[name] = trio.CancelScope()
        body = {"messages": [user("hi")], **fields}

        async def ask() -> None:
            with scope:
                async with self._clients[name] as client:
                    path = f"{self.session.path}/{CHAT}"
                    self.replies[name] = await client.post(path, json=body, headers=headers)

        self._nursery.start_soon(ask)
        await settle()

    async def leave(self, name: str) -> None:
        """Its client goes away."""
        self._scopes[name].cancel()
        await settle()

    async def answer(self, answer: Any) -> None:
        [call] = self.held.waiting
        call.answer(answer)
        await settle()


@pytest.fixture
async def flights(serve: Serve, nursery: trio.Nursery) -> Flights:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), mode="tree")
    return Flights(served, await served.session(), held, nursery)


async def test_a_retry_joins_the_turn_in_flight(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    await flights.start("third", AGAIN, stream=True)
    await flights.answer(chat_answer("ok"))
    assert content(flights.replies["first"]) == content(flights.replies["second"]) == "ok"
    assert b'"content":"ok"' in flights.replies["third"].content
    assert len(await flights.session.records()) == 1
    assert len(flights.session.served.engine.calls) == 1


async def test_a_turn_goes_on_for_those_who_joined_it_when_its_own_client_leaves(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    await flights.leave("first")
    await flights.answer(chat_answer("ok"))
    assert content(flights.replies["second"]) == "ok"
    assert flights.session.served.engine.cancelled == 0
    assert "undelivered" not in await flights.session.metadata()


async def test_it_ends_with_the_last_of_them(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    await flights.start("third", AGAIN)
    for name in ("second", "first"):
        await flights.leave(name)
        assert flights.session.served.engine.cancelled == 0
    await flights.leave("third")
    assert flights.session.served.engine.cancelled == 1
    assert await flights.session.records() == []


async def test_a_client_that_leaves_alone_ends_its_turn_and_the_retry_is_a_new_one(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.leave("first")
    assert flights.session.served.engine.cancelled == 1
    await flights.start("second", AGAIN)
    await flights.answer(chat_answer("new"))
    assert content(flights.replies["second"]) == "new"
    assert len(await flights.session.records()) == 1


async def lingering(serve: Serve, nursery: trio.Nursery, seconds: float) -> Flights:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), mode="tree", retry_linger=seconds)
    return Flights(served, await served.session(), held, nursery)


async def test_a_turn_may_wait_for_the_retry_of_a_client_that_gave_up(serve: Serve, nursery: trio.Nursery) -> None:
    """So do SDKs whose own timeout strikes: each attempt is gone before the next comes."""
    flights = await lingering(serve, nursery, 60.0)
    await flights.start("first", FIRST)
    for name, before in (("second", "first"), ("third", "second")):
        await flights.leave(before)
        await flights.start(name, AGAIN)
    await flights.answer(chat_answer("ok"))
    assert content(flights.replies["third"]) == "ok"
    assert len(flights.session.served.engine.calls) == 1
    assert flights.session.served.engine.cancelled == 0
    assert "undelivered" not in await flights.session.metadata()


async def test_it_waits_no_longer_than_it_may(serve: Serve, nursery: trio.Nursery) -> None:
    flights = await lingering(serve, nursery, 0.05)
    engine = flights.session.served.engine
    await flights.start("first", FIRST)
    await flights.leave("first")
    await until(lambda: engine.cancelled == 1)
    assert await flights.session.records() == []


async def test_one_that_nobody_may_retry_does_not_wait(serve: Serve, nursery: trio.Nursery) -> None:
    flights = await lingering(serve, nursery, 60.0)
    await flights.start("first", {})
    await flights.leave("first")
    assert flights.session.served.engine.cancelled == 1


async def test_what_one_of_two_clients_received_is_not_undelivered(flights: Flights) -> None:
    """The first gets its answer, and the one that joined it leaves while it is sent."""
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    inside = flights.session.served.gateway.registry.in_memory(flights.session.id)
    async with inside.lock:
        [call] = flights.held.waiting
        call.answer(chat_answer("ok"))
        await settle()
        await flights.leave("second")
    await settle()
    assert content(flights.replies["first"]) == "ok"
    assert "undelivered" not in await flights.session.metadata()
    metrics = flights.session.served.gateway.metrics
    assert metrics.registry.get_sample_value("trio_sessions_undelivered_turns_total") == 0


async def test_a_retry_of_a_client_that_left_does_not_get_the_answer_of_another_sample(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.answer(chat_answer("one"))
    await flights.start("second", FIRST)
    await flights.leave("second")
    await flights.start("third", AGAIN)
    await flights.answer(chat_answer("two"))
    assert content(flights.replies["third"]) == "two"


async def test_all_get_the_failure_of_the_turn_they_joined(flights: Flights) -> None:
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    await flights.answer(EngineAnswer(429, (), b'{"message":"later"}'))
    assert [reply.status_code for reply in flights.replies.values()] == [429, 429]
    assert flights.replies["second"].content == flights.replies["first"].content


# -- undelivered --------------------------------------------------------------------------------------------------


async def lose(served: Served, session: Session, held: HeldCalls, *, headers: str = "") -> None:
    """A turn whose client leaves while it commits, when it can no longer be taken back."""
    body = json.dumps({"messages": [user("hi")]}).encode()
    head = f"POST {session.path}/{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    async with await served.connect() as connection:
        await connection.send(head.encode() + body)
        await until(lambda: bool(held.waiting))
        # The commit needs the lock.
        async with served.gateway.registry.in_memory(session.id).lock:
            held.waiting[0].answer(chat_answer("lost"))
            await settle()
            await connection.__aexit__()
            await settle()
    await settle()


@pytest.mark.parametrize("mode", ["linear", "tree"])
async def test_an_answer_that_nobody_received_is_recorded_as_undelivered(serve: Serve, mode: str) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), mode=mode)
    session = await served.session()
    await lose(served, session, held, headers="x-stainless-retry-count: 0\r\n")
    metadata = await session.metadata()
    assert metadata["undelivered"] == [0]
    if mode == "tree":
        assert [node["undelivered"] for node in metadata["tree"]["nodes"]] == [True]
    payload = await served.client.post(f"{session.path}/samples", json={})
    [sample] = decode_samples(payload.content).samples
    assert sample.metadata["undelivered"] is True
    assert served.gateway.metrics.registry.get_sample_value("trio_sessions_undelivered_turns_total") == 1

    # A retry gets it after all.
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "lost"
    assert "undelivered" not in await session.metadata()
    assert len(served.engine.calls) == 1


async def test_an_answer_that_arrived_is_not_undelivered(session: Session) -> None:
    await session.turn(user("hi"))
    await settle()
    assert "undelivered" not in await session.metadata()


@pytest.mark.parametrize("grace", [0.0, 60.0])
async def test_nor_is_one_whose_client_leaves_as_soon_as_it_has_it(grace: float) -> None:
    gateway = Gateway(Settings(port=0, stream_grace=grace), engine=ScriptedEngine(), renderer=ToyRenderer())
    inner = gateway_app(gateway)

    async def slower_than_its_client(scope: Any, receive: Any, send: Any) -> None:
        async def sent(event: Any) -> None:
            await send(event)
            if event["type"] == "http.response.body" and not event["more_body"]:
                await until(lambda: fate_of(scope).closed)

        await inner(scope, receive, sent)

    session = await gateway.registry.create()
    body = json.dumps({"messages": [user("hi")], "stream": True}).encode()
    head = f"POST /sessions/{session.id}/{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    async with serving_app(slower_than_its_client, keep_alive=60) as port:
        async with RawConnection(await trio.open_tcp_stream("127.0.0.1", port)) as connection:
            await connection.send(head.encode() + body)
            assert (await connection.response(to="POST")).body.endswith(b"data: [DONE]\n\n")
        await settle()
    assert len(session.history.nodes) == 1
    assert session.delivery.undelivered() == frozenset()
