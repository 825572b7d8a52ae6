"""Tool results that come later than their turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.boundary import BoundaryEvent, late_tool_results
from trio_sessions.testing.strategies import json_values


def said(*ids):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id_} if id_ else {} for id_ in ids]}


def result(id_=None):
    return {"role": "tool", "content": "r"} | ({"tool_call_id": id_} if id_ else {})


USER = {"role": "user", "content": "u"}


def late(stored, appended):
    """Indices of the late results, found by looking at the text."""
    return [int(event.detail.split()[1]) for event in late_tool_results(stored, appended, position=7)]


@pytest.mark.parametrize(
    ("calls", "appended", "expected"),
    [
        (("a", "b"), [result("a"), result("b")], []),
        (("a", "b"), [result("b")], []),
        (("a",), [result("b")], [2]),
        (("a",), [result("b"), result("a"), result("c")], [2, 4]),
        ((), [result("a"), result()], [2, 3]),
        (("a",), [result()], []),
        (("",), [result("a")], []),
        (("a",), [USER, result("b"), result("a")], [3]),
        (("a",), [], []),
    ],
    ids=["all", "one of two", "another", "two of three", "no call", "no id", "call without id", "not leading", "none"],
)
def test_a_result_is_late_when_it_answers_no_call_of_the_turn_before(calls, appended, expected):
    assert late([USER, said(*calls)], appended) == expected


def test_an_event_says_where_and_quotes_nothing():
    [event] = late_tool_results([USER, said("a")], [result("secret")], position=7)
    assert event == BoundaryEvent("late_tool_result", 7, "message 2 answers no call of the turn before it")
    assert event.to_json() == {"kind": event.kind, "position": 7, "detail": event.detail}


def test_nothing_is_stored():
    assert late([], [USER]) == []


ids = json_values() | st.sampled_from(["a", "b"])


@PATIENT
@given(st.lists(ids, max_size=3), st.lists(ids, max_size=3))
def test_ids_may_be_any_json(called, answered):
    stored = [{"role": "assistant", "content": "", "tool_calls": [{"id": id_} for id_ in called]}]
    appended = [{"role": "tool", "content": "", "tool_call_id": id_} for id_ in answered]
    told = late(stored, appended)
    for index, id_ in enumerate(answered, start=1):
        if id_ in called:
            assert index not in told
        elif id_ and all(called):
            assert index in told
