"""Several samples of one prompt, each gone on from by a client of its own: the right one is attached to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from tests.web.dialects.anthropic_sdk import asked, sdk
from tests.web.dialects.responses_support import agent_in, answer, call, without_ids
from tests.web.support import Serve, Session, user
from trio_sessions.testing.engine import ScriptedEngine

TURNS = 3
THINKING = {"type": "enabled", "budget_tokens": 1024}
FUNCTION: Any = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}
TOOL: Any = {"name": "run", "input_schema": {"type": "object"}}

Line = Callable[[Session], Awaitable[list[str]]]


async def take_lines(serve: Serve, line: Line, *script: Any, otherwise: Any = None) -> None:
    """Two clients at a time; what each was answered is one path of the tree, and there is nothing else in it."""
    engine = ScriptedEngine(*script) if otherwise is None else ScriptedEngine(otherwise=otherwise)
    session = await (await serve(engine, mode="tree")).session()
    lines: list[list[str]] = []

    async def take() -> None:
        lines.append(await line(session))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
    nodes = (await session.metadata())["tree"]["nodes"]
    ids = [node["response_id"] for node in nodes]
    parents = {node["response_id"]: None if node["parent"] is None else ids[node["parent"]] for node in nodes}
    assert len(lines) == 2
    assert parents == {
        id_: before for answered in lines for before, id_ in zip([None, *answered], answered, strict=False)
    }


def kept(output: Sequence[Any]) -> list[Any]:
    return list(output)


def without_reasoning(output: Sequence[Any]) -> list[Any]:
    return [item for item in output if item.type != "reasoning"]


def named(output: Sequence[Any]) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for item in output]


def encrypted(output: Sequence[Any]) -> list[Any]:
    """As Codex: no ids, and of reasoning nothing that can be read."""
    items = without_ids(output)
    return [{**item, "content": None} if item["type"] == "reasoning" else item for item in items]


KEPT = [kept, without_reasoning, named, encrypted]


def responding(keep: Callable[[Sequence[Any]], list[Any]], *, stream: bool, tools: Sequence[Any] = ()) -> Line:
    async def line(session: Session) -> list[str]:
        items: list[Any] = [user("hi")]
        ids = []
        fields: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "tools": tools}
        async with agent_in(session) as talking:
            for _ in range(TURNS):
                response: Any = (
                    (await talking.events(items, **fields))[-1].response
                    if stream
                    else await talking.create(items, **fields)
                )
                ids.append(response.id)
                items += keep(response.output)
                calls = [item for item in response.output if item.type == "function_call"]
                items += [{"type": "function_call_output", "call_id": item.call_id, "output": "r"} for item in calls]
                items.append(user("go on"))
        return ids

    return line


SAME = answer("same", reasoning="so")
SAME_CALLS = answer("same", call("run", '{"a": 1}'), reasoning="so")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keep", KEPT)
@pytest.mark.parametrize("sampled", [SAME, SAME_CALLS], ids=["text", "calls"])
async def test_in_responses_by_the_ids_of_items(
    serve: Serve, keep: Callable[[Sequence[Any]], list[Any]], stream: bool, sampled: Any
) -> None:
    """The engine says the same every time, to the id of the call, so that nothing but our ids can tell."""
    await take_lines(serve, responding(keep, stream=stream, tools=[FUNCTION]), otherwise=sampled)


async def test_in_responses_by_the_response_before(serve: Serve) -> None:
    async def line(session: Session) -> list[str]:
        ids: list[str] = []
        async with agent_in(session) as talking:
            for _ in range(TURNS):
                before: dict[str, Any] = {"previous_response_id": ids[-1]} if ids else {}
                ids.append((await talking.create("go on", **before)).id)
        return ids

    await take_lines(serve, line, otherwise=SAME)


@pytest.mark.parametrize("named", [0, 1])
async def test_ids_tell_where_the_reasoning_that_differs_is_dropped(serve: Serve, named: int) -> None:
    session = await (
        await serve(ScriptedEngine(answer("same", reasoning="one"), answer("same", reasoning="other")), mode="tree")
    ).session()
    async with agent_in(session) as talking:
        answers = [await talking.create([user("hi")]) for _ in range(2)]
        await talking.create([user("hi"), *without_reasoning(answers[named].output), user("go on")])
    nodes = (await session.metadata())["tree"]["nodes"]
    assert nodes[-1]["parent"] == named


@pytest.mark.parametrize("named", [0, 1])
async def test_an_answer_that_is_not_named_is_behind_one_that_is(serve: Serve, named: int) -> None:
    """Some clients keep the ids of some items."""
    session = await (await serve(ScriptedEngine(otherwise=SAME), mode="tree")).session()
    async with agent_in(session) as talking:
        first = [await talking.create([user("hi")]) for _ in range(2)]
        second = [await talking.create([user("go on")], previous_response_id=response.id) for response in first]
        history: list[Any] = [user("hi"), *kept(first[named].output), user("go on"), *encrypted(second[named].output)]
        history = [item for item in history if not isinstance(item, dict) or item.get("type") != "reasoning"]
        await talking.create([*history, user("and on")])
    nodes = (await session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, None, 0, 1, 2 + named]


def conversing(*, stream: bool, **fields: Any) -> Line:
    async def line(session: Session) -> list[str]:
        messages: list[Any] = [user("hi")]
        ids = []
        async with sdk(session) as client:
            for _ in range(TURNS):
                request: Any = asked(messages=messages, tools=[TOOL], **fields)
                if stream:
                    async with client.messages.stream(**request) as events:
                        message: Any = await events.get_final_message()
                else:
                    message = await client.messages.create(**request)
                ids.append(message.id)
                uses = [block for block in message.content if block.type == "tool_use"]
                results = [{"type": "tool_result", "tool_use_id": use.id, "content": "r"} for use in uses]
                messages.append({"role": "assistant", "content": message.content})
                messages.append({"role": "user", "content": [*results, {"type": "text", "text": "go on"}]})
        return ids

    return line


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampled", [SAME, SAME_CALLS], ids=["text", "calls"])
async def test_in_messages_by_the_signature(serve: Serve, stream: bool, sampled: Any) -> None:
    """Again the engine says the same every time."""
    await take_lines(serve, conversing(stream=stream, thinking=THINKING), otherwise=sampled)


@pytest.mark.parametrize("stream", [False, True])
async def test_in_messages_by_the_ids_of_calls(serve: Serve, stream: bool) -> None:
    """Without thinking, and without ids of the engine's."""
    sampled = answer("same", call("run", "{}", call_id=""), call("run", "{}", call_id="", index=1), reasoning="so")
    await take_lines(serve, conversing(stream=stream), otherwise=sampled)


@pytest.mark.parametrize("stream", [False, True])
async def test_in_messages_by_what_differs(serve: Serve, stream: bool) -> None:
    script = [answer(f"said {number}") for number in range(2 * TURNS)]
    await take_lines(serve, conversing(stream=stream), *script)


async def test_where_nothing_differs_the_latest_is_gone_on_from(serve: Serve) -> None:
    """Texts that are the same, and no id beside them."""
    session = await (
        await serve(ScriptedEngine(answer("same", reasoning="one"), answer("same", reasoning="other")), mode="tree")
    ).session()
    async with sdk(session) as client:
        [first, _] = [await client.messages.create(**asked()) for _ in range(2)]
        history = [user("hi"), {"role": "assistant", "content": first.content}, user("go on")]
        await client.messages.create(**asked(messages=history))
    nodes = (await session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, None, 1]
