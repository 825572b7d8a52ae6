"""Replay payloads: which experts a token was routed to, and which positions an indexer chose.

The numbers are made up, but a token gets the same ones whenever it is asked for.
"""

from __future__ import annotations

import base64
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["EXPERTS", "indexer_choices", "packed", "routed_experts"]

EXPERTS: Final = 64

TokenIds = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int32]


def routed_experts(sequence: TokenIds, start: int, *, layers: int, top_k: int) -> Rows:
    """Experts per token, int32, shape (len(sequence) - 1 - start, layers, top_k).

    The last id of a sequence was sampled, never computed, so it has no row. A row depends on its id and position only:
    the payloads of several turns put together equal the payload of the whole.
    """
    stop = max(start, len(sequence) - 1)
    ids = sequence[start:stop].astype(np.int64)[:, None, None]
    positions = np.arange(start, stop, dtype=np.int64)[:, None, None]
    layer = np.arange(layers, dtype=np.int64)[None, :, None]
    choice = np.arange(top_k, dtype=np.int64)[None, None, :]
    experts: Rows = ((ids * 31 + positions * 7 + layer * 13 + choice) % EXPERTS).astype(np.int32)
    return experts


def indexer_choices(sequence: TokenIds, start: int, *, layers: int, top_k: int) -> Rows:
    """Chosen positions per token, each at or before the token; shape and repeatability as ``routed_experts``."""
    experts = routed_experts(sequence, start, layers=layers, top_k=top_k).astype(np.int64)
    positions = np.arange(start, start + len(experts), dtype=np.int64)[:, None, None]
    chosen: Rows = np.maximum(positions - experts, 0).astype(np.int32)
    return chosen


def packed(rows: Rows) -> str:
    """``rows`` as base64 of little-endian int32."""
    return base64.b64encode(np.ascontiguousarray(rows, dtype="<i4").tobytes()).decode("ascii")
