"""Which recorded turns were answered to nobody, as far as a server can know."""

from __future__ import annotations

from weakref import WeakSet

from trio_sessions.core.history import Checkpoint

__all__ = ["Delivery"]


class Delivery:
    """What became of the answers of one session's committed turns; for the event loop only.

    A turn that retries joined is answered to several clients, and one of them is enough.
    """

    def __init__(self) -> None:
        self._received: WeakSet[Checkpoint] = WeakSet()
        self._lost: WeakSet[Checkpoint] = WeakSet()

    def note(self, turn: Checkpoint, *, received: bool) -> bool:
        """Take down what became of one answer; whether the turn is undelivered now and was not before."""
        before = turn in self._lost and turn not in self._received
        (self._received if received else self._lost).add(turn)
        return turn not in self._received and not before

    def undelivered(self) -> frozenset[Checkpoint]:
        """The turns whose clients have all gone before they had the answer."""
        return frozenset(self._lost) - frozenset(self._received)
