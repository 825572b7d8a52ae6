"""Replays that change what was said and attach, or say the same and fork."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.dialects.responses_support import answer, call, without_ids
from tests.web.support import Serve, Session, user
from trio_sessions.testing.engine import ScriptedEngine

HI = user("hi")


async def post(session: Session, path: str, **body: Any) -> Any:
    response = await session.served.client.post(f"{session.path}/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def parents(session: Session) -> list[int | None]:
    return [node["parent"] for node in (await session.metadata())["tree"]["nodes"]]


@pytest.mark.parametrize("order", ["the reference first", "the reference last", "no type"])
async def test_an_item_that_says_something_else_counts_beside_a_reference(serve: Serve, order: str) -> None:
    """A reference to an answer's reasoning does not stand for the call that the client sends changed."""
    engine = ScriptedEngine(answer("", call("f", '{"a":1}'), reasoning="why"))
    session = await (await serve(engine, mode="tree")).session()
    reasoning, called = (await post(session, "responses", input=[HI]))["output"]
    reference = {"type": "item_reference", "id": reasoning["id"]}
    changed = {**called, "arguments": '{"a":2}'}
    untyped = {key: value for key, value in changed.items() if key != "type"}
    items = {
        "the reference first": [reference, changed],
        "the reference last": [changed, reference],
        "no type": [reasoning, untyped],
    }[order]
    result = {"type": "function_call_output", "call_id": "c0", "output": "r"}
    response = await session.served.client.post(f"{session.path}/v1/responses", json={"input": [HI, *items, result]})
    if response.status_code == 200:
        assert await parents(session) == [None, None]


@pytest.mark.parametrize("arguments", ['{"patch":"x"}', '{"input":"a","more":1}', "raw", '{"input":3}', "", " "])
async def test_a_custom_call_that_comes_back_without_its_id_attaches(serve: Serve, arguments: str) -> None:
    """Agents drop the ids of items; what was sampled for a custom tool need not be ``{"input": text}``."""
    session = await (await serve(ScriptedEngine(answer("x", call("patch", arguments))), mode="tree")).session()
    tools = [{"type": "custom", "name": "patch"}]
    output = without_ids((await post(session, "responses", input=[HI], tools=tools))["output"])
    result = {"type": "custom_tool_call_output", "call_id": "c0", "output": "r"}
    await post(session, "responses", input=[HI, *output, result], tools=tools)
    assert await parents(session) == [None, 0]


async def test_a_call_that_was_given_an_id_attaches_without_its_items_id(serve: Serve) -> None:
    """Of two calls with one id the second is given another, which is not the stored one."""
    engine = ScriptedEngine(answer("", call("f", '{"a":1}'), call("f", '{"a":2}', index=1)))
    session = await (await serve(engine, mode="tree")).session()
    output = (await post(session, "responses", input=[HI]))["output"]
    results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "r"} for item in output]
    await post(session, "responses", input=[HI, *without_ids(output), *results])
    assert await parents(session) == [None, 0]


async def test_no_two_calls_of_a_message_have_the_same_id(serve: Serve) -> None:
    engine = ScriptedEngine(answer("", call("f", '{"a":1}'), call("f", '{"a":2}', index=1)))
    session = await (await serve(engine)).session()
    message = await post(session, "messages", messages=[HI], max_tokens=9)
    ids = [block["id"] for block in message["content"]]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("arguments", [" ", "\n"])
async def test_arguments_of_white_space_attach(serve: Serve, arguments: str) -> None:
    """They are shown as ``{}``."""
    session = await (await serve(ScriptedEngine(answer("", call("f", arguments))), mode="tree")).session()
    message = await post(session, "messages", messages=[HI], max_tokens=9)
    result = user("")
    result["content"] = [{"type": "tool_result", "tool_use_id": "c0", "content": "r"}]
    replay = {"role": "assistant", "content": message["content"]}
    await post(session, "messages", messages=[HI, replay, result], max_tokens=9)
    assert await parents(session) == [None, 0]


@pytest.mark.parametrize("named", [0, 1])
async def test_the_ids_of_items_name_the_answer_that_a_request_goes_on_from(serve: Serve, named: int) -> None:
    """Two samples of a prompt that say the same after another reasoning, which the client drops; the ids tell them."""
    engine = ScriptedEngine(answer("same", reasoning="one"), answer("same", reasoning="other"))
    session = await (await serve(engine, mode="tree")).session()
    answers = [await post(session, "responses", input=[HI]) for _ in range(2)]
    said = [item for item in answers[named]["output"] if item["type"] == "message"]
    await post(session, "responses", input=[HI, *said, user("go on")])
    assert (await parents(session))[-1] == named
