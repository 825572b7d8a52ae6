"""Token ids of one lineage, stored as deltas.

A ``TokenPath`` is immutable and holds only what it adds to its parent, so that a session of many turns, and every
branch of a tree, stores each id once. The whole path is materialised when an engine or a trainer asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY_PATH", "TokenIds", "TokenPath", "as_token_ids"]

TokenIds = npt.NDArray[np.int32]


def as_token_ids(ids: Sequence[int] | npt.NDArray[np.integer]) -> TokenIds:
    """``ids`` as a read-only int32 array of shape (n,).

    Raises:
        OverflowError: an id does not fit 32 bits.
    """
    array = np.array(ids, dtype=np.int32)
    # NumPy refuses a Python integer that does not fit, but wraps one that comes in a wider array.
    if isinstance(ids, np.ndarray) and not np.array_equal(array, ids):
        raise OverflowError("a token id does not fit 32 bits")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, eq=False)
class TokenPath:
    """``parent``'s first ``keep`` ids followed by ``tail``.

    Attributes:
        parent: the path this one extends, or None.
        keep: how many ids of ``parent`` it shares; less than all of them where a trailing id was replaced.
        tail: the ids it adds, read-only int32, shape (n,).
    """

    parent: TokenPath | None
    keep: int
    tail: TokenIds
    _length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= (0 if self.parent is None else len(self.parent)):
            raise ValueError(f"keep={self.keep} is outside the parent path")
        object.__setattr__(self, "_length", self.keep + len(self.tail))

    def __len__(self) -> int:
        return self._length

    def extend(self, ids: Sequence[int] | npt.NDArray[np.integer], *, keep: int | None = None) -> TokenPath:
        """A path of this one's first ``keep`` ids (all by default) followed by ``ids``."""
        return TokenPath(parent=self, keep=len(self) if keep is None else keep, tail=as_token_ids(ids))

    def materialize(self) -> TokenIds:
        """All ids, a new int32 array of shape (len(self),)."""
        out = np.empty(len(self), dtype=np.int32)
        node: TokenPath | None = self
        # Walking up, `wanted` is how many leading ids of `node` are still part of the path.
        wanted = len(self)
        while node is not None and wanted > 0:
            if wanted > node.keep:
                out[node.keep : wanted] = node.tail[: wanted - node.keep]
                wanted = node.keep
            node = node.parent
        return out


EMPTY_PATH = TokenPath(parent=None, keep=0, tail=as_token_ids([]))
