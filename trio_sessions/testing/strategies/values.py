"""Any JSON value, with the text and numbers that break things."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["Message", "json_objects", "json_values", "words"]

Message = dict[str, Any]


def json_values(*, max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Any JSON value as Python spells it: finite floats, integers of up to 130 bits, text without lone surrogates.

    Args:
        max_leaves: roughly how many scalars a value holds at most.
    """
    return st.recursive(
        _scalars(),
        lambda children: st.lists(children, max_size=3) | st.dictionaries(words(), children, max_size=3),
        max_leaves=max_leaves,
    )


def _scalars() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**130), 2**130),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
        words(),
    )


def words() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "a", "b", "é", "\u2028", "😀", " x", "0", "null", '"'] * 2) | st.text(max_size=6)


def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(words(), json_values(max_leaves=4), max_size=4)
