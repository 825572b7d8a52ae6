"""Prefix algebra: what was stored must still be there, id by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trio_sessions.errors import PrefixMismatch

__all__ = ["PrefixMatch", "assert_pretokenized_prefix", "common_prefix_length"]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How stored ids sit at the front of a longer sequence.

    Attributes:
        matched: how many leading stored ids are there unchanged.
        trimmed: how many trailing stored ids were replaced; at most the tolerated number.
    """

    matched: int
    trimmed: int


def common_prefix_length(left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> int:
    """Length of the longest common prefix of two one-dimensional id arrays."""
    shorter = min(len(left), len(right))
    differing = left[:shorter] != right[:shorter]
    first = int(np.argmax(differing)) if shorter else 0
    return first if shorter and differing[first] else shorter


def assert_pretokenized_prefix(
    stored: Sequence[int] | npt.NDArray[np.integer],
    prompt_and_completion: Sequence[int] | npt.NDArray[np.integer],
    *,
    max_trim_tokens: int,
    request_messages: Sequence[Mapping[str, Any]],
    assistant_message: Mapping[str, Any],
) -> PrefixMatch:
    """Check that a new checkpoint extends the stored one, tolerating ``max_trim_tokens`` trailing differences.

    Args:
        stored: ids of the checkpoint the turn was built on, shape (n,); empty matches everything.
        prompt_and_completion: the turn's prompt followed by what the engine sampled, shape (m,).
        max_trim_tokens: how many trailing ids of ``stored`` may differ.
        request_messages: shown in the error.
        assistant_message: shown in the error.

    Returns:
        How much of ``stored`` was kept.

    Raises:
        PrefixMismatch: an id before the tolerated tail differs or is missing. The text is part of the HTTP contract.
    """
    old = np.asarray(stored)
    new = np.asarray(prompt_and_completion)
    matched = common_prefix_length(old, new)
    checked = max(len(old) - max_trim_tokens, 0)
    if matched < checked:
        raise PrefixMismatch(
            f"pretokenized prefix mismatch: stored {len(old)} tokens "
            f"(checking first {checked}, allowing {max_trim_tokens} trailing) are not a prefix of "
            f"prompt_token_ids + completion_token_ids ({len(new)} tokens), "
            f"first mismatch at index {matched}, matched {matched}/{checked} prefix tokens\n"
            f"request_messages={list(request_messages)}\n"
            f"assistant_message={assistant_message}",
            first_mismatch=matched,
            checked=checked,
        )
    return PrefixMatch(matched=matched, trimmed=len(old) - matched)
