"""What stands between a stored turn and the next one: declared, refused, or unchanged, with real templates."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import get_args

import pytest
import structlog
from structlog.testing import capture_logs

from tests.render.families import chatml, from_template, renderer_of, tokenizer_of, turn
from trio_sessions.core.boundary import BoundaryKind, Origin
from trio_sessions.core.history import path_of
from trio_sessions.errors import AppendRoleNotSupported, RenderingChanged, TruncatedGeneration
from trio_sessions.testing.engine import chat_answer
from trio_sessions.testing.toy import TOY_END, ToyRenderer, sampled_ids

SAID = {"role": "assistant", "content": "ok"}
CUT = chat_answer(token_ids=sampled_ids("ok")[:-1], finish_reason="length")


def user(text):
    return {"role": "user", "content": text}


def tool(text, call_id):
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def definition(name, **more):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {}, **more}}


def said(text, *call_ids):
    calls = [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call_id in call_ids]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def sampled(renderer, message, stop, *, text=None, **fields):
    """An answer whose ids spell what was said one character at a time, then the stop id."""
    spelled = [id_ for character in text or message["content"] for id_ in renderer.encode(character)]
    ids = [*spelled, *([] if stop is None else [stop])]
    return chat_answer(message=message, token_ids=ids, **fields)


async def read(made, session):
    return json.loads(await made.described(session))


async def declared(made, session):
    """Turn and kind of every event that is shown; there is no empty list of them."""
    metadata = (await read(made, session))["metadata"]
    assert metadata.get("boundary_events") != []
    return [(event["turn"], event["kind"]) for event in metadata.get("boundary_events", [])]


def prompts(made):
    return [json.loads(call.body)["input_ids"] for call in made.engine.calls]


def counted(made):
    counts = {kind: made.metric("boundary_events_total", kind=kind) for kind in get_args(BoundaryKind)}
    return {kind: count for kind, count in counts.items() if count}


# -- the cases of exactness ---------------------------------------------------------------------------------------


async def test_case_19_a_template_that_reads_the_date_across_midnight(bench):
    renderer = from_template(chatml(turn(), head="<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n"))
    stop = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    first, second = said("hello"), said("world")
    made = bench(*[sampled(renderer, message, stop) for message in (first, first, second, second)], renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")

    made.now += timedelta(minutes=2)
    assert made.now == datetime(2026, 1, 1, 0, 1)
    # A retry of the first turn is rendered whole, and still is what it was.
    await made.turn(session, "a")
    before, again = prompts(made)
    assert again == before
    assert "31 Dec 2025" in renderer.decode(before)

    stored = session.history.active.tokens.materialize().tolist()
    await made.turn(session, "a", first, "b")
    assert prompts(made)[-1][: len(stored)] == stored
    answer = await read(made, session)
    assert answer["metadata"]["tito_session_mismatch"] == []

    other = await made.registry.create()
    await made.turn(other, "a")
    assert "01 Jan 2026" in renderer.decode(prompts(made)[-1])


async def test_a_suffix_that_reads_the_date_has_that_of_the_session(bench):
    dated = "{% if m.role == 'user' %}<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n{% endif %}"
    renderer = from_template(chatml(dated + turn()))
    stop = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    made = bench(*[sampled(renderer, said("hello"), stop)] * 2, renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")
    made.now += timedelta(days=1)
    await made.turn(session, "a", said("hello"), "b")
    assert renderer.decode(prompts(made)[-1]).count("31 Dec 2025") == 2
    assert (await read(made, session))["metadata"]["tito_session_mismatch"] == []


async def test_case_20_a_tool_result_that_comes_a_request_after_its_sibling(bench):
    """The template puts adjacent results into one turn; these two are not adjacent in the ids, and that is declared."""
    renderer = renderer_of("qwen3")
    stop = renderer.profile.roles["user"].usual.terminator_id
    called, waits, done = said("both", "c1", "c2"), said("one"), said("two")
    made = bench(
        sampled(renderer, called, stop),
        sampled(renderer, waits, stop),
        sampled(renderer, done, stop),
        renderer=renderer,
    )
    session = await made.registry.create()
    conversation = [user("go")]
    stored = []
    for message, appended in ((called, tool("r1", "c1")), (waits, tool("r2", "c2")), (done, None)):
        await made.turn(session, *conversation)
        assert prompts(made)[-1][: len(stored)] == stored
        stored = session.history.active.tokens.materialize().tolist()
        conversation += [message, appended]
    assert await declared(made, session) == [(2, "late_tool_result")]
    assert counted(made) == {"late_tool_result": 1}
    [event] = (await read(made, session))["metadata"]["boundary_events"]
    assert event["detail"] == "message 4 answers no call of the turn before it"
    # Everything from there on is what the late result was rendered to.
    assert renderer.decode(prompts(made)[-1][event["position"] :]).lstrip().startswith("<|im_start|>user\n<tool_resp")


# -- origins, through a whole turn --------------------------------------------------------------------------------


async def test_a_stop_that_was_replaced_is_the_templates_and_declared(bench):
    renderer = renderer_of("glm")
    user_id, observation_id = tokenizer_of("glm").convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    called = said("hello")
    made = bench(*[sampled(renderer, called, observation_id)] * 2, renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")
    stored = session.history.active.tokens.materialize()
    await made.turn(session, "a", called, "b")
    leaf = session.history.active
    seam = len(stored) - 1
    assert leaf.parent.origins()[seam] == Origin.SAMPLED
    assert leaf.origins()[seam] == Origin.TEMPLATE
    assert leaf.tokens.materialize()[seam] == user_id
    assert await declared(made, session) == [(1, "stop_replaced")]
    assert counted(made) == {"stop_replaced": 1}


async def test_a_close_is_synthetic_and_declared(bench):
    made = bench(CUT)
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b")
    leaf = session.history.active
    closed = leaf.tokens.materialize()[leaf.origins() == Origin.SYNTHETIC]
    assert closed.tolist() == [TOY_END]
    assert await declared(made, session) == [(1, "turn_closed")]
    assert counted(made) == {"turn_closed": 1}


# -- events are shown, counted and logged when they are committed ------------------------------------------------


async def test_a_turn_that_is_given_up_takes_its_events_along(bench):
    made = bench(CUT)
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, tool("r", "c"))
    assert await declared(made, session) == [(1, "turn_closed"), (1, "late_tool_result")]
    await made.turn(session, "a", SAID, "b")
    assert await declared(made, session) == [(1, "turn_closed")]
    # What happened has happened.
    assert counted(made) == {"turn_closed": 2, "late_tool_result": 1}


async def test_a_turn_that_fails_declares_nothing(bench):
    made = bench(CUT, ZeroDivisionError())
    session = await made.registry.create()
    await made.turn(session, "a")
    with pytest.raises(ZeroDivisionError):
        await made.turn(session, "a", SAID, tool("r", "c"), tools=[definition("f")])
    assert await declared(made, session) == []
    assert counted(made) == {}


async def test_logs_say_the_kind_and_nothing_else(bench):
    structlog.reset_defaults()
    made = bench(CUT)
    session = await made.registry.create()
    await made.turn(session, "a")
    with capture_logs() as logs:
        await made.turn(
            session, "a", SAID, tool("secret", "c"), tools=[definition("secret")], chat_template_kwargs={"secret": 1}
        )
    told = [line for line in logs if line["event"] == "boundary event"]
    assert [line["kind"] for line in told] == [
        "turn_closed",
        "tools_changed",
        "template_kwargs_changed",
        "late_tool_result",
    ]
    for line in told:
        assert line.keys() == {"event", "kind", "log_level", "session", "turn"}
        assert (line["log_level"], line["session"], line["turn"]) == ("info", session.id, 2)
    assert "secret" not in repr([line for line in logs if line["log_level"] != "debug"])


# -- --on-truncated ------------------------------------------------------------------------------------------------


async def test_a_truncated_turn_is_not_extended_when_the_launch_says_so(bench):
    made = bench(chat_answer(), CUT, on_truncated="refuse")
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b")
    before, asked = await made.described(session), len(prompts(made))
    for tail in ([user("c")], [], [{"role": "developer", "content": "c"}]):
        with pytest.raises(TruncatedGeneration, match=r"^truncated generation cannot be extended: message 3 ended"):
            await made.turn(session, "a", SAID, "b", SAID, *tail)
    assert await made.described(session) == before
    assert len(prompts(made)) == asked
    assert made.outcomes() == {"committed": 2, "refused": 3}
    # The turn that was cut can be taken again, and then extended.
    await made.turn(session, "a", SAID, "b")
    await made.turn(session, "a", SAID, "b", SAID, "c")
    assert made.outcomes() == {"committed": 4, "refused": 3}
    assert await declared(made, session) == []


async def test_a_truncated_first_turn_can_be_taken_again(bench):
    made = bench(CUT, on_truncated="refuse")
    session = await made.registry.create()
    for _ in range(2):
        await made.turn(session, "a")
    assert made.outcomes() == {"committed": 2}


@pytest.mark.parametrize("reason", ["stop", "abort", "tool_calls"])
async def test_only_the_length_limit_truncates(bench, reason):
    made = bench(chat_answer(token_ids=sampled_ids("ok")[:-1], finish_reason=reason), on_truncated="refuse")
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b")
    assert await declared(made, session) == [(1, "turn_closed")]


# -- --on-tools-change ---------------------------------------------------------------------------------------------


async def test_tools_that_change_are_reported_and_the_prefix_is_reused(bench):
    renderer = renderer_of("builtin")
    stop = renderer.profile.roles["user"].usual.terminator_id
    made = bench(*[sampled(renderer, said("ok"), stop)] * 4, renderer=renderer)
    session = await made.registry.create()
    old, new = [definition("f")], [definition("f", strict=True), definition("g")]
    await made.turn(session, "a", tools=old)
    stored = session.history.active.tokens.materialize().tolist()
    await made.turn(session, "a", SAID, "b", tools=new)
    assert prompts(made)[-1][: len(stored)] == stored
    # Only a change against the turn that is extended is one.
    await made.turn(session, "a", SAID, "b", SAID, "c", tools=new)
    await made.turn(session, "a", SAID, "b", SAID, "c", SAID, "d", tools=old)
    answer = await read(made, session)
    assert [(event["turn"], event["kind"], event["detail"]) for event in answer["metadata"]["boundary_events"]] == [
        (1, "tools_changed", "tools since the turn before it: added g; changed f"),
        (3, "tools_changed", "tools since the turn before it: removed g; changed f"),
    ]
    assert answer["metadata"]["boundary_events"][0]["position"] == len(stored)
    assert counted(made) == {"tools_changed": 2}
    # The engine parses with the tools of the turn; the ids have those of the first.
    assert [record["request"]["tools"] for record in answer["records"]] == [old, new, new, old]
    assert answer["metadata"]["tito_session_mismatch"] == []
    path = path_of(session.history.active)
    assert path[2].rendered_with is path[1].rendered_with
    assert all(checkpoint.rendered_with.template_kwargs is path[0].rendered_with.template_kwargs for checkpoint in path)


async def test_changed_tools_are_no_findings_although_the_last_turns_are_others(bench):
    renderer = renderer_of("builtin")
    stop = renderer.profile.roles["user"].usual.terminator_id
    made = bench(*[sampled(renderer, said("ok"), stop)] * 2, renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a", tools=[definition("f")])
    await made.turn(session, "a", SAID, "b")
    answer = await read(made, session)
    assert answer["metadata"]["tito_session_mismatch"] == []
    assert await declared(made, session) == [(1, "tools_changed")]


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        (
            {"tools": [definition("f"), definition("g")]},
            {"tools": [definition("g", strict=True), definition("h")]},
            "tools changed since the turn that this request extends (added h; removed f; changed g); "
            "send what that turn had, start another session, or serve with --on-tools-change report",
        ),
        (
            {"chat_template_kwargs": {"x": True}},
            {},
            "chat_template_kwargs changed since the turn that this request extends (x was true and is not set); "
            "send what that turn had, start another session, or serve with --on-tools-change report",
        ),
    ],
    ids=["tools", "kwargs"],
)
async def test_a_change_is_refused_when_the_launch_says_so(bench, first, then, text):
    made = bench(on_tools_change="reject")
    session = await made.registry.create()
    await made.turn(session, "a", **first)
    before = await made.described(session)
    with pytest.raises(RenderingChanged) as refused:
        await made.turn(session, "a", SAID, "b", **then)
    assert str(refused.value) == text
    assert await made.described(session) == before
    assert made.outcomes() == {"committed": 1, "refused": 1}
    # The same, and a first turn taken again, go on.
    await made.turn(session, "a", SAID, "b", **first)
    fresh = await made.registry.create()
    await made.turn(fresh, "a", **first)
    await made.turn(fresh, "other", **then)
    assert made.outcomes() == {"committed": 4, "refused": 1}


async def test_a_refused_change_does_not_roll_back_before_a_refused_role_does(bench):
    made = bench(on_tools_change="reject")
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b")
    before = await made.described(session)
    refused = [user("a"), SAID, {"role": "developer", "content": "c"}]
    with pytest.raises(RenderingChanged):
        await made.turn(session, *refused, tools=[definition("f")])
    assert await made.described(session) == before
    with pytest.raises(AppendRoleNotSupported):
        await made.turn(session, *refused)
    assert len((await read(made, session))["records"]) == 1


async def test_effective_kwargs_are_compared_not_the_requests(bench):
    """Spelling out a default changes nothing."""

    class Defaults(ToyRenderer):
        def effective_kwargs(self, requested):
            return {"x": 1, **requested}

    made = bench(renderer=Defaults(), on_tools_change="reject")
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b", chat_template_kwargs={"x": 1})
    with pytest.raises(RenderingChanged, match=r"\(x was 1 and is 2\)"):
        await made.turn(session, "a", SAID, "b", SAID, "c", chat_template_kwargs={"x": 2})


async def test_a_renderer_weighs_what_it_appends_behind_what_is_stored(bench):
    weighed = []

    class Weighing(ToyRenderer):
        def weight(self, messages, *, stored=(), tools, kwargs):
            weighed.append(([m["content"] for m in stored], [m["content"] for m in messages]))
            return super().weight(messages, stored=stored, tools=tools, kwargs=kwargs)

    made = bench(renderer=Weighing())
    session = await made.registry.create()
    await made.turn(session, "a")
    await made.turn(session, "a", SAID, "b")
    assert weighed == [([], ["a"]), (["a", "ok"], ["b"])]
