"""Turn after turn, as agents take them: however they send back what they got, the session stays one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import BadRequestError
from openai.types.responses import Response

from tests.web.dialects.responses_support import (
    TOOLS,
    Agent,
    OnePlace,
    agent,
    answer,
    assert_one_line,
    call,
    message,
    plain,
    without_ids,
)
from tests.web.support import Serve, user

MESSAGES = (
    message(
        "I run.",
        call("run", '{"a":  1}', call_id="c0"),
        call("agents__run", "{}", call_id="c1", index=1),
        reasoning="hm",
    ),
    message(
        "", call("patch", '{"input":  "*** é"}', call_id="c2"), call("agents__tell", '{"input": ""}', call_id="c3")
    ),
    message("And then?", reasoning="so"),
    message("Done."),
)
SCRIPT = tuple(
    answer(said["content"], *(said["tool_calls"] or ()), reasoning=said.get("reasoning_content")) for said in MESSAGES
)

Turn = Callable[[Agent, "Line", list[Any]], Awaitable[Response]]


class Line:
    """What an agent remembers."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.latest: str | None = None


async def take_turns(talking: Agent, turn: Turn) -> None:
    """Four turns, the first two with calls; the results come in the order of the calls."""
    line = Line()
    given: list[Any] = [{"role": "user", "content": "go"}]
    for _ in SCRIPT:
        response = await turn(talking, line, given)
        line.latest = response.id
        given = [result(item) for item in response.output if "call" in item.type] or [
            {"role": "user", "content": "more"}
        ]


def result(item: Any) -> dict[str, Any]:
    """What the agent answers to a call."""
    return {"type": f"{item.type}_output", "call_id": item.call_id, "output": f"result of {item.call_id}"}


async def replaying(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Keeps the output as it came."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    line.items += [*given, *response.output]
    return response


async def forgetting_ids(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Keeps the output without ids."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    line.items += [*given, *without_ids(response.output)]
    return response


async def streaming(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Keeps the items of a stream, as Codex does, and no thoughts but encrypted ones."""
    events = await talking.events(
        [*line.items, *given], tools=TOOLS, store=False, include=["reasoning.encrypted_content"]
    )
    done = [plain(event.item) for event in events if event.type == "response.output_item.done"]
    line.items += [
        *given,
        *(
            {key: value for key, value in item.items() if key != "content" or item["type"] == "message"}
            for item in done
        ),
    ]
    response: Response = events[-1].response
    return response


async def extending(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Names the response before."""
    return await talking.create(given, tools=TOOLS, previous_response_id=line.latest)


async def referring(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Names every item."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    line.items += [*given, *({"type": "item_reference", "id": item.id} for item in response.output)]
    return response


async def referring_to_some(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Names the first item of an answer, and repeats the others."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    first, *rest = response.output
    line.items += [*given, {"id": first.id}, *rest]
    return response


async def referring_without_ids(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Names the first item of an answer, and repeats the others without their ids."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    first, *rest = response.output
    line.items += [*given, {"id": first.id}, *without_ids(rest)]
    return response


async def referring_at_last(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Repeats an answer, but names its last item."""
    response = await talking.create([*line.items, *given], tools=TOOLS)
    *rest, last = response.output
    line.items += [*given, *rest, {"id": last.id}]
    return response


async def interleaving(talking: Agent, line: Line, given: list[Any]) -> Response:
    """Puts every result directly behind its call."""
    results = {item["call_id"]: item for item in given if "call_id" in item}
    items: list[Any] = []
    for item in line.items:
        items.append(item)
        if getattr(item, "call_id", None) in results:
            items.append(results.pop(item.call_id))
    items += [item for item in given if "call_id" not in item]
    response = await talking.create(items, tools=TOOLS)
    line.items = [*items, *response.output]
    return response


TURNS: list[Turn] = [
    replaying,
    forgetting_ids,
    streaming,
    extending,
    referring,
    referring_to_some,
    referring_without_ids,
    referring_at_last,
    interleaving,
]


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize("turn", TURNS, ids=[turn.__name__ for turn in TURNS])
async def test_a_session_stays_one_line(serve: Serve, turn: Turn, mode: str) -> None:
    async with agent(serve, *SCRIPT, mode=mode) as talking:
        await take_turns(talking, turn)
        await assert_one_line(talking.session, len(SCRIPT))
        assert [one["role"] for one in talking.asked()["messages"]] == [
            *("user", "assistant", "tool", "tool", "assistant", "tool", "tool"),
            *("assistant", "user"),
        ]


NAMING: list[Turn] = [extending, referring, referring_to_some, referring_without_ids, referring_at_last]


@pytest.mark.parametrize("turn", NAMING, ids=[turn.__name__ for turn in NAMING])
async def test_what_is_named_is_as_it_was_stored_under_the_strictest_matcher(serve: Serve, turn: Turn) -> None:
    async with agent(serve, *SCRIPT, message_matcher="strict") as talking:
        await take_turns(talking, turn)
        await assert_one_line(talking.session, len(SCRIPT))
        said = [one for one in talking.asked()["messages"] if one["role"] == "assistant"]
    assert said == list(MESSAGES[:3])


@pytest.mark.parametrize(
    "calls",
    [
        [call("patch", "*** not JSON", call_id="c0")],
        [call("patch", '{"input":  "spaced"}', call_id="c0")],
        [call("run", "{}", call_id=""), call("run", "{}", call_id="")],
        [call("run", "{}", call_id="same"), call("run", "{}", call_id="same")],
    ],
    ids=["no JSON", "spaced", "no ids", "the same id"],
)
async def test_calls_that_an_item_cannot_say_are_known_by_its_id(serve: Serve, calls: list[Any]) -> None:
    async with agent(serve, answer("", *calls), answer("ok"), message_matcher="strict") as talking:
        response = await talking.create("go", tools=TOOLS)
        results = [result(item) for item in response.output]
        await talking.create([user("go"), *response.output, *results], tools=TOOLS)
        await assert_one_line(talking.session, 2)
        asked = [{**one, "index": said["index"]} for one, said in zip(_calls(talking), calls, strict=True)]
        assert asked == calls


def _calls(talking: Agent) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = talking.asked()["messages"][1]["tool_calls"]
    return calls


async def test_a_client_that_changes_what_was_said_is_believed(serve: Serve) -> None:
    async with agent(serve, answer("", call("patch", '{"input":"a"}')), answer("ok")) as talking:
        response = await talking.create("go", tools=TOOLS)
        changed = {**plain(response.output[0]), "input": "b"}
        await talking.create([user("go"), changed, result(response.output[0])], tools=TOOLS)
        asked = _calls(talking)
    assert asked[0]["function"]["arguments"] == '{"input":"b"}'


async def test_a_call_whose_namespace_got_lost_is_known_by_its_id(serve: Serve) -> None:
    async with agent(serve, answer("", call("agents__run", "{}")), answer("ok"), message_matcher="strict") as talking:
        response = await talking.create("go", tools=TOOLS[1:])
        lost = {key: value for key, value in plain(response.output[0]).items() if key != "namespace"}
        await talking.create([user("go"), lost, result(response.output[0])], tools=TOOLS[1:])
        assert _calls(talking)[0]["function"]["name"] == "agents__run"


async def test_what_stands_behind_a_named_answer_and_is_not_in_it_is_another_message(serve: Serve) -> None:
    async with agent(serve, answer("a"), answer("b")) as talking:
        first = await talking.create("go")
        # A message of its own, which no template has behind an answer.
        with pytest.raises(BadRequestError, match="appended message at index 2 has role='assistant'"):
            await talking.create([user("go"), {"id": first.output[0].id}, {"role": "assistant", "content": "c"}])


async def test_thoughts_that_a_client_only_names_are_those_that_were_stored(serve: Serve) -> None:
    async with agent(serve, answer("a", reasoning="hm"), answer("b"), message_matcher="strict") as talking:
        response = await talking.create("go", include=["reasoning.encrypted_content"])
        thought, said = (plain(item) for item in response.output)
        kept = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
        del said["id"]
        await talking.create([user("go"), kept, said, user("more")])
        await assert_one_line(talking.session, 2)


async def test_two_answers_in_a_row_stay_two(serve: Serve) -> None:
    async with agent(serve, answer("a"), answer("b", reasoning="hm"), answer("c")) as talking:
        first = await talking.create("go")
        second = await talking.create([user("go"), *first.output])
        for shown in (lambda items: items, without_ids):
            await talking.create([user("go"), *shown(first.output), *shown(second.output), user("more")])
            assert [one["content"] for one in talking.asked()["messages"]] == ["go", "a", "b", "more"]
        assert len(await talking.session.records()) == 3


async def test_instructions_lead_and_are_known_again(serve: Serve) -> None:
    async with agent(serve, *SCRIPT) as talking:
        first = await talking.create("go", instructions="Be kind.")
        second = await talking.create(
            [result(first.output[-2]), result(first.output[-1])],
            previous_response_id=first.id,
            instructions="Be kind.",
            tools=TOOLS,
        )
        await talking.create("more", previous_response_id=second.id, tools=TOOLS)
        assert [one["role"] for one in talking.asked()["messages"]].count("system") == 1
        await assert_one_line(talking.session, 3)


async def test_instructions_are_known_again_among_others(serve: Serve) -> None:
    kind = "Be kind."
    async with agent(serve, answer("a"), answer("b"), renderer=OnePlace()) as talking:
        items: list[Any] = [{"role": "developer", "content": "Be brief."}, user("go")]
        first = await talking.create(items, instructions=kind)
        await talking.create("more", previous_response_id=first.id, instructions=kind)
        await assert_one_line(talking.session, 2)
        head, *_ = talking.asked()["messages"]
    assert "".join(part["text"] for part in head["content"]) == "Be kind.\n\nBe brief."


@pytest.mark.parametrize("before", ["Be kind.", None])
async def test_other_instructions_take_the_place_of_those_before(serve: Serve, before: str | None) -> None:
    async with agent(serve, *SCRIPT[2:], mode="tree") as talking:
        first = await talking.create("go", instructions=before)
        await talking.create("more", previous_response_id=first.id, instructions="Be brief.")
        assert talking.asked()["messages"] == [
            {"role": "system", "content": "Be brief."},
            user("go"),
            MESSAGES[2],
            user("more"),
        ]
        # Other instructions are another prompt, from its first id on.
        nodes = (await talking.session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, None]


async def test_an_older_response_is_where_a_tree_branches(serve: Serve) -> None:
    async with agent(serve, *[answer(text) for text in "abcd"], mode="tree") as talking:
        first = await talking.create("q")
        second = await talking.create("r", previous_response_id=first.id)
        third = await talking.create("s", previous_response_id=first.id)
        await talking.create("t", previous_response_id=second.id)
        assert [one["content"] for one in talking.asked()["messages"]] == ["q", "a", "r", "b", "t"]
        nodes = (await talking.session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 0, 1]
    assert [node["response_id"] for node in nodes][:3] == [first.id, second.id, third.id]


async def test_nothing_new_behind_a_response_samples_once_more(serve: Serve) -> None:
    async with agent(serve, answer("a"), answer("b")) as talking:
        first = await talking.create("q")
        second = await talking.create([], previous_response_id=first.id)
        await assert_one_line(talking.session, 2)
    assert second.output_text == "b"
    assert second.previous_response_id == first.id


async def test_a_response_that_was_taken_back_is_not_there(serve: Serve) -> None:
    async with agent(serve, *[answer(text) for text in "abc"]) as talking:
        first = await talking.create("q")
        second = await talking.create("r", previous_response_id=first.id)
        await talking.create("s", previous_response_id=first.id)
        with pytest.raises(BadRequestError, match=f"Previous response with id '{second.id}' not found") as raised:
            await talking.create("t", previous_response_id=second.id)
    assert raised.value.code == "previous_response_not_found"


async def test_what_is_named_in_a_response_that_is_extended_is_said_once(serve: Serve) -> None:
    async with agent(serve, SCRIPT[0], answer("ok")) as talking:
        first = await talking.create("go", tools=TOOLS)
        references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
        results = [result(item) for item in first.output if item.type == "function_call"]
        await talking.create([*references, *results], previous_response_id=first.id, tools=TOOLS)
        await assert_one_line(talking.session, 2)
