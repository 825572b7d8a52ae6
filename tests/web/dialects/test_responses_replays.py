"""Replays that change what was said, which are believed, and replays that say the same in other words, which attach."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.web.dialects.responses_support import OnePlace, answer, call, message, without_ids
from tests.web.support import Serve, Session, user
from trio_sessions.testing.engine import ScriptedEngine

HI = user("hi")
PATCH = {"type": "custom", "name": "patch"}

Items = list[dict[str, Any]]


async def respond(session: Session, *items: Mapping[str, Any], **body: Any) -> Items:
    """The output of a turn that must be answered 200."""
    response = await session.served.client.post(f"{session.path}/v1/responses", json={"input": items, **body})
    assert response.status_code == 200, response.text
    output: Items = response.json()["output"]
    return output


async def parents(session: Session) -> list[int | None]:
    return [node["parent"] for node in (await session.metadata())["tree"]["nodes"]]


async def tree(serve: Serve, *script: Any, **settings: Any) -> Session:
    """A session in tree mode whose engine answers ``script``."""
    return await (await serve(ScriptedEngine(*script), mode="tree", **settings)).session()


def said(session: Session) -> dict[str, Any]:
    """The answer as the engine was sent it."""
    return next(one for one in session.served.engine.body()["messages"] if one["role"] == "assistant")


def result(call_id: str = "c0", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": "r"}


def named(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"]}


def without(item: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in keys}


BOTH = answer("I run.", call("f", '{"a":1}'), call("f", "{}", call_id="c1"), reasoning="why")
RESULTS = [result("c0"), result("c1")]


def texts(text: str) -> list[dict[str, Any]]:
    return [{"type": "output_text", "text": text, "annotations": []}]


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "reasoning": lambda item: {**item, "content": [{"type": "reasoning_text", "text": "another"}]},
    "text": lambda item: {**item, "content": texts("another")},
    "emptied text": lambda item: {**item, "content": texts("")},
    "arguments": lambda item: {**item, "arguments": '{"a":2}'},
    "name": lambda item: {**item, "name": "g"},
    "arguments, without an id": lambda item: {**without(item, "id"), "arguments": '{"a":2}'},
}
PLACES = {"reasoning": 0, "text": 1, "emptied text": 1}


ORDERS = ["references first", "references last", "previous response"]
# Where nothing says that it belongs to what is named behind it, it does not.
NO_REPLAY = ("references last", "arguments, without an id")


@pytest.mark.parametrize(
    ("order", "change"), [pair for pair in itertools.product(ORDERS, CHANGES) if pair != NO_REPLAY]
)
async def test_what_is_changed_counts_beside_references(serve: Serve, order: str, change: str) -> None:
    """What only is named is filled in; what is sent is what was sent."""
    session = await tree(serve, BOTH)
    output = await respond(session, HI)
    place = PLACES.get(change, 2)
    changed = CHANGES[change](output[place])
    references = [named(item) for index, item in enumerate(output) if index != place]
    if order == "references first":
        await respond(session, HI, *references, changed, *RESULTS)
    elif order == "references last":
        await respond(session, HI, changed, *references, *RESULTS)
    else:
        response_id = f"resp_{output[1]['id'].removeprefix('msg_')}"
        await respond(session, changed, *RESULTS, previous_response_id=response_id)
    assert await parents(session) == [None, None]
    whole = message("I run.", call("f", '{"a":1}'), call("f", "{}", call_id="c1"), reasoning="why")
    again = said(session)
    match place:
        case 0:
            assert again == {**whole, "reasoning_content": "another"}
        case 1:
            assert again == {**whole, "content": "" if change == "emptied text" else "another"}
        case _:
            first, second = again.pop("tool_calls")
            assert again == without(whole, "tool_calls")
            assert first["function"] == {key: changed[key] for key in ("name", "arguments")}
            assert second == whole["tool_calls"][1]


@pytest.mark.parametrize("kept", [lambda items: items, without_ids], ids=["whole", "without ids"])
async def test_the_same_beside_references_is_what_is_stored(serve: Serve, kept: Callable[[Items], Items]) -> None:
    session = await tree(serve, BOTH, message_matcher="strict")
    reasoning, *others = await respond(session, HI)
    await respond(session, HI, named(reasoning), *kept(others), *RESULTS)
    assert await parents(session) == [None, 0]


@pytest.mark.parametrize(
    "more",
    [lambda item: {**item, "call_id": "c9", "id": item["id"].removesuffix("_0") + "_7"}, lambda item: item],
    ids=["another", "one twice"],
)
async def test_a_call_that_is_not_in_what_is_named_is_another(serve: Serve, more: Callable[[Any], Any]) -> None:
    session = await tree(serve, answer("", call("f", '{"a":1}'), reasoning="why"))
    reasoning, called = await respond(session, HI)
    added = more(called)
    await respond(session, HI, named(reasoning), called, added, result("c0"), result(added["call_id"]))
    assert await parents(session) == [None, None]
    assert [one["id"] for one in said(session)["tool_calls"]] == ["c0", added["call_id"]]


async def test_what_says_something_is_no_reference(serve: Serve) -> None:
    """An item with an id and without a type."""
    session = await tree(serve, answer("", call("f", '{"a":1}'), reasoning="why"))
    reasoning, called = await respond(session, HI)
    items = [HI, reasoning, without(called, "type"), result()]
    async with session.unchanged():
        response = await session.served.client.post(f"{session.path}/v1/responses", json={"input": items})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("input[2]: a reference to an item has an id and nothing else")


ARGUMENTS = ['{"patch":"x"}', '{"input":"a","more":1}', "raw", '{"input":3}', "", " ", '{"input": "a"}', "{}"]


@pytest.mark.parametrize("arguments", ARGUMENTS)
async def test_a_custom_call_that_comes_back_without_its_id_attaches(serve: Serve, arguments: str) -> None:
    """Agents drop the ids of items; what was sampled for a custom tool need not be ``{"input": text}``."""
    session = await tree(serve, answer("x", call("patch", arguments)), message_matcher="strict")
    output = without_ids(await respond(session, HI, tools=[PATCH]))
    await respond(session, HI, *output, result(kind="custom_tool_call_output"), tools=[PATCH])
    assert await parents(session) == [None, 0]


async def test_so_do_two_of_which_one_was_given_an_id(serve: Serve) -> None:
    session = await tree(serve, answer("", call("patch", "raw"), call("patch", "raw too")), message_matcher="strict")
    output = without_ids(await respond(session, HI, tools=[PATCH]))
    results = [result(item["call_id"], "custom_tool_call_output") for item in output]
    await respond(session, HI, *output, *results, tools=[PATCH])
    assert await parents(session) == [None, 0]


async def test_so_it_does_behind_several_instructions(serve: Serve) -> None:
    """Which are one message of the conversation, where the template has one place for them."""
    session = await tree(serve, answer("", call("patch", "raw")), renderer=OnePlace())
    items = [{"role": "developer", "content": text} for text in ("Be kind.", "Be brief.", "Be right.")]
    output = without_ids(await respond(session, *items, HI, tools=[PATCH]))
    await respond(session, *items, HI, *output, result(kind="custom_tool_call_output"), tools=[PATCH])
    assert await parents(session) == [None, 0]


@pytest.mark.parametrize("change", [{"input": "changed"}, {"call_id": "c9"}, {"name": "other"}])
async def test_a_custom_call_that_is_changed_does_not(serve: Serve, change: dict[str, str]) -> None:
    session = await tree(serve, answer("x", call("patch", "raw")))
    [text, called] = without_ids(await respond(session, HI, tools=[PATCH]))
    changed = {**called, **change}
    await respond(session, HI, text, changed, result(changed["call_id"], "custom_tool_call_output"), tools=[PATCH])
    assert await parents(session) == [None, None]


async def test_a_call_whose_tool_is_gone_is_known_by_its_own_id(serve: Serve) -> None:
    """The function of a namespace, whose name the client drops with the item's id."""
    session = await tree(serve, answer("", call("agents__run", "{}")))
    tools = [{"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "run"}]}]
    [called] = await respond(session, HI, tools=tools)
    await respond(session, HI, without(called, "id", "namespace"), result(), tools=tools)
    assert await parents(session) == [None, 0]


async def test_calls_with_one_id_are_told_apart_by_what_else_was_sent(serve: Serve) -> None:
    """Engines number calls within an answer: siblings, and answers further on, have the same ids.

    Here all of them show the same input as well, and what was sampled last is not what the client has.
    """
    raw, spelled = call("patch", "a"), call("patch", '{"input":"a"}')
    session = await tree(serve, answer("one", raw), answer("other", spelled), answer("one", spelled))
    items: Items = [HI]
    lines = [without_ids(await respond(session, HI, tools=[PATCH])) for _ in range(2)]
    returned = result(kind="custom_tool_call_output")
    items += [*lines[0], returned]
    items += [*without_ids(await respond(session, *items, tools=[PATCH])), returned]
    await respond(session, *items, tools=[PATCH])
    assert await parents(session) == [None, None, 0, 2]
    await respond(session, HI, *lines[1], returned, tools=[PATCH])
    assert (await parents(session))[-1] == 1
