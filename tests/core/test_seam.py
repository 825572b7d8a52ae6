"""Whether a stored turn may be extended, and what is declared when it is."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.core.test_history import assistant, checkpoint_of, user
from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.history import LinearHistory, RenderedWith, SeamPolicy, decide_seam
from trio_sessions.core.matchers import identical, strict
from trio_sessions.errors import InvalidRequest, RenderingChanged, TruncatedGeneration
from trio_sessions.testing.strategies import json_values, tool_definitions


def definition(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


def with_tools(*tools):
    return RenderedWith.of(list(tools), {})


def with_kwargs(**kwargs):
    return RenderedWith.of(None, kwargs)


# -- what changed -------------------------------------------------------------------------------------------------

# Few names and values, so that two draws often share some.
few_tools = st.lists(
    st.builds(definition, st.sampled_from("ab"), strict=st.sampled_from([True, 1, None])) | json_values(max_leaves=2),
    max_size=3,
)
some_tools = st.none() | few_tools | tool_definitions()
some_kwargs = st.dictionaries(st.sampled_from(["x", "y"]), json_values(max_leaves=2), max_size=2)
renderings = st.builds(RenderedWith.of, some_tools, some_kwargs)


@PATIENT
@given(some_tools, some_tools)
def test_tools_differ_when_their_json_does_and_none_is_an_empty_list(before, after):
    told = RenderedWith.of(before, {}).tools_changed_to(RenderedWith.of(after, {}))
    assert (told == "") == identical(before or [], after or [])
    assert "\n" not in told


@PATIENT
@given(some_kwargs, some_kwargs)
def test_exactly_the_kwargs_that_differ_are_named(before, after):
    told = RenderedWith.of(None, before).kwargs_changed_to(RenderedWith.of(None, after))
    absent = object()
    for name in "xy":
        same = identical(before.get(name, absent), after.get(name, absent))
        assert f"{name} was " in told or same
    assert (told == "") == identical(before, after)


@PATIENT
@given(renderings, renderings)
def test_what_is_the_same_is_kept_once_and_what_is_not_is_the_new(parent, new):
    shared = new.sharing(parent)
    assert not new.tools_changed_to(shared)
    assert not new.kwargs_changed_to(shared)
    assert (shared.tools is parent.tools) == (not parent.tools_changed_to(new))
    assert (shared.template_kwargs is parent.template_kwargs) == (not parent.kwargs_changed_to(new))
    if not parent.tools_changed_to(new) and not parent.kwargs_changed_to(new):
        assert shared is parent


@PATIENT
@given(some_tools, some_kwargs)
def test_they_come_back_as_they_were_sent(tools, kwargs):
    rendering = RenderedWith.of(tools, kwargs)
    assert identical(rendering.decoded_tools(), tools)
    assert identical(rendering.decoded_kwargs(), kwargs)


def test_the_order_of_keys_is_no_change():
    before = RenderedWith.of([{"type": "function", "function": {"name": "a", "strict": True}}], {"x": 1, "y": 2})
    after = RenderedWith.of([{"function": {"strict": True, "name": "a"}, "type": "function"}], {"y": 2, "x": 1})
    assert before != after
    assert before.tools_changed_to(after) == before.kwargs_changed_to(after) == ""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], [definition("a")], "added a"),
        ([definition("a")], [], "removed a"),
        ([definition("a")], [definition("a", strict=True)], "changed a"),
        (
            [definition("a"), definition("b"), definition("c")],
            [definition("c"), definition("d"), definition("b", strict=True)],
            "added d; removed a; changed b",
        ),
        ([definition("a"), definition("b")], [definition("b"), definition("a")], "the same in another order"),
        ([definition("a")], [definition("a"), definition("a")], "changed a"),
        ([{"name": "a"}], [definition("a")], "changed a"),
        ([1], ["x", {"function": 2}], "added tools[1]; changed tools[0]"),
        ([], [definition("n" * 100)], f"added {'n' * 59}…"),
        ([], [definition(str(n)) for n in range(12)], "added 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"),
    ],
)
def test_tools_are_told_by_name(before, after, told):
    assert with_tools(*before).tools_changed_to(with_tools(*after)) == told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"x": True}, {"x": False}, "x was true and is false"),
        ({"x": 1}, {"x": True}, "x was 1 and is true"),
        ({}, {"x": None}, "x was not set and is null"),
        ({"x": [1], "y": 1, "z": 3}, {"z": 3}, "x was [1] and is not set; y was 1 and is not set"),
        ({"x": "é" * 100}, {"x": ""}, f'x was "{"é" * 58}… and is ""'),
    ],
)
def test_kwargs_are_told_with_both_values(before, after, told):
    assert with_kwargs(**before).kwargs_changed_to(with_kwargs(**after)) == told


# -- what becomes of it -------------------------------------------------------------------------------------------

U1, A1, U2 = user("u1"), assistant("a1"), user("u2")
OLD = RenderedWith.of([definition("a")], {"x": 1})
CHANGES = {
    "nothing": RenderedWith.of([definition("a")], {"x": 1}),
    "tools": RenderedWith.of([definition("b")], {"x": 1}),
    "kwargs": RenderedWith.of([definition("a")], {"x": 2}),
    "both": RenderedWith.of([definition("b")], {"x": 2}),
}


@pytest.fixture
def attached():
    """A request that extends one stored turn, and its history; the turn's end is told."""

    def make(finish_reason="stop", request=(U1, A1, U2)):
        history = LinearHistory()
        first = history.attach([U1], strict)
        turn = checkpoint_of(first, A1, suffix=[1], sampled=[2], rendered_with=OLD, finish_reason=finish_reason)
        history.commit(first, turn)
        return history, history.attach(list(request), strict), list(request)

    return make


@pytest.mark.parametrize(
    ("finish_reason", "change", "on_truncated", "on_tools_change"),
    [*itertools.product(("stop", "length", "abort"), CHANGES, ("refuse", "close"), ("report", "branch", "reject"))],
)
def test_every_combination(attached, finish_reason, change, on_truncated, on_tools_change):
    history, attachment, request = attached(finish_reason)
    active = history.active
    policy = SeamPolicy(on_truncated=on_truncated, on_tools_change=on_tools_change)
    try:
        seam = decide_seam(attachment, request, CHANGES[change], policy)
    except InvalidRequest as error:
        outcome = error
    else:
        outcome = seam
    assert history.active is active
    assert not history.is_stale(attachment)
    if change != "nothing" and on_tools_change == "branch":
        assert outcome.attachment.base is None
        assert (list(outcome.attachment.stored), list(outcome.attachment.appended)) == ([], request)
        assert (outcome.attachment.ticket, outcome.attachment.discards) == (attachment.ticket, 0)
        assert (outcome.rendered_with, outcome.changes) == (CHANGES[change], ())
    elif finish_reason == "length" and on_truncated == "refuse":
        assert type(outcome) is TruncatedGeneration
    elif change != "nothing" and on_tools_change == "reject":
        assert type(outcome) is RenderingChanged
    else:
        assert outcome.attachment is attachment
        assert outcome.rendered_with == CHANGES[change]
        assert [kind for kind, _ in outcome.changes] == [
            *["tools_changed"] * (change in ("tools", "both")),
            *["template_kwargs_changed"] * (change in ("kwargs", "both")),
        ]
        assert (outcome.rendered_with is OLD) == (change == "nothing")


@pytest.mark.parametrize("request_", [(U2,), (U1,)], ids=["another", "the same"])
def test_a_retry_of_the_first_turn_extends_nothing(attached, request_):
    _, attachment, request = attached("length", request_)
    policy = SeamPolicy(on_truncated="refuse", on_tools_change="reject")
    seam = decide_seam(attachment, request, CHANGES["both"], policy)
    assert seam.attachment is attachment
    assert seam.events(keep=0, synthetic=0) == ()


def test_the_texts_say_what_to_do(attached):
    _, attachment, request = attached("length")
    with pytest.raises(TruncatedGeneration) as truncated:
        decide_seam(attachment, request, OLD, SeamPolicy(on_truncated="refuse"))
    assert str(truncated.value) == (
        "truncated generation cannot be extended: message 1 ended at the length limit; "
        "send the request before it again, with more room, or serve with --on-truncated close"
    )
    with pytest.raises(RenderingChanged) as changed:
        decide_seam(attachment, request, CHANGES["both"], SeamPolicy(on_tools_change="reject"))
    assert str(changed.value) == (
        "tools changed since the turn that this request extends (added b; removed a) and "
        "chat_template_kwargs changed since the turn that this request extends (x was 1 and is 2); "
        "send what that turn had, start another session, or serve with --on-tools-change report"
    )


def test_events_stand_where_their_ids_do(attached):
    late = {"role": "tool", "content": "r", "tool_call_id": "c"}
    _, attachment, request = attached(request=(U1, A1, late, U2))
    seam = decide_seam(attachment, request, CHANGES["both"], SeamPolicy())
    closed = BoundaryEvent("turn_closed", 2, "closed")
    assert [(event.kind, event.position) for event in seam.events(keep=2, synthetic=3, rendered=[closed])] == [
        ("turn_closed", 2),
        ("tools_changed", 2),
        ("template_kwargs_changed", 2),
        ("late_tool_result", 5),
    ]


def test_tools_are_kept_once_on_a_line_of_turns():
    """A client sends its tools with every turn, and spells them as it likes."""
    history = LinearHistory()
    request = []
    for turn in range(4):
        tool = {"type": "function", "function": {"name": "a"}}
        spelled = dict(reversed(tool.items())) if turn % 2 else tool
        request.append(user(f"u{turn}"))
        attachment = history.attach(request, strict)
        rendered = RenderedWith.of(json.loads(json.dumps([spelled])), {"x": 1})
        seam = decide_seam(attachment, request, rendered, SeamPolicy())
        checkpoint = checkpoint_of(seam.attachment, assistant(f"a{turn}"), rendered_with=seam.rendered_with)
        history.commit(attachment, checkpoint)
        request.append(assistant(f"a{turn}"))
        assert checkpoint.depth == turn + 1
        assert checkpoint.parent is None or checkpoint.rendered_with is checkpoint.parent.rendered_with
