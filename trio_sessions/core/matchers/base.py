"""What a matcher is, and how far a request repeats what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Matcher", "matching_prefix_length"]

Matcher = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


def matching_prefix_length(
    stored: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]], matches: Matcher
) -> int:
    """How many leading messages of ``replayed`` match ``stored``, pair by pair."""
    for index, (left, right) in enumerate(zip(stored, replayed, strict=False)):
        if not matches(left, right):
            return index
    return min(len(stored), len(replayed))
