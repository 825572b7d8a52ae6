"""Tool calls that the engine gave no id, or the same one, in the dialects whose results have to name their calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.web.dialects.anthropic_sdk import asked, sdk
from tests.web.dialects.responses_support import TOOLS, agent_in, answer, assert_one_line, call, plain, without_ids
from tests.web.support import Serve, Session, user
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.web.dialects.answer import ChatAnswer

IDS = [["c", "c"], ["", ""], ["c", ""], ["", "c", "c"], ["c", "d", "c", "", "d"]]
MESSAGES_TOOLS = [{"name": "run", "input_schema": {"type": "object"}}]


def calling(ids: list[str]) -> Any:
    """An answer whose calls have these ids and arguments of their own."""
    calls = [call("run", json.dumps({"a": index}), call_id=id_, index=index) for index, id_ in enumerate(ids)]
    return answer("I run.", *calls, finish_reason="tool_calls")


def engine(ids: list[str]) -> ScriptedEngine:
    return ScriptedEngine(calling(ids), calling(ids), answer("ok"))


def assert_ids(found: list[str], ids: list[str]) -> None:
    """The engine's own where it is clear, and each once."""
    assert all(found)
    assert len(set(found)) == len(ids)
    own = [id_ for index, id_ in enumerate(ids) if id_ and id_ not in ids[:index]]
    assert [id_ for id_ in found if id_ in ids] == own


async def assert_exact(session: Session, ids: list[str]) -> None:
    """Nothing was taken back, and the engine is sent the calls as it gave them."""
    await assert_one_line(session, 3)
    assert session.served.gateway.metrics.registry.get_sample_value("trio_sessions_rollbacks_total") == 0
    messages = session.served.engine.body(-1)["messages"]
    said = [message["tool_calls"] for message in messages if message["role"] == "assistant"]
    assert [[one.get("id") or "" for one in calls] for calls in said] == [ids, ids]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", IDS, ids=repr)
async def test_in_messages(serve: Serve, ids: list[str], stream: bool) -> None:
    session = await (await serve(engine(ids))).session()
    messages: list[Any] = [user("go")]
    async with sdk(session) as client:
        for _ in range(3):
            request: Any = asked(messages=messages, tools=MESSAGES_TOOLS)
            if stream:
                async with client.messages.stream(**request) as events:
                    message: Any = await events.get_final_message()
            else:
                message = await client.messages.create(**request)
            messages.append({"role": "assistant", "content": message.content})
            uses = [block for block in message.content if block.type == "tool_use"]
            if uses:
                assert_ids([use.id for use in uses], ids)
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": f"{use.input}"} for use in uses]
            messages.append({"role": "user", "content": results})
    await assert_exact(session, ids)


@pytest.mark.parametrize("kept", [lambda items: items, without_ids], ids=["whole", "without ids"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", IDS, ids=repr)
async def test_in_responses(serve: Serve, ids: list[str], stream: bool, kept: Callable[[Any], Any]) -> None:
    session = await (await serve(engine(ids))).session()
    items: list[Any] = [user("go")]
    async with agent_in(session) as talking:
        for _ in range(3):
            if stream:
                response = (await talking.events(items, tools=TOOLS))[-1].response
            else:
                response = await talking.create(items, tools=TOOLS)
            items += kept(response.output)
            calls = [plain(item) for item in response.output if item.type == "function_call"]
            if calls:
                assert_ids([one["call_id"] for one in calls], ids)
            for one in calls:
                items.append({"type": "function_call_output", "call_id": one["call_id"], "output": one["arguments"]})
    await assert_exact(session, ids)


async def test_an_id_that_was_issued_in_another_session_stays_as_it_is(serve: Serve) -> None:
    served = await serve(ScriptedEngine(calling(["c", "c"]), answer("ok")))
    async with sdk(await served.session()) as client:
        message = await client.messages.create(**asked("go", tools=MESSAGES_TOOLS))
    uses: list[Any] = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "r"} for use in uses]
    messages = [user("go"), {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    async with sdk(await served.session()) as client:
        await client.messages.create(**asked(messages=messages, tools=MESSAGES_TOOLS))
    [_, said, *returned] = served.engine.body(-1)["messages"]
    assert [one["id"] for one in said["tool_calls"]] == [use.id for use in uses]
    assert [one["tool_call_id"] for one in returned] == [use.id for use in uses]


async def test_calls_attach_to_their_answer_among_siblings(serve: Serve) -> None:
    """Two samples of a prompt that say the same, with ids that are issued here: they lead to the answer."""
    same = calling(["", "c", "c"])
    session = await (await serve(ScriptedEngine(otherwise=same), mode="tree")).session()
    async with agent_in(session) as talking:
        first, _ = [await talking.create("go", tools=TOOLS) for _ in range(2)]
        items = without_ids(first.output)
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "r"}
            for item in items
            if "call_id" in item
        ]
        await talking.create([user("go"), *items, *results], tools=TOOLS)
    async with sdk(session) as client:
        message = (await client.messages.create(**asked("do", tools=MESSAGES_TOOLS))).content
        await client.messages.create(**asked("do", tools=MESSAGES_TOOLS))
        uses: list[Any] = [block for block in message if block.type == "tool_use"]
        returned = [{"type": "tool_result", "tool_use_id": use.id, "content": "r"} for use in uses]
        history = [user("do"), {"role": "assistant", "content": message}, {"role": "user", "content": returned}]
        await client.messages.create(**asked(messages=history, tools=MESSAGES_TOOLS))
    nodes = (await session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, None, 0, None, None, 3]


@PATIENT
@given(st.lists(st.sampled_from(["", "c", "d", "e"]), max_size=8))
def test_of_any_calls(ids: list[str]) -> None:
    found = ChatAnswer.of(calling(ids)).identified_calls("new_{}".format)
    assert_ids([one.id for one in found], ids)
    assert [json.loads(one.arguments)["a"] for one in found] == list(range(len(ids)))
