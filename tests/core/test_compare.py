"""The comparator on a toy alphabet: ids below 10 are special, others are letters, 100 more is another spelling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.compare import Mismatch, compare_token_ids

START, END, OTHER, TOOL = 1, 2, 3, 4
SPECIAL = frozenset({START, END, OTHER, TOOL})
A, B, U, X = (ord(letter) for letter in "abux")
SPELLED = 100


def decode(ids):
    return "".join(f"<{i}>" if i < 10 else chr(i if i < 200 else i - SPELLED - 100) for i in ids)


def respelled(letter):
    return letter + SPELLED + 100


def compare(expected, actual, sampled=(), header=(START, "a")):
    mask = np.zeros(len(actual), dtype=bool)
    mask[list(sampled)] = True
    return compare_token_ids(
        np.array(expected, dtype=np.int32),
        np.array(actual, dtype=np.int32),
        mask,
        special_ids=SPECIAL,
        stop_ids={END},
        decode=decode,
        assistant_header=header,
    )


def kinds(findings):
    return [(finding.type, finding.segment_index) for finding in findings]


_ids = st.lists(st.sampled_from([START, END, OTHER, A, B, U, X]), max_size=14)


@settings(PATIENT)
@given(ids=_ids)
def test_a_sequence_does_not_differ_from_itself(ids):
    assert compare(ids, ids) == []


@settings(PATIENT)
@given(ids=_ids, data=st.data())
def test_another_spelling_of_the_same_text_is_no_difference(ids, data):
    other = [respelled(i) if i >= 10 and data.draw(st.booleans()) else i for i in ids]
    assert compare(ids, other) == []


@settings(PATIENT)
@given(ids=_ids, left=st.integers(0, 3), right=st.integers(0, 3))
def test_trailing_stops_do_not_count(ids, left, right):
    assert compare(ids + [END] * left, ids + [END] * right) == []


@settings(PATIENT)
@given(left=_ids, right=_ids, data=st.data())
def test_findings_are_ordered_and_honest(left, right, data):
    sampled = data.draw(st.sets(st.integers(0, len(right) - 1))) if right else set()
    findings = compare(left, right, sampled)
    assert [f.segment_index for f in findings] == sorted(f.segment_index for f in findings)
    for finding in findings:
        assert finding.expected_text != finding.actual_text
        assert set(finding.to_json()) == {"type", "segment_index", "expected_text", "actual_text", "detail"}
    if any(finding.segment_index == -1 for finding in findings):
        assert kinds(findings) == [("special_token_count", -1)]
    elif not findings:
        stripped = [decode(ids).removesuffix("<2>") for ids in (left, right)]
        while any(text.endswith("<2>") for text in stripped):
            stripped = [text.removesuffix("<2>") for text in stripped]
        assert stripped[0] == stripped[1]


def test_structure():
    findings = compare([START, X, END, START, X], [START, X, END, X, X])
    assert findings == [
        Mismatch(
            "special_token_count",
            -1,
            "<1> (1 tokens) <2> <1> (1 tokens)",
            "<1> (1 tokens) <2> (2 tokens)",
            "the structure differs from segment 3 on: 5 segments expected, 4 found",
        )
    ]


def test_text_where_nothing_should_be_is_structural():
    assert kinds(compare([START, X, END, OTHER], [START, X, END, X, OTHER])) == [("special_token_count", -1)]


def test_special_tokens_and_text_are_told_apart_by_index():
    findings = compare([START, U, X, END, START, X, OTHER], [TOOL, U, B, END, START, X, TOOL])
    assert kinds(findings) == [("special_token_type", 0), ("non_assistant_text", 1), ("special_token_type", 5)]
    assert (findings[0].expected_text, findings[0].actual_text) == ("<1>", "<4>")


def test_sampled_text_is_the_assistants_wherever_it_stands():
    assert kinds(compare([START, U, X], [START, U, B], sampled=[2])) == [("assistant_text", 1)]
    assert kinds(compare([START, U, X], [START, U, B])) == [("non_assistant_text", 1)]


@pytest.mark.parametrize("header", [(START, "a"), (START,), ("a",)])
def test_an_assistant_turn_of_the_client_is_known_by_its_header(header):
    assert kinds(compare([START, A, X, END, OTHER], [START, A, B, END, OTHER], header=header)) == [
        ("assistant_text", 1)
    ]


def test_a_turn_of_the_client_ends_at_its_stop():
    expected = [START, A, X, TOOL, X, END, X, OTHER]
    actual = [START, A, B, TOOL, B, END, B, OTHER]
    assert kinds(compare(expected, actual)) == [("assistant_text", 1), ("assistant_text", 3), ("non_assistant_text", 5)]


def test_a_header_of_several_special_tokens():
    header = (START, "a", OTHER)
    expected = [START, A, OTHER, X, END, START, U, OTHER, X]
    actual = [START, A, OTHER, B, END, START, U, OTHER, B]
    assert kinds(compare(expected, actual, header=header)) == [("assistant_text", 3), ("non_assistant_text", 8)]


def test_a_mask_of_another_length_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="sampled has 1 entries for 2 ids"):
        compare_token_ids(np.array([1]), np.array([1, 2]), np.array([True]), special_ids=(), stop_ids=(), decode=decode)
