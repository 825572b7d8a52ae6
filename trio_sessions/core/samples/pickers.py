"""Pickers choose which leaves of a forest are trained.

A picker takes the leaves' samples in order of commits, and the session's metadata, and returns some of these samples,
in the order in which the trainer is to have them. It selects and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from trio_sessions.core.samples.forest import CALLER
from trio_sessions.core.samples.leaves import LEAF, leaf_id, path_ids
from trio_sessions.core.samples.sample import Sample

__all__ = ["PICKERS", "Picker", "active_only", "by_agent", "drop_retries", "keep_all", "longest"]

Picker: TypeAlias = Callable[[list[Sample], Mapping[str, Any]], Sequence[Sample]]


def drop_retries(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """All leaves but those that a retry took the place of; longest paths first, then latest commits.

    A leaf is superseded when the same caller committed a turn later that extends the same node. Roots extend nothing:
    they are retries of each other when they have the same caller and prompt, and lines of their own when they have not.
    """
    nodes = session_metadata["tree"]["nodes"]
    siblings: dict[int, list[int]] = {}
    for node in nodes:
        if node["parent"] is not None:
            siblings.setdefault(node["parent"], []).append(node["id"])
    prompts = _root_prompts(samples, nodes)

    def superseded(sample: Sample) -> bool:
        leaf, parent = leaf_id(sample), sample.metadata[LEAF]["parent"]
        later = (
            siblings[parent]
            if parent is not None
            else [root for root, prompt in prompts.items() if prompt == prompts[leaf]]
        )
        agent = _agent(nodes[leaf])
        return any(node > leaf and _agent(nodes[node]) == agent for node in later)

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


def by_agent(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """The lines of each agent together, side requests left out.

    What ``drop_retries`` keeps, without titles and summaries; agents in the order in which they first appear, and the
    lines of one agent in the order in which they began, which is that of its compactions.
    """
    nodes = session_metadata["tree"]["nodes"]
    order: dict[tuple[str | None, str | None], int] = {}
    for node in nodes:
        order.setdefault(_agent(node), len(order))
    kept = [
        sample
        for sample in drop_retries(samples, session_metadata)
        if "purpose" not in nodes[leaf_id(sample)].get(CALLER, {})
    ]
    return sorted(kept, key=lambda sample: (order[_agent(nodes[leaf_id(sample)])], path_ids(sample)))


PICKERS: Final[Mapping[str, Picker]] = MappingProxyType(
    {
        "drop_retries": drop_retries,
        "keep_all": keep_all,
        "longest": longest,
        "active_only": active_only,
        "by_agent": by_agent,
    }
)


def _agent(node: Mapping[str, Any]) -> tuple[str | None, str | None]:
    caller = node.get(CALLER, {})
    return caller.get("agent"), caller.get("thread")


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
