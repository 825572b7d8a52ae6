"""Tensors as safetensors, in pieces: the library would copy all of them into one string.

Source of the layout: the format's documentation, https://github.com/huggingface/safetensors#format. A JSON header, its
length before it, and then the tensors' bytes, widest elements first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trio_sessions.core import json

__all__ = ["Piece", "safetensors_pieces"]

Piece = bytes | memoryview

_DTYPES: Final[Mapping[np.dtype[Any], str]] = {
    np.dtype("<i8"): "I64",
    np.dtype("<f8"): "F64",
    np.dtype("<i4"): "I32",
    np.dtype("u1"): "U8",
}
_ORDER: Final = tuple(_DTYPES)
_ALIGNMENT: Final = 8


def safetensors_pieces(tensors: Mapping[str, npt.NDArray[Any]]) -> Sequence[Piece]:
    """What ``safetensors.numpy.save`` writes, in pieces that are views of the arrays.

    Args:
        tensors: int64, float64, int32 or uint8, by name.

    Raises:
        ValueError: an array has another dtype.
    """
    # The bytes of an array that is not contiguous lie in another order than its elements.
    flat = {
        name: np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        for name, array in tensors.items()
    }
    for name, array in flat.items():
        if array.dtype not in _DTYPES:
            raise ValueError(f"the tensor {name} has elements of {array.dtype}")
    names = sorted(flat, key=lambda name: (_ORDER.index(flat[name].dtype), name))
    header: dict[str, Any] = {}
    at = 0
    for name in names:
        array = flat[name]
        header[name] = {
            "dtype": _DTYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.encode(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return [head, *(flat[name].data.cast("B") for name in names if flat[name].nbytes)]
