"""Prefix algebra against a model made of loops, and the error text of the contract."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.prefix import PrefixMatch, assert_pretokenized_prefix, common_prefix_length
from trio_sessions.errors import PrefixMismatch, TokenizationFailed
from trio_sessions.testing.strategies import messages, token_ids


def _agreeing(stored: list[int], new: list[int]) -> int:
    count = 0
    while count < len(stored) and count < len(new) and stored[count] == new[count]:
        count += 1
    return count


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Stored ids, and ids that agree with them for a while."""
    stored = draw(token_ids())
    kept = draw(st.sampled_from([len(stored), max(len(stored) - 1, 0)]) | st.integers(0, len(stored)))
    return stored, stored[:kept] + draw(token_ids(max_size=4))


def _check(stored, new, trim, request_messages=(), assistant_message=None):
    return assert_pretokenized_prefix(
        stored,
        new,
        max_trim_tokens=trim,
        request_messages=request_messages,
        assistant_message=assistant_message or {},
    )


@PATIENT
@given(pairs())
def test_common_prefix_is_what_a_loop_finds(pair):
    stored, new = (np.array(ids, dtype=np.int32) for ids in pair)
    assert common_prefix_length(stored, new) == _agreeing(*pair)
    assert common_prefix_length(new, stored) == _agreeing(*pair)


@PATIENT
@given(pairs(), st.integers(0, 3))
@example(([1, 2, 3], [1, 2, 4]), 1)
@example(([1, 2, 3], [1, 2]), 1)
@example(([1, 2, 3], [1, 2]), 0)
@example(([1], []), 1)
def test_accepts_exactly_what_differs_in_the_tolerated_tail(pair, trim):
    stored, new = pair
    agreeing = _agreeing(stored, new)
    if len(stored) - agreeing <= trim:
        assert _check(stored, new, trim) == PrefixMatch(matched=agreeing, trimmed=len(stored) - agreeing)
    else:
        with pytest.raises(PrefixMismatch) as caught:
            _check(stored, new, trim)
        assert caught.value.first_mismatch == agreeing
        assert caught.value.checked == len(stored) - trim


@settings(PATIENT, max_examples=40)
@given(
    token_ids(),
    token_ids().filter(bool),
    token_ids(),
    st.booleans(),
    st.data(),
    st.lists(messages(), max_size=2),
    messages(),
)
def test_the_text_names_every_number(shared, lost, rest, ends, data, request_messages, assistant_message):
    stored = [*shared, *lost]
    new = [*shared] if ends else [*shared, lost[0] ^ 1, *rest]
    agreeing = _agreeing(stored, new)
    trim = data.draw(st.integers(0, len(lost) - 1))
    with pytest.raises(PrefixMismatch) as caught:
        _check(np.array(stored), np.array(new, dtype=np.int32), trim, request_messages, assistant_message)
    checked = len(stored) - trim
    assert str(caught.value) == (
        f"pretokenized prefix mismatch: stored {len(stored)} tokens (checking first {checked}, allowing {trim} "
        f"trailing) are not a prefix of prompt_token_ids + completion_token_ids ({len(new)} tokens), "
        f"first mismatch at index {agreeing}, matched {agreeing}/{checked} prefix tokens"
        f"\nrequest_messages={request_messages}\nassistant_message={assistant_message}"
    )


def test_the_text_is_this_text():
    with pytest.raises(TokenizationFailed) as caught:
        _check([5, 6, 7, 8], [5, 9, 7, 8, 1], 1, [{"role": "user", "content": "é"}], {"role": "assistant"})
    assert str(caught.value) == (
        "pretokenized prefix mismatch: stored 4 tokens (checking first 3, allowing 1 trailing) are not a prefix of "
        "prompt_token_ids + completion_token_ids (5 tokens), first mismatch at index 1, matched 1/3 prefix tokens\n"
        "request_messages=[{'role': 'user', 'content': 'é'}]\n"
        "assistant_message={'role': 'assistant'}"
    )


@PATIENT
@given(token_ids(), st.integers(0, 2))
def test_nothing_stored_is_a_prefix_of_everything(new, trim):
    assert _check([], new, trim) == PrefixMatch(matched=0, trimmed=0)


@PATIENT
@given(token_ids(), token_ids())
def test_an_extension_loses_nothing(stored, more):
    assert _check(stored, stored + more, 0) == PrefixMatch(matched=len(stored), trimmed=0)
