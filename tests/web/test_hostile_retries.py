"""Retries that are told apart, end, and give what was recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.web.support import Serve, assistant, until, user
from tests.web.test_retries import AGAIN, FIRST, KEY, Flights, content, flights, numbered
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer

__all__ = ["flights"]

HI: dict[str, Any] = {"messages": [user("hi")]}


async def in_a_nursery(_: EngineCall) -> EngineAnswer:
    """A call that waits as the real client does while it connects, or sends what the engine takes slowly.

    Cancelled it raises a group of ``Cancelled``, not one.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(trio.sleep_forever)
    raise AssertionError


async def test_an_attempt_that_was_cancelled_in_a_nursery_is_over(serve: Serve) -> None:
    served = await serve(ScriptedEngine(in_a_nursery))
    session = await served.session()
    async with served.raw_client() as client:
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as nursery:
                path = f"{session.path}/v1/chat/completions"
                nursery.start_soon(lambda: client.post(path, content=json.dumps(HI).encode(), headers=KEY))
                await until(lambda: served.engine.in_flight == 1)
                leaving.cancel()
    await until(lambda: served.engine.in_flight == 0)
    with trio.fail_after(3):
        assert content(await session.chat(user("hi"), headers=KEY)) == "ok"


async def test_so_is_one_whose_large_request_the_engine_does_not_read(serve: Serve) -> None:
    """The same with the real client, where it stands in a nursery."""
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    taken: list[trio.socket.SocketType] = []

    async def accept() -> None:
        while True:
            taken.append((await listener.accept())[0])

    port = listener.getsockname()[1]
    async with SGLangEngine(f"http://127.0.0.1:{port}", timeout=60) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        served = await serve(engine, stream_grace=60.0)
        session = await served.session()
        body = json.dumps({"messages": [user("x" * 12_000_000)]}).encode()

        async def ask() -> None:
            async with served.raw_client() as client:
                await client.post(f"{session.path}/v1/chat/completions", content=body, headers=KEY)

        for number in (1, 2):
            with trio.CancelScope() as leaving:
                async with trio.open_nursery() as asking:
                    asking.start_soon(ask)
                    # The second attempt asks the engine again; it does not wait for the first, which is gone.
                    await until(lambda number=number: len(taken) == number, seconds=8)
                    await trio.sleep(0.5)
                    leaving.cancel()
        nursery.cancel_scope.cancel()
    for connection in (listener, *taken):
        connection.close()


async def test_a_count_of_thousands_of_digits_is_no_server_error(serve: Serve) -> None:
    session = await (await serve()).session()
    response = await session.chat(user("hi"), headers={"x-stainless-retry-count": "9" * 5000})
    assert response.status_code in (200, 400), response.text


@pytest.mark.parametrize("mode", ["tree"])
async def test_a_retry_of_a_sample_that_failed_is_not_another_sample(serve: Serve, mode: str) -> None:
    """Two samples of one prompt are wanted; the second is refused once. Its retry is not the first sample again."""
    refusal = EngineAnswer(503, (), b'{"message":"later"}')
    session = await (await serve(ScriptedEngine(chat_answer("1"), refusal, chat_answer("2")), mode=mode)).session()
    assert content(await session.chat(user("hi"), headers=FIRST)) == "1"
    assert (await session.chat(user("hi"), headers=FIRST)).status_code == 503
    assert content(await session.chat(user("hi"), headers=AGAIN)) == "2"
    assert len((await session.metadata())["tree"]["nodes"]) == 2


async def test_the_answer_that_came_last_is_remembered_however_early_it_was_asked_for(serve: Serve) -> None:
    held = HeldCalls()

    async def quick(_: EngineCall) -> EngineAnswer:
        return chat_answer("quick")

    engine = ScriptedEngine(held, *[quick] * 16, otherwise=chat_answer("sampled again"))
    session = await (await serve(engine, mode="tree")).session()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: session.chat(user("slow"), headers=FIRST))
        await until(lambda: bool(held.waiting))
        for number in range(16):
            await session.chat(user(str(number)), headers=FIRST)
        held.waiting[0].answer(chat_answer("slow"))
    assert content(await session.chat(user("slow"), headers=AGAIN)) == "slow"


async def test_another_query_is_another_request(serve: Serve) -> None:
    session = await (await serve(numbered(), mode="tree")).session()
    body = json.dumps(HI).encode()
    assert content(await session.post(body, headers=FIRST, query="?a=1")) == "1"
    assert content(await session.post(body, headers=AGAIN, query="?a=2")) == "2"


async def test_what_was_not_recorded_is_not_given_again(serve: Serve) -> None:
    """The answer of a turn that lost the race to commit is in no record; its retry may still become one."""
    held = HeldCalls()
    session = await (await serve(ScriptedEngine(held, chat_answer("winner"), otherwise=chat_answer("new")))).session()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: session.chat(user("a"), headers=FIRST))
        await until(lambda: bool(held.waiting))
        await session.turn(user("b"))
        held.waiting[0].answer(chat_answer("stale"))
    said = content(await session.chat(user("a"), headers=AGAIN))
    records = await session.records()
    assert said == records[-1]["response"]["choices"][0]["message"]["content"]
    assert (await session.chat(user("a"), assistant(said), user("go on"))).status_code == 200
    assert len(await session.records()) == 2


async def test_a_retry_is_known_although_its_first_took_away_what_it_names(serve: Serve) -> None:
    """What a request asks for is what it says, not what the session makes of it by now.

    The first gives up the turn that it names, as other instructions render the prompt anew. Its retry is not told that
    there is no such turn.
    """
    session = await (await serve(numbered())).session()
    path = f"{session.path}/v1/responses"
    client = session.served.client
    before = (await client.post(path, json={"instructions": "A", "input": "hi"})).json()
    body = {"instructions": "B", "input": "go on", "previous_response_id": before["id"]}
    first = await client.post(path, json=body, headers=KEY)
    assert first.status_code == 200, first.text
    again = await client.post(path, json=body, headers=KEY)
    assert again.status_code == 200, again.text
    assert again.json()["id"] == first.json()["id"]


async def test_a_key_is_still_known_when_what_its_request_points_to_is_gone(serve: Serve) -> None:
    """As above: reasoning that is only named is read from the session, and no longer there when it is read again."""
    answers = [chat_answer("a", message={"role": "assistant", "content": "a", "reasoning_content": "why"})]
    session = await (await serve(ScriptedEngine(*answers))).session()
    path = f"{session.path}/v1/responses"
    client = session.served.client
    reasoning, said = (await client.post(path, json={"input": [user("hi")]})).json()["output"]
    named = {"type": "reasoning", "id": reasoning["id"], "summary": []}
    said["content"][0]["text"] = "another"
    body = {"input": [user("hi"), named, said, user("go on")]}
    first = await client.post(path, json=body, headers=KEY)
    assert first.status_code == 200, first.text
    again = await client.post(path, json=body, headers=KEY)
    assert again.status_code == 200, again.text
    assert again.json()["id"] == first.json()["id"]


async def test_a_client_that_left_is_not_waited_for_again(flights: Flights) -> None:
    """Of two that waited for a turn that failed one had left; the other's retries get one turn, not two."""
    await flights.start("first", FIRST)
    await flights.start("second", AGAIN)
    await flights.leave("first")
    await flights.answer(EngineAnswer(503, (), b'{"message":"later"}'))
    assert flights.replies["second"].status_code == 503
    await flights.start("third", AGAIN)
    await flights.answer(chat_answer("ok"))
    assert content(flights.replies["third"]) == "ok"
    # Its answer was lost on the way.
    engine = flights.session.served.engine
    asked = len(engine.calls)
    with trio.move_on_after(3):
        await flights.start("fourth", AGAIN)
    assert content(flights.replies["fourth"]) == "ok"
    assert len(engine.calls) == asked
