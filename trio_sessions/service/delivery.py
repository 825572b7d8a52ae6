"""Which recorded turns were answered to nobody, as far as a server can know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakSet

from trio_sessions.core.history import Checkpoint

__all__ = ["Delivery", "Noted"]


@dataclass(frozen=True, slots=True)
class Noted:
    """What an answer changed.

    Attributes:
        undelivered: whether the turn is undelivered now and was not before.
        to_write: what there is to be written down, in order: whether an answer was received.
    """

    undelivered: bool
    to_write: Sequence[bool]


class Delivery:
    """What became of the answers of one session's committed turns; for the event loop only.

    A turn that retries joined is answered to several clients, and one of them is enough.
    """

    def __init__(self) -> None:
        self._received: WeakSet[Checkpoint] = WeakSet()
        self._lost: WeakSet[Checkpoint] = WeakSet()

    def note(self, turn: Checkpoint, *, received: bool) -> Noted:
        """Take down what became of one answer."""
        known = self._received if received else self._lost
        new = turn not in known
        undelivered = turn in self._lost and turn not in self._received
        known.add(turn)
        return Noted(
            undelivered=turn not in self._received and not undelivered,
            to_write=self._news(turn, received=received) if new else (),
        )

    def _news(self, turn: Checkpoint, *, received: bool) -> Sequence[bool]:
        if turn not in self._lost:
            # That one was received is worth a word only where another was lost.
            return ()
        if received:
            return (True,)
        return (False, True) if turn in self._received else (False,)

    def undelivered(self) -> frozenset[Checkpoint]:
        """The turns whose clients have all gone before they had the answer."""
        return frozenset(self._lost) - frozenset(self._received)
