"""Pickers choose which leaves of a forest are trained.

A picker takes the leaves' samples in order of commits, and the session's metadata, and returns some of these samples,
in the order in which the trainer is to have them. It selects and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from trio_sessions.core.samples.leaves import LEAF, leaf_id, path_ids
from trio_sessions.core.samples.sample import Sample

__all__ = ["PICKERS", "Picker", "active_only", "drop_retries", "keep_all", "longest"]

Picker: TypeAlias = Callable[[list[Sample], Mapping[str, Any]], Sequence[Sample]]


def drop_retries(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """All leaves but those that a retry took the place of; longest paths first, then latest commits.

    A leaf is superseded when a turn was committed later that extends the same node. Roots extend nothing: they are
    retries of each other when they have the same prompt, and lines of their own when they have not.
    """
    nodes = session_metadata["tree"]["nodes"]
    siblings: dict[int, list[int]] = {}
    for node in nodes:
        if node["parent"] is not None:
            siblings.setdefault(node["parent"], []).append(node["id"])
    prompts = _root_prompts(samples, nodes)

    def superseded(sample: Sample) -> bool:
        leaf, parent = leaf_id(sample), sample.metadata[LEAF]["parent"]
        if parent is not None:
            return siblings[parent][-1] > leaf
        return any(root > leaf and prompt == prompts[leaf] for root, prompt in prompts.items())

    return _longest_first([sample for sample in samples if not superseded(sample)])


def keep_all(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """Every leaf, in order of commits."""
    return samples


def longest(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """The leaf with the most turns; of several the one that was committed last."""
    return _longest_first(samples)[:1]


def active_only(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """The leaf of the active path; where a request was last attached inside the forest, the newest leaf behind it."""
    active = session_metadata["tree"]["active"]
    behind = [row["node_id"] for row in session_metadata["tree"]["leaves"] if active in row["path_node_ids"]]
    return [sample for sample in samples if leaf_id(sample) == max(behind, default=None)]


PICKERS: Final[Mapping[str, Picker]] = MappingProxyType(
    {"drop_retries": drop_retries, "keep_all": keep_all, "longest": longest, "active_only": active_only}
)


def _longest_first(samples: list[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: (len(path_ids(sample)), leaf_id(sample)), reverse=True)


def _root_prompts(samples: list[Sample], nodes: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """The prompt ids of every root that a sample starts with."""
    prompts: dict[int, list[int]] = {}
    for sample in samples:
        root = path_ids(sample)[0]
        if root not in prompts:
            prompts[root] = sample.metadata["accumulated_token_ids"][: nodes[root]["completion_span"][0]]
    return prompts
