"""Token ids of one lineage, each stored once.

A ``TokenPath`` is immutable. The paths of a session's turns share one growing array, so that the whole path is there
without a copy when an engine or a trainer asks for it; a branch of a tree stores what it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY_PATH", "TokenIds", "TokenPath", "as_token_ids"]

TokenIds = npt.NDArray[np.int32]

# An array that is full grows by this part of itself more than is needed now.
_SPARE: Final = 8


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


class _Line:
    """One growing array, which the paths that were extended one after the other share.

    Ids below ``used`` never change. Whoever holds a view of an array that was outgrown keeps that one alive.
    """

    __slots__ = ("array", "used")

    def __init__(self, ids: TokenIds) -> None:
        self.array = ids
        self.used = len(ids)

    def append(self, ids: TokenIds) -> None:
        if not len(ids):
            return
        used = self.used + len(ids)
        if used > len(self.array):
            grown = np.empty(used + used // _SPARE, dtype=np.int32)
            grown[: self.used] = self.array[: self.used]
            self.array = grown
        self.array[self.used : used] = ids
        self.used = used

    def view(self, start: int, stop: int) -> TokenIds:
        view = self.array[start:stop]
        view.flags.writeable = False
        return view


@dataclass(frozen=True, slots=True, eq=False)
class TokenPath:
    """``parent``'s first ``keep`` ids followed by ``tail``.

    Paths are made by ``extend``, from ``EMPTY_PATH`` on. The first extension of a whole path goes into the array that
    the path is in, every other one starts an array of its own: a line of turns is one array, and a branch stores only
    what it adds. Extending is not thread-safe, everything else is.

    Attributes:
        parent: the path this one extends, or None.
        keep: how many ids of ``parent`` it shares; less than all of them where a trailing id was replaced.
    """

    parent: TokenPath | None
    keep: int
    _length: int
    _line: _Line
    # The ids before the line, which another one holds.
    _before: TokenPath | None = None
    _origin: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tail(self) -> TokenIds:
        """The ids it adds to its parent, read-only int32, shape (n,)."""
        return self._line.view(self.keep - self._origin, self._length - self._origin)

    def extend(self, ids: Sequence[int] | npt.NDArray[np.integer], *, keep: int | None = None) -> TokenPath:
        """A path of this one's first ``keep`` ids (all by default) followed by ``ids``.

        Raises:
            OverflowError: an id does not fit 32 bits.
            ValueError: this path has no ``keep`` ids.
        """
        keep = len(self) if keep is None else keep
        if not 0 <= keep <= len(self):
            raise ValueError(f"keep={keep} is outside the parent path")
        added = as_token_ids(ids)
        length = keep + len(added)
        if keep == 0:
            return TokenPath(self, 0, length, _Line(added))
        if keep == len(self) == self._origin + self._line.used:
            self._line.append(added)
            return TokenPath(self, keep, length, self._line, self._before, self._origin)
        return TokenPath(self, keep, length, _Line(added), self, keep)

    def materialize(self) -> TokenIds:
        """All ids, read-only int32 of shape (len(self),)."""
        if self._before is None:
            return self._line.view(0, self._length)
        out = np.empty(len(self), dtype=np.int32)
        path: TokenPath | None = self
        # Walking down, `wanted` is how many leading ids of `path` are still to be copied.
        wanted = len(self)
        while path is not None:
            if wanted > path._origin:
                out[path._origin : wanted] = path._line.view(0, wanted - path._origin)
                wanted = path._origin
            path = path._before
        out.flags.writeable = False
        return out


EMPTY_PATH = TokenPath(None, 0, 0, _Line(as_token_ids([])))
