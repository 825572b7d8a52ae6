"""How long a conversation may get, and how long a session may live."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.web.support import OPENER, Serve, assert_error, assistant, settle, spelled, until, user
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.toy import sampled_ids

PROMPT = len(spelled(user("hi"))) + len(OPENER)
REMAINING = "x-trio-sessions-remaining-tokens"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, {"max_tokens": 10}),
        ({"max_tokens": None}, {"max_tokens": 10}),
        ({"max_tokens": 4}, {"max_tokens": 4}),
        ({"max_tokens": 11}, {"max_tokens": 10}),
        ({"max_completion_tokens": 4096}, {"max_completion_tokens": 10}),
        ({"max_tokens": 3, "max_completion_tokens": 99}, {"max_tokens": 3, "max_completion_tokens": 10}),
        ({"max_tokens": 2.5}, {"max_tokens": 2.5}),
    ],
)
async def test_an_answer_is_limited_to_what_is_left(serve: Serve, asked: dict[str, Any], sent: dict[str, Any]) -> None:
    session = await (await serve(max_seq_len=PROMPT + 10)).session()
    response = await session.chat(user("hi"), **asked)
    assert response.status_code == 200
    body = session.served.engine.body()
    assert {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body} == sent
    assert response.headers[REMAINING] == str(10 - len(sampled_ids("ok")))


async def test_without_a_limit_nothing_is_added(serve: Serve) -> None:
    session = await (await serve()).session()
    response = await session.chat(user("hi"))
    assert "max_tokens" not in session.served.engine.body()
    assert REMAINING not in response.headers


@pytest.mark.parametrize("most", [PROMPT, PROMPT - 1, 2])
async def test_a_prompt_that_leaves_nothing_is_the_standard_context_error(serve: Serve, most: int) -> None:
    session = await (await serve(max_seq_len=most)).session()
    async with session.unchanged():
        response = await session.chat(user("hi"))
    assert response.status_code == 400
    text = (
        f"prompt is too long: {PROMPT} tokens > {most} maximum; this session's maximum context length is {most} tokens "
        "(--max-seq-len), answer included"
    )
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}
    assert response.json() == {"error": error}
    assert session.served.engine.calls == []


async def test_the_budget_is_that_of_the_whole_line(serve: Serve) -> None:
    session = await (await serve(max_seq_len=60)).session()
    left = 60
    messages = [user("hi")]
    while (response := await session.chat(*messages)).status_code == 200:
        accumulated = len((await session.metadata())["accumulated_token_ids"])
        assert left > int(response.headers[REMAINING]) == max(0, 60 - accumulated)
        left = int(response.headers[REMAINING])
        messages = [*messages, assistant("ok"), user("go on")]
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert len(await session.records()) > 1


async def test_a_stream_that_was_opened_tells_what_the_prompt_leaves(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), max_seq_len=PROMPT + 10, stream_grace=0.0)
    session = await served.session()
    body = {"messages": [user("hi")], "stream": True}
    async with served.client.stream("POST", f"{session.path}/v1/chat/completions", json=body) as response:
        assert response.headers[REMAINING] == "10"


# -- deadlines ----------------------------------------------------------------------------------------------------


def passed(session_id: str) -> str:
    return (
        f"session deadline passed: session_id={session_id}; it takes no more turns, and what it has can still be read "
        "(see --session-deadline)"
    )


async def test_past_its_deadline_a_session_can_be_read_and_takes_no_turns(serve: Serve) -> None:
    served = await serve(session_deadline=3600)
    session = await served.session()
    await session.turn(user("hi"))
    served.gateway.registry.in_memory(session.id).expires = trio.current_time()
    async with session.unchanged():
        assert_error(await session.chat(user("hi"), assistant("ok"), user("more")), 400, passed(session.id))
    assert (await served.client.post(f"{session.path}/samples", json={})).status_code == 200
    assert (await session.delete()).status_code == 204


async def test_the_deadline_cancels_what_runs(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), session_deadline=3600)
    session = await served.session()
    served.gateway.registry.in_memory(session.id).expires = trio.current_time() + 0.3
    async with session.unchanged():
        assert_error(await session.chat(user("hi")), 400, passed(session.id))
    assert served.engine.cancelled == 1
    outcomes = served.gateway.metrics.turns.labels("cancelled")
    assert outcomes._value.get() == 1


@pytest.mark.parametrize(("on_delete", "status"), [("answer", 200), ("cancel", 404)])
async def test_what_a_delete_does_to_a_turn_at_the_engine(serve: Serve, on_delete: str, status: int) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), on_delete=on_delete)
    session = await served.session()
    replies = []
    async with served.raw_client() as client, trio.open_nursery() as nursery:

        async def ask() -> None:
            body = json.dumps({"messages": [user("hi")]})
            replies.append(await client.post(f"{session.path}/v1/chat/completions", content=body))

        nursery.start_soon(ask)
        await until(lambda: bool(held.waiting))
        assert (await session.delete()).status_code == 204
        await settle()
        for call in held.waiting:
            call.answer(chat_answer())
    [reply] = replies
    assert reply.status_code == status
    if status == 404:
        assert_error(reply, 404, f"session not found: session_id={session.id}")
    assert served.engine.cancelled == (on_delete == "cancel")
