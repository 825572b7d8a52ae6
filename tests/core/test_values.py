"""Counting what a JSON text has, against counting it one byte after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_sessions.core import values
from trio_sessions.core.values import more_values_than


def count(raw: bytes) -> int:
    """Opening brackets and commas outside of strings."""
    marks, inside, escaped = 0, False, False
    for byte in raw:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = not escaped and byte == ord("\\")
        else:
            inside = byte == ord('"')
            marks += byte in b"[{,"
    return marks


TEXTS = st.text(st.sampled_from('[{,"\\]}:x \u00e9'), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(TEXTS, children, max_size=5),
    max_leaves=25,
)


@given(VALUES, st.integers(1, 9), st.integers(-2, 2))
@example(["\\", "\\\\", '\\"', "[,{"], 1, 0)
@example(["\\" * 9, '"' * 9], 2, 0)
def test_it_is_the_number_of_marks_outside_of_strings(value: Any, piece: int, off: int) -> None:
    raw = json.dumps(value).encode()
    most = max(0, count(raw) + off)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_PIECE_BYTES", piece)
        assert more_values_than(most, raw) == (count(raw) > most)


def _values(value: Any) -> int:
    match value:
        case dict():
            return 1 + sum(map(_values, value.values()))
        case list():
            return 1 + sum(map(_values, value))
        case _:
            return 1


@given(VALUES)
def test_there_are_at_most_one_more_values_than_marks(value: Any) -> None:
    assert _values(value) <= count(json.dumps(value).encode()) + 1


@given(st.binary(max_size=40) | st.text(st.sampled_from('[{,"\\'), max_size=40).map(str.encode), st.integers(0, 9))
def test_what_is_no_json_is_told_something(raw: bytes, most: int) -> None:
    assert more_values_than(most, raw) in (True, False)
    assert not more_values_than(len(raw), raw)
