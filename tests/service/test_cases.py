"""The numbered cases of token exactness that concern a whole session, with real templates."""

from __future__ import annotations

import json

import pytest

from tests.render.families import renderer_of
from tests.render.real import template_of, unpack
from tests.service.test_seams import prompts, read, said, sampled, tool, user
from trio_sessions.errors import InvalidRequest, RollbackRefused
from trio_sessions.render.load import load_renderer


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    """GLM 5.1 with past thinking kept, as its family pins it."""
    folder = unpack("glm-5.1", tmp_path_factory.mktemp("glm"))
    return load_renderer(str(folder), family="glm47", chat_template=template_of("glm-5.1"))


def stop_of(renderer, role="user"):
    return renderer.profile.roles[role].usual.terminator_id


def calling(text, call_id="c1", **more):
    return said(text, call_id) | more


async def stored_ids(session):
    return session.history.active.tokens.materialize().tolist()


async def findings(made, session):
    return {finding["type"] for finding in (await read(made, session))["metadata"]["tito_session_mismatch"]}


@pytest.mark.parametrize("family", ["default", "glm47"])
async def test_case_6_reasoning_and_a_call_are_stable_where_thinking_is_kept(bench, tmp_path, family):
    """Reasoning and a call, a result, a final answer, and a question that makes the template drop the reasoning."""
    renderer = load_renderer(str(unpack("glm-4.7-flash", tmp_path)), family=family)
    called = calling("", reasoning_content="why")
    call = "why</think><tool_call>f</tool_call>"
    answer = said("done") | {"reasoning_content": "so"}
    last = said("bye") | {"reasoning_content": "ah"}
    made = bench(
        sampled(renderer, called, stop_of(renderer, "tool"), text=call),
        sampled(renderer, answer, stop_of(renderer), text="so</think>done"),
        sampled(renderer, last, stop_of(renderer), text="ah</think>bye"),
        renderer=renderer,
    )
    session = await made.registry.create()
    conversation, stored = [user("go")], []
    for message, appended in ((called, tool("42", "c1")), (answer, user("and now?")), (last, None)):
        await made.turn(session, *conversation)
        assert prompts(made)[-1][: len(stored)] == stored
        stored = await stored_ids(session)
        conversation += [message, appended]
    assert renderer.decode(stored).count("why") == 1
    # By default the template's own rendering has lost the thoughts; kept, it has nothing that differs.
    assert await findings(made, session) == ({"assistant_text"} if family == "default" else set())


@pytest.mark.parametrize(("thought", "rewritten"), [({"reasoning_content": ""}, False), ({}, True)])
async def test_case_7_a_turn_that_the_template_writes_anew_stays_as_it_was_sampled(bench, glm, thought, rewritten):
    first, second = said("one") | thought, said("two")
    made = bench(
        sampled(glm, first, stop_of(glm), text="</think>one"),
        sampled(glm, second, stop_of(glm), text="</think>two"),
        renderer=glm,
    )
    session = await made.registry.create()
    await made.turn(session, "a")
    stored = await stored_ids(session)
    await made.turn(session, "a", first, "b")
    assert prompts(made)[-1][: len(stored)] == stored
    alone, followed = (
        glm.decode(glm.canonical(conversation, tools=None, kwargs=glm.effective_kwargs({})))
        for conversation in ([user("a"), first], [user("a"), first, user("b")])
    )
    # Without a thought the template spells the turn in another way once a question follows.
    assert followed.startswith(alone) is not rewritten
    assert "non_assistant_text" not in await findings(made, session)


async def test_case_10_arguments_of_another_type_are_another_call(bench):
    """``true`` is not 1: the replay is taken for a retry of the turn, and may discard no more than that one."""
    renderer = renderer_of("qwen3")
    called = said("", "c1")
    called["tool_calls"][0]["function"]["arguments"] = '{"a": true}'
    changed = json.loads(json.dumps(called))
    changed["tool_calls"][0]["function"]["arguments"] = '{"a": 1}'
    made = bench(
        *[sampled(renderer, message, stop_of(renderer), text="x") for message in (called, said("ok"))],
        renderer=renderer,
    )
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, user("a"), called, tool("r", "c1"))
    before = await stored_ids(session)
    with pytest.raises(RollbackRefused, match="discard_count=2"):
        await made.turn(session, user("a"), changed, tool("r", "c1"), said("ok"), user("b"))
    assert await stored_ids(session) == before


async def test_case_15_an_error_in_an_appended_sequence_changes_nothing(bench):
    renderer = renderer_of("qwen3")
    called = said("", "c1")
    made = bench(sampled(renderer, called, stop_of(renderer), text="x"), renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")
    before = await stored_ids(session)
    with pytest.raises(InvalidRequest, match=r"messages\[3\]\.content\[0\] is not a text part"):
        await made.turn(
            session, user("a"), called, tool("r", "c1"), user([{"type": "image_url", "image_url": {}}]), tool("s", "c1")
        )
    assert await stored_ids(session) == before
    assert len(prompts(made)) == 1


async def test_case_16_a_retry_of_the_first_turn_is_rendered_anew(bench):
    renderer = renderer_of("qwen3")
    answers = [sampled(renderer, said(text), stop_of(renderer)) for text in ("one", "two")]
    made = bench(*answers, renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a")
    first, second = prompts(made)
    assert second == first == renderer.render([user("a")], tools=None, kwargs={}).tolist()
    assert renderer.decode(await stored_ids(session)).endswith("two<|im_end|>")
    assert len((await read(made, session))["records"]) == 1


@pytest.mark.parametrize(("replayed", "extends"), [(None, True), ("", True), (" ", False)])
async def test_case_17_nothing_said_is_nothing_said_and_a_space_is_something(bench, replayed, extends):
    renderer = renderer_of("qwen3")
    made = bench(
        *[sampled(renderer, message, stop_of(renderer), text="x") for message in (said(""), said("b"))],
        renderer=renderer,
    )
    session = await made.registry.create()
    await made.turn(session, "a")
    stored = await stored_ids(session)
    await made.turn(session, user("a"), {"role": "assistant", "content": replayed}, user("b"))
    # What does not match is a retry of the turn: the prompt starts anew, with the client's spelling.
    assert (prompts(made)[-1][: len(stored)] == stored) is extends
    assert len((await read(made, session))["records"]) == (2 if extends else 1)
