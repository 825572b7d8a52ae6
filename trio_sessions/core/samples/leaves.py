"""One raw sample for every leaf of a forest: what pickers choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.samples.forest import CALLER, UNDELIVERED, Forest, circumstances, node_ids
from trio_sessions.core.samples.line import AssemblyRules, assemble
from trio_sessions.core.samples.sample import Sample
from trio_sessions.core.samples.turns import TurnReader

__all__ = ["LEAF", "SERVER_KEYS", "Mismatches", "assemble_leaves", "leaf_id", "path_ids"]

Mismatches: TypeAlias = Callable[[Checkpoint], Sequence[Mapping[str, Any]] | None]
"""How a line differs from the template's own rendering, as JSON-like findings; None where that cannot be told."""

LEAF: Final = "leaf"
SERVER_KEYS: Final = ("accumulated_token_ids", "tito_session_mismatch", LEAF, CALLER, UNDELIVERED)
"""Keys of a sample's metadata that say what the server knows; an agent cannot replace them."""


def assemble_leaves(
    forest: Forest, rules: AssemblyRules, *, mismatches: Mismatches, max_seq_len: int | None = None
) -> list[Sample]:
    """A sample for every leaf, in order of commits; a leaf that ``max_seq_len`` leaves no output has none.

    Its metadata has, beside what ``assemble`` writes, the keys ``accumulated_token_ids``, ``leaf`` (``node_id``,
    ``parent``, ``path_node_ids``, ``response_id``) and, where it can be told, ``tito_session_mismatch`` ``caller``
    and ``undelivered``.

    Raises:
        SampleAssemblyFailed: see ``assemble``; the first leaf that fails decides.
    """
    reader = TurnReader()
    samples = []
    for leaf in forest.leaves():
        path = forest.path(leaf)
        sample = assemble([node.checkpoint for node in path], rules, max_seq_len=max_seq_len, reader=reader)
        if sample is None:
            continue
        server: dict[str, Any] = {
            "accumulated_token_ids": leaf.checkpoint.tokens.materialize().tolist(),
            LEAF: {
                "node_id": leaf.id,
                "parent": leaf.parent,
                "path_node_ids": node_ids(path),
                "response_id": leaf.response_id,
            },
            **circumstances(leaf.checkpoint, undelivered=leaf.undelivered),
        }
        findings = mismatches(leaf.checkpoint)
        if findings is not None:
            server["tito_session_mismatch"] = [dict(finding) for finding in findings]
        samples.append(replace(sample, metadata={**sample.metadata, **server}))
    return samples


def leaf_id(sample: Sample) -> int:
    """The node that a leaf's sample ends with; later ones were committed later."""
    node: int = sample.metadata[LEAF]["node_id"]
    return node


def path_ids(sample: Sample) -> list[int]:
    """The nodes of a leaf's sample, root to leaf."""
    ids: list[int] = sample.metadata[LEAF]["path_node_ids"]
    return ids
