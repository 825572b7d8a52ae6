"""Token ids as JSON, against the standard library's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.token_text import encode_token_ids
from trio_sessions.core.tokens import as_token_ids

ODD = [0, 1, 9, 10, 99_999, 100_000, 2**18 - 1, 2**18, 2**31 - 1, -1, -(2**31)]


@PATIENT
@given(st.lists(st.sampled_from(ODD[:7]) | st.integers(0, 2**18 - 1), max_size=30), st.sampled_from([1, 500]))
def test_ids_of_any_number_are_compact_json(ids, times):
    assert encode_token_ids(as_token_ids(ids * times)) == json.dumps(ids * times, separators=(",", ":")).encode()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("length", [1, 4095, 4096, 10_000])
def test_an_id_outside_of_every_vocabulary_is_written_too(odd, length):
    ids = np.full(length, 7, dtype=np.int32)
    ids[length // 2] = odd
    assert json.loads(encode_token_ids(ids)) == ids.tolist()


def test_a_slice_is_written_as_it_is():
    ids = np.arange(20_000, dtype=np.int32)[::2]
    assert json.loads(encode_token_ids(ids)) == list(range(0, 20_000, 2))
