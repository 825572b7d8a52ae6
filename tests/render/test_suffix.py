from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, texts
from trio_sessions.render.suffix import cut_after, sentinel_for

_names = st.sets(st.integers(0, 30)).map(lambda numbers: " ".join(f"zqSentinel{n}qz" for n in numbers))


@PATIENT
@given(parts=st.lists(_names | texts | st.dictionaries(_names, _names, max_size=2) | st.lists(_names, max_size=2)))
def test_a_sentinel_occurs_nowhere_and_is_always_the_same(parts):
    sentinel = sentinel_for(*parts)
    assert sentinel not in repr(parts)
    assert sentinel == sentinel_for(*parts)


@PATIENT
@given(before=texts, after=texts)
def test_the_cut_is_right_behind_it(before, after):
    sentinel = sentinel_for(before, after)
    assert cut_after(before + sentinel + after, sentinel) == after


@pytest.mark.parametrize(
    ("rendered", "fact"),
    [
        ("a b", "leaves out the assistant turn"),
        ("S x S y B", "more than once"),
        ("x S y", "drops the message"),
        ("B S y", "moves the message"),
    ],
)
def test_what_the_template_did(rendered, fact):
    with pytest.raises(ValueError, match=fact):
        cut_after(rendered, "S", ["B"])
