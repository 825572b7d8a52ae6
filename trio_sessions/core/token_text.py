"""Token ids as JSON, fast: a prompt of 100,000 ids is written on every turn."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from trio_sessions.core import json
from trio_sessions.core.tokens import TokenIds

__all__ = ["encode_token_ids", "prepare_table"]

# Below this many ids the detour over a table costs more than it saves.
_MANY: Final = 4096
# Vocabularies are smaller.
_TABLE_SIZE: Final = 2**18
_NUL: Final = b"\0"


def encode_token_ids(ids: TokenIds) -> bytes:
    """``ids``, int32 of shape (n,), as a compact JSON array."""
    if len(ids) < _MANY or ids.max() >= _TABLE_SIZE or ids.min() < 0:
        return json.encode(ids.tolist())
    # Each id with its comma has a place as wide as the widest; what is not used of a place is NUL.
    text = prepare_table()[ids].tobytes().translate(None, _NUL)
    return b"[%b]" % text[:-1]


@lru_cache(maxsize=1)
def prepare_table() -> npt.NDArray[np.bytes_]:
    """The table, which takes about as long as a long prompt; a server makes it before it has to hurry."""
    return np.array([b"%d," % token_id for token_id in range(_TABLE_SIZE)])
