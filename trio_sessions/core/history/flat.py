"""The messages of a whole path in one list, kept from turn to turn: most turns extend the path of the turn before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trio_sessions.core.history.base import Checkpoint, Message, path_of

__all__ = ["FlatPath", "FlatPaths", "flat_path"]


@dataclass(frozen=True, slots=True, eq=False)
class FlatPath:
    """The path to one checkpoint.

    Attributes:
        leaf: the checkpoint, None for the empty path.
        stored: all messages from the root, in order; the stored spelling.
        spelled: the same as the leaf's client last spelled them; those it has not sent yet as they are stored.
    """

    leaf: Checkpoint | None = None
    stored: Sequence[Message] = ()
    spelled: Sequence[Message] = ()

    def then(self, checkpoint: Checkpoint) -> FlatPath:
        """The path to a child of the leaf."""
        spelled = list(self.spelled)
        for index, message in checkpoint.record.respelled.items():
            spelled[index] = message
        return FlatPath(checkpoint, [*self.stored, *checkpoint.messages], [*spelled, *checkpoint.messages])


def flat_path(leaf: Checkpoint | None) -> FlatPath:
    """The path to ``leaf``.

    Only changes of spelling are kept with a turn, so that a client that always spells in its own way costs one message
    a turn, not its whole history each time.
    """
    stored: list[Message] = []
    spelled: list[Message] = []
    for checkpoint in path_of(leaf):
        for index, message in checkpoint.record.respelled.items():
            spelled[index] = message
        stored.extend(checkpoint.messages)
        spelled.extend(checkpoint.messages)
    return FlatPath(leaf, stored, spelled)


class FlatPaths:
    """Paths on demand, of which the last one is remembered.

    What is remembered is replaced, never changed: a request that was given up may still be looking at it in a thread.
    """

    def __init__(self) -> None:
        self._last = FlatPath()

    def to(self, leaf: Checkpoint | None) -> FlatPath:
        """The path to ``leaf``."""
        last = self._last
        if leaf is last.leaf:
            return last
        self._last = last.then(leaf) if leaf is not None and leaf.parent is last.leaf else flat_path(leaf)
        return self._last
