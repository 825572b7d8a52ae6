"""Token ids, and the steps that grow a tree of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

__all__ = ["Extend", "lineages", "token_ids"]

_MAX_TOKEN_ID: Final = 2**31 - 1


def token_ids(*, min_size: int = 0, max_size: int = 12, max_id: int = _MAX_TOKEN_ID) -> st.SearchStrategy[list[int]]:
    """Token ids, small ones favoured so that two draws share prefixes.

    Args:
        min_size: least number of ids.
        max_size: greatest number of ids.
        max_id: greatest id.
    """
    return st.lists(st.integers(0, min(3, max_id)) | st.integers(0, max_id), min_size=min_size, max_size=max_size)


@dataclass(frozen=True, slots=True)
class Extend:
    """One step of a lineage: a new path of some earlier path's first ``keep`` ids, followed by ``ids``.

    Attributes:
        parent: index of the earlier path; 0 is the empty path that every lineage begins with.
        keep: at most the length of that path.
        ids: what is added.
    """

    parent: int
    keep: int
    ids: Sequence[int]


@st.composite
def lineages(draw: st.DrawFn, *, max_steps: int = 12, max_dropped: int | None = None) -> list[Extend]:
    """Steps that grow a tree of token paths from the empty path, which has index 0; step ``n`` makes path ``n + 1``.

    Args:
        max_steps: greatest number of steps.
        max_dropped: how many trailing ids of its parent a step may drop; None for any number.
    """
    lengths = [0]
    steps = []
    for _ in range(draw(st.integers(1, max_steps))):
        # Recent paths are favoured, so that chains get long enough to matter.
        parent = draw(st.just(len(lengths) - 1) | st.integers(0, len(lengths) - 1))
        least = 0 if max_dropped is None else max(lengths[parent] - max_dropped, 0)
        keep = draw(st.just(lengths[parent]) | st.integers(least, lengths[parent]))
        ids = draw(token_ids(max_size=5))
        steps.append(Extend(parent, keep, ids))
        lengths.append(keep + len(ids))
    return steps
