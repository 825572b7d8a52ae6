"""Limits of turns over a real port: who is refused with what, in every dialect, and who waits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from tests.web.support import CHAT, Serve, Served, Session, assistant, error_text, until, user
from trio_sessions.core.json import MAX_NESTING
from trio_sessions.errors import EngineTimedOut
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer


@dataclass(frozen=True)
class Words:
    """How a dialect asks, and what it says of being refused.

    Attributes:
        path: below the session.
        body: a turn that says hi.
        busy: status where there is no room.
        said: of its error, apart from the text.
        many: of its messages, one that has so many.
    """

    path: str
    body: dict[str, Any]
    busy: int
    said: dict[str, Any]
    many: Callable[[int], dict[str, Any]]


RATE = {"type": "invalid_request_error", "param": None, "code": "rate_limit_exceeded"}
WORDS = {
    "chat": Words(
        CHAT, {"messages": [user("hi")]}, 429, {}, lambda count: {"messages": [user(str(n)) for n in range(count)]}
    ),
    "messages": Words(
        "v1/messages",
        {"model": "m", "max_tokens": 9, "messages": [user("hi")]},
        429,
        {"type": "rate_limit_error"},
        lambda count: {"model": "m", "max_tokens": 9, "messages": [*_talk(count)]},
    ),
    "responses": Words(
        "v1/responses",
        {"model": "m", "input": "hi"},
        503,
        {**RATE, "type": "server_error"},
        lambda count: {"model": "m", "input": [*_talk(count)]},
    ),
}
DIALECTS = pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)


def _talk(count: int) -> list[dict[str, Any]]:
    return [user(str(n)) if n % 2 == 0 else assistant(str(n)) for n in range(count)]


def refused(served: Served, limit: str) -> float:
    value = served.gateway.metrics.registry.get_sample_value("trio_sessions_refused_total", {"limit": limit})
    assert value is not None, "counters are there from the beginning"
    return value


def waiting(served: Served) -> float:
    value = served.gateway.metrics.registry.get_sample_value("trio_sessions_turns_waiting")
    assert value is not None
    return value


async def ask(session: Session, words: Words, **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    path = f"{session.path}/{words.path}"
    return await session.served.client.post(path, json={**words.body, **more}, headers=headers)


def text_of(response: httpx.Response, words: Words) -> str:
    """The text of an error, which is otherwise as the dialect has it."""
    error = response.json()["error"]
    if isinstance(error, str):
        assert not words.said
        return error
    text: str = error.pop("message")
    assert error == words.said
    return text


class Flights:
    """Turns that run beside the test, each with its response once it is there."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.scopes: list[trio.CancelScope] = []
        self.responses: dict[int, httpx.Response] = {}

    def start(self, request: Callable[[], Awaitable[httpx.Response]]) -> int:
        scope = trio.CancelScope()
        self.scopes.append(scope)
        self._nursery.start_soon(self._run, len(self.scopes) - 1, scope, request)
        return len(self.scopes) - 1

    async def _run(self, index: int, scope: trio.CancelScope, request: Callable[[], Awaitable[httpx.Response]]) -> None:
        with scope:
            self.responses[index] = await request()

    async def response(self, index: int) -> httpx.Response:
        await until(lambda: index in self.responses)
        return self.responses[index]


@dataclass
class Held:
    """A gateway whose engine answers when told to.

    Attributes:
        session: one of its.
    """

    session: Session
    calls: HeldCalls
    flights: Flights

    @property
    def served(self) -> Served:
        return self.session.served

    async def fly(self, words: Words, session: Session | None = None, **more: Any) -> int:
        """A turn that has come to the engine."""
        before = len(self.calls.waiting)
        index = self.flights.start(partial(ask, session or self.session, words, **more))
        await until(lambda: len(self.calls.waiting) > before)
        return index

    async def queue(self, words: Words, session: Session | None = None, **more: Any) -> int:
        """A turn that waits for its place."""
        before = waiting(self.served)
        index = self.flights.start(partial(ask, session or self.session, words, **more))
        await until(lambda: waiting(self.served) > before)
        assert waiting(self.served) == before + 1
        return index

    async def answer(self) -> None:
        """Answer the call that waits, or the next that comes."""
        await until(lambda: bool(self.calls.waiting))
        call = self.calls.waiting[0]
        call.answer(chat_answer())
        await until(lambda: call not in self.calls.waiting)


@asynccontextmanager
async def holding(serve: Serve, **settings: Any) -> AsyncIterator[Held]:
    calls = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=calls), **settings)
    async with trio.open_nursery() as nursery:
        yield Held(await served.session(), calls, Flights(nursery))
        nursery.cancel_scope.cancel()


@DIALECTS
class TestNoRoom:
    async def test_a_full_queue_is_refused_and_the_place_is_free_afterwards(self, serve: Serve, words: Words) -> None:
        async with holding(serve, max_turns=1, turn_queue=0) as held:
            first = await held.fly(words)
            second = await held.served.session()
            response = await ask(second, words)
            assert response.status_code == words.busy
            assert int(response.headers["retry-after"]) >= 1
            assert text_of(response, words).startswith("1 turns run and 0 wait (--max-turns, --turn-queue); try again")
            assert refused(held.served, "turns") == 1
            await held.answer()
            assert (await held.flights.response(first)).status_code == 200
            third = await held.fly(words, second)
            await held.answer()
            assert (await held.flights.response(third)).status_code == 200
            assert (len(await second.records()), held.served.gateway.admission.of_session(second.id)) == (1, 0)

    async def test_a_session_with_too_many_turns_is_refused_and_others_are_not(
        self, serve: Serve, words: Words
    ) -> None:
        async with holding(serve, max_session_turns=1) as held:
            await held.fly(words)
            response = await ask(held.session, words)
            assert response.status_code == words.busy
            assert int(response.headers["retry-after"]) >= 1
            assert text_of(response, words).startswith("the session runs 1 turns already (--max-session-turns)")
            assert refused(held.served, "session_turns") == 1
            await held.fly(words, await held.served.session())

    async def test_a_wait_without_an_end_is_refused(self, serve: Serve, words: Words) -> None:
        async with holding(serve, max_turns=1, turn_queue_timeout=0.02) as held:
            await held.fly(words)
            response = await ask(held.session, words)
            assert response.status_code == words.busy
            assert int(response.headers["retry-after"]) >= 1
            assert text_of(response, words).startswith("the turn waited 0.02 s for others to end")
            assert refused(held.served, "turn_queue_timeout") == 1
            assert waiting(held.served) == 0

    async def test_a_stream_that_was_refused_before_its_head_keeps_the_status(self, serve: Serve, words: Words) -> None:
        async with holding(serve, max_turns=1, turn_queue=0, stream_grace=0.0) as held:
            await held.fly(words)
            response = await ask(held.session, words, stream=True)
            assert (response.status_code, response.headers["content-type"]) == (words.busy, "application/json")

    async def test_a_stream_is_kept_alive_while_it_waits_and_then_answered(self, serve: Serve, words: Words) -> None:
        async with holding(serve, max_turns=1, stream_grace=0.0, stream_keep_alive=0.01) as held:
            await held.fly(words)
            path = f"{held.session.path}/{words.path}"
            async with held.served.client.stream("POST", path, json={**words.body, "stream": True}) as response:
                assert response.status_code == 200
                pieces = response.aiter_raw()
                received = b""
                while received.count(b"\n\n") < 4:
                    received += await anext(pieces)
                assert waiting(held.served) == 1
                await held.answer()
                await held.answer()
                rest = b"".join([piece async for piece in pieces])
            assert b"error" not in (received + rest).replace(b'"error":null', b"")
            assert b'"ok"' in rest
            # The other was from the same place, and came first.
            assert len(await held.session.records()) == 1

    async def test_a_stream_that_waited_too_long_ends_with_the_dialects_error(self, serve: Serve, words: Words) -> None:
        async with holding(serve, max_turns=1, turn_queue_timeout=0.1, stream_grace=0.0) as held:
            await held.fly(words)
            response = await ask(held.session, words, stream=True)
            assert response.status_code == 200
            assert b"try again in 1s" in response.content
            assert (b"rate_limit_error" if "messages" in words.path else b"rate_limit_exceeded") in response.content
            assert refused(held.served, "turn_queue_timeout") == 1

    async def test_more_messages_than_allowed(self, serve: Serve, words: Words) -> None:
        session = await (await serve(max_messages=3)).session()
        path = f"{session.path}/{words.path}"
        assert (await session.served.client.post(path, json=words.many(3))).status_code == 200
        async with session.unchanged():
            response = await session.served.client.post(path, json=words.many(5))
        assert response.status_code == 400
        assert "the request has 5 messages, 3 are allowed (--max-messages)" in response.text
        assert refused(session.served, "messages") == 1

    async def test_more_json_than_allowed_is_not_decoded(self, serve: Serve, words: Words) -> None:
        session = await (await serve(max_json_values=1000)).session()
        text = "[{," * 2000
        assert (await ask(session, words, note=text, more=[0] * 900)).status_code == 200
        response = await ask(session, words, note=text, more=[[]] * 600)
        assert response.status_code == 400
        assert "the request body has more than 1000 JSON values (--max-json-values)" in response.text
        assert refused(session.served, "json_values") == 1
        # Also where it is not JSON behind the place that was counted to.
        path = f"{session.path}/{words.path}"
        response = await session.served.client.post(path, content=b"[" * 2000)
        assert (response.status_code, refused(session.served, "json_values")) == (400, 2)

    async def test_json_nested_too_deeply(self, serve: Serve, words: Words) -> None:
        session = await (await serve()).session()
        deep = json.loads("[" * MAX_NESTING + "]" * MAX_NESTING)
        response = await ask(session, words, note=deep)
        assert response.status_code == 400
        assert f"invalid JSON body: nested deeper than {MAX_NESTING} levels" in response.text
        assert refused(session.served, "json_depth") == 1

    async def test_an_engine_that_takes_too_long(self, serve: Serve, words: Words) -> None:
        session = await (await serve(ScriptedEngine(EngineTimedOut(5)))).session()
        async with session.unchanged():
            response = await ask(session, words)
        assert response.status_code == 502
        assert "backend transport error: ReadTimeout: the engine did not answer within 5 s" in response.text
        assert refused(session.served, "engine_timeout") == 1

    async def test_a_session_stores_so_many_tokens_and_no_more(self, serve: Serve, words: Words) -> None:
        session = await (await serve(max_session_tokens=30)).session()
        talk = [user("hi"), assistant("ok"), user("more")]
        for _ in range(2):
            # A second first turn takes the place of the other.
            assert (await ask(session, words)).status_code == 200
        async with session.unchanged():
            response = await ask(session, words, **dict.fromkeys(words.body.keys() & {"messages", "input"}, talk))
        assert response.status_code == 400
        assert "30 are allowed (--max-session-tokens): start another session" in response.text
        assert refused(session.served, "session_tokens") == 1


CHAT_WORDS = WORDS["chat"]


async def test_a_client_that_goes_away_leaves_the_queue_at_once(serve: Serve) -> None:
    async with holding(serve, max_turns=1, turn_queue=1) as held:
        await held.fly(CHAT_WORDS)
        leaves = await held.queue(CHAT_WORDS)
        held.flights.scopes[leaves].cancel()
        await until(lambda: waiting(held.served) == 0)
        stays = await held.queue(CHAT_WORDS)
        await held.answer()
        await held.answer()
        assert (await held.flights.response(stays)).status_code == 200
        assert len(held.served.engine.calls) == 2


async def test_deleting_a_session_ends_the_waits_of_its_turns(serve: Serve) -> None:
    async with holding(serve, max_turns=1) as held:
        other = await held.served.session()
        await held.fly(CHAT_WORDS, other)
        waits, behind = await held.queue(CHAT_WORDS), await held.queue(CHAT_WORDS, other)
        assert (await held.session.delete()).status_code == 204
        assert (await held.flights.response(waits)).status_code == 404
        assert behind not in held.flights.responses
        assert waiting(held.served) == 1


async def test_the_deadline_of_a_session_ends_the_waits_of_its_turns(serve: Serve) -> None:
    async with holding(serve, max_turns=1, session_deadline=0.2) as held:
        await held.fly(CHAT_WORDS)
        waits = held.flights.start(partial(ask, held.session, CHAT_WORDS))
        assert "session deadline passed" in error_text(await held.flights.response(waits), 400)
        assert waiting(held.served) == 0
        assert refused(held.served, "session_deadline") >= 1


async def test_a_shutdown_ends_the_waits_of_turns(serve: Serve) -> None:
    async with holding(serve, max_turns=1) as held:
        await held.fly(CHAT_WORDS)
        waits = await held.queue(CHAT_WORDS)
        await held.served.gateway.registry.drain(grace=0)
        assert (await held.flights.response(waits)).status_code == 503


async def test_a_retry_that_joins_a_turn_takes_no_place(serve: Serve) -> None:
    async with holding(serve, max_turns=1, max_session_turns=1, turn_queue=0) as held:
        key = {"Idempotency-Key": "k"}
        first = await held.fly(CHAT_WORDS, headers=key)
        joins = held.flights.start(partial(ask, held.session, CHAT_WORDS, headers=key))
        flying = held.served.gateway.metrics.turns_in_flight
        await until(lambda: [sample.value for sample in flying.collect()[0].samples] == [2.0])
        await held.answer()
        responses = [await held.flights.response(index) for index in (first, joins)]
        assert [response.status_code for response in responses] == [200, 200]
        assert len(held.served.engine.calls) == 1


async def test_a_retry_of_a_turn_that_waits_joins_its_wait(serve: Serve) -> None:
    async with holding(serve, max_turns=1, turn_queue=1, turn_queue_timeout=0.2) as held:
        await held.fly(CHAT_WORDS)
        key = {"Idempotency-Key": "k"}
        waits = await held.queue(CHAT_WORDS, headers=key)
        joins = held.flights.start(partial(ask, held.session, CHAT_WORDS, headers=key))
        responses = [await held.flights.response(index) for index in (waits, joins)]
        assert [response.status_code for response in responses] == [429, 429]
        assert refused(held.served, "turn_queue_timeout") == 2


async def test_proxied_requests_take_places(serve: Serve) -> None:
    async with holding(serve, max_turns=1, turn_queue=0) as held:
        await held.fly(CHAT_WORDS)
        response = await held.served.client.post(f"{held.session.path}/tokenize", json={"prompt": "a"})
        assert error_text(response, 429).startswith("1 turns run and 0 wait")
        assert int(response.headers["retry-after"]) >= 1
        await held.answer()
        await until(lambda: held.served.gateway.admission.of_session(held.session.id) == 0)
        index = held.flights.start(partial(held.served.client.post, f"{held.session.path}/tokenize", json={}))
        await until(lambda: held.served.gateway.admission.of_session(held.session.id) == 1)
        assert error_text(await ask(held.session, CHAT_WORDS), 429)
        await held.answer()
        assert (await held.flights.response(index)).status_code == 200
        assert held.served.gateway.admission.of_session(held.session.id) == 0


async def test_counting_tokens_asks_no_engine_and_takes_no_place(serve: Serve) -> None:
    async with holding(serve, max_turns=1, max_session_turns=1, turn_queue=0) as held:
        await held.fly(CHAT_WORDS)
        path = f"{held.session.path}/v1/messages/count_tokens"
        response = await held.served.client.post(path, json=WORDS["messages"].body)
        assert response.status_code == 200


async def test_the_nodes_of_a_tree(serve: Serve) -> None:
    session = await (await serve(mode="tree", max_nodes=2)).session()
    for text in "ab":
        await session.turn(user(text))
    async with session.unchanged():
        response = await session.chat(user("c"))
    assert error_text(response, 400).startswith("node cap reached (2): the session takes no more turns.")
    assert refused(session.served, "nodes") == 1
    assert session.served.gateway.metrics.registry.get_sample_value("trio_sessions_turns_total", {"outcome": "refused"})


async def test_the_tokens_of_a_tree_are_those_of_all_its_branches(serve: Serve) -> None:
    session = await (await serve(mode="tree", max_session_tokens=60)).session()
    statuses = [(await session.chat(user(text))).status_code for text in "abcd"]
    assert statuses == [200, 200, 400, 400]
    history = session.served.gateway.registry.in_memory(session.id).history
    assert sum(len(node.tokens) for node in history.nodes) <= 60


async def test_the_tokens_of_a_line_are_counted_once_and_a_retry_gives_back_its_own(serve: Serve) -> None:
    session = await (await serve(max_session_tokens=50)).session()
    said = [user("a")]
    for _ in range(3):
        # Each takes the place of the one before it.
        assert (await session.chat(*said)).status_code == 200
        assert (await session.chat(user("b"))).status_code == 200
    assert len(await session.records()) == 1


async def test_a_budget_that_is_reached(serve: Serve) -> None:
    session = await (await serve(max_seq_len=4)).session()
    assert (await session.chat(user("hello"))).status_code == 400
    assert refused(session.served, "seq_len") == 1


async def test_the_samples_route_has_the_limits_of_json_too(serve: Serve) -> None:
    session = await (await serve(max_json_values=1000)).session()
    path = f"{session.path}/samples"
    many = await session.served.client.post(path, json={"metadata": {"a": [[]] * 600}})
    assert error_text(many, 400).startswith("the request body has more than 1000 JSON values")
    deep = await session.served.client.post(path, content=b'{"metadata":' + b"[" * 400 + b"]" * 400 + b"}")
    assert error_text(deep, 400) == f"invalid JSON body: nested deeper than {MAX_NESTING} levels"
    assert (refused(session.served, "json_values"), refused(session.served, "json_depth")) == (1, 1)
