"""Tensors in pieces, against the library of the format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from tests.core import PATIENT
from trio_sessions.core.samples.layout import safetensors_pieces

dtypes = st.sampled_from([np.dtype(name) for name in ("<i8", "<f8", "<i4", "u1")])


@st.composite
def arrays(draw):
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    array = np.arange(np.prod(shape), dtype=draw(dtypes)).reshape(shape)
    match draw(st.sampled_from(["as it is", "transposed", "reversed", "read-only", "big-endian"])):
        case "transposed":
            return array.T
        case "reversed":
            return array[::-1]
        case "read-only":
            array.flags.writeable = False
        case "big-endian":
            return array.astype(array.dtype.newbyteorder(">"))
    return array


@PATIENT
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), arrays(), max_size=6))
def test_the_pieces_are_what_the_library_writes(tensors):
    payload = b"".join(safetensors_pieces(tensors))
    native = {
        name: np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))) for name, array in tensors.items()
    }
    assert payload == save(native)
    assert {name: array.tolist() for name, array in load(payload).items()} == {
        name: array.tolist() for name, array in tensors.items()
    }


def test_large_arrays_are_not_copied():
    array = np.arange(1000)
    (_, piece) = safetensors_pieces({"x": array})
    assert np.shares_memory(array, piece)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="float16"):
        safetensors_pieces({"x": np.zeros(1, dtype=np.float16)})
