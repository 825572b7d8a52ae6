"""The turns of a session as a forest, whichever history keeps them: a linear session is a forest of one line."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core.caller import NOBODY
from trio_sessions.core.history import Checkpoint, path_of

__all__ = ["CALLER", "UNDELIVERED", "Forest", "TreeNode", "circumstances", "node_ids", "tree_metadata"]

CALLER: Final = "caller"
UNDELIVERED: Final = "undelivered"


@dataclass(frozen=True, slots=True, eq=False)
class TreeNode:
    """One committed turn.

    Attributes:
        id: its place in the order of commits, from 0.
        parent: id of the turn it extends, or None.
        checkpoint: the turn.
        seq: the order of commits; the same as ``id``.
        truncated: whether its generation ended at the length limit.
        committed_at: seconds since the epoch; for people, the order is ``seq``.
        response_id: id of the answer as the agent saw it; empty where it had none.
        undelivered: whether no agent received the answer.
    """

    id: int
    parent: int | None
    checkpoint: Checkpoint
    seq: int
    truncated: bool
    committed_at: float
    response_id: str
    undelivered: bool = False

    @property
    def completion_span(self) -> tuple[int, int]:
        """Where the sampled ids are in the ids of the path, half-open."""
        return self.checkpoint.prompt_length, len(self.checkpoint.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """All turns of a session in the order of their commits.

    Attributes:
        nodes: node ``i`` has the id ``i``.
        active: id of the node that the session's records and metadata show, or None.

    Raises:
        ValueError: ids that are not the order of commits, or a parent that is not the checkpoint's.
    """

    nodes: tuple[TreeNode, ...]
    active: int | None = None

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            if node.id != index or node.seq != index:
                raise ValueError(f"node {index} has the id {node.id} and the seq {node.seq}")
            if node.parent is not None and not 0 <= node.parent < index:
                raise ValueError(f"node {index} has the parent {node.parent}")
            parent = None if node.parent is None else self.nodes[node.parent].checkpoint
            if node.checkpoint.parent is not parent:
                raise ValueError(f"node {index} does not extend the checkpoint of its parent {node.parent}")
        if self.active is not None and not 0 <= self.active < len(self.nodes):
            raise ValueError(f"the active node {self.active} is none of {len(self.nodes)} nodes")

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[Checkpoint],
        active: Checkpoint | None,
        *,
        undelivered: Container[Checkpoint] = (),
    ) -> Forest:
        """The forest of ``checkpoints``, which are in the order of their commits.

        Args:
            checkpoints: all of a session; the parent of each stands before it.
            active: the one that the session's records and metadata show.
            undelivered: those whose answer no agent received.
        """
        numbers = {checkpoint: index for index, checkpoint in enumerate(checkpoints)}
        return cls(
            nodes=tuple(
                TreeNode(
                    id=index,
                    parent=None if checkpoint.parent is None else numbers[checkpoint.parent],
                    checkpoint=checkpoint,
                    seq=index,
                    truncated=checkpoint.finish_reason == "length",
                    committed_at=checkpoint.record.timestamp,
                    response_id=checkpoint.response_id or "",
                    undelivered=checkpoint in undelivered,
                )
                for index, checkpoint in enumerate(checkpoints)
            ),
            active=None if active is None else numbers[active],
        )

    @classmethod
    def of_line(cls, leaf: Checkpoint | None) -> Forest:
        """The forest of one line of checkpoints, root to ``leaf``."""
        return cls.of(path_of(leaf), leaf)

    @property
    def undelivered(self) -> frozenset[Checkpoint]:
        """The turns whose answer no agent received."""
        return frozenset(node.checkpoint for node in self.nodes if node.undelivered)

    def leaves(self) -> list[TreeNode]:
        """Nodes that no other extends, in order of commits."""
        parents = {node.parent for node in self.nodes}
        return [node for node in self.nodes if node.id not in parents]

    def path(self, node: TreeNode) -> list[TreeNode]:
        """The nodes from the root to ``node``."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        path.reverse()
        return path


def tree_metadata(forest: Forest) -> dict[str, Any]:
    """The ``tree`` of a session's metadata, JSON-like: ``nodes``, ``leaves``, and ``active``, which is ours."""
    return {
        "nodes": [
            {
                "id": node.id,
                "parent": node.parent,
                "seq": node.seq,
                "truncated": node.truncated,
                "committed_at": node.committed_at,
                "completion_span": list(node.completion_span),
                "num_tokens": len(node.checkpoint.tokens),
                "response_id": node.response_id,
                **circumstances(node.checkpoint, undelivered=node.undelivered),
            }
            for node in forest.nodes
        ],
        "leaves": [{"node_id": leaf.id, "path_node_ids": node_ids(forest.path(leaf))} for leaf in forest.leaves()],
        "active": forest.active,
    }


def circumstances(checkpoint: Checkpoint, *, undelivered: bool) -> dict[str, Any]:
    """Who made the request of a turn, where it said so, and whether its answer was not delivered; JSON-like."""
    found: dict[str, Any] = {}
    if checkpoint.caller != NOBODY:
        found[CALLER] = checkpoint.caller.to_json()
    if undelivered:
        found[UNDELIVERED] = True
    return found


def node_ids(path: Sequence[TreeNode]) -> list[int]:
    """The ids of a path."""
    return [node.id for node in path]
