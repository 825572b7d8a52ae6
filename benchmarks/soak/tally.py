"""What the clients of a soak did and got."""

from __future__ import annotations

from collections import Counter
from typing import Final

from benchmarks.load.http import Answer

__all__ = ["Tally"]

_MOST_KEPT: Final = 20
_SHOWN_BYTES: Final = 300


class Tally:
    """Counts, kept up while the soak runs.

    Attributes:
        cycles: sessions that were created, used and deleted.
        acts: by what was done, how often.
        statuses: by status of an answer, how often.
        unexpected: what should not have been answered, the first few of them.
        unexpected_count: how many there were.
    """

    def __init__(self) -> None:
        self.cycles = 0
        self.acts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self.unexpected_count = 0

    def answered(self, act: str, answer: Answer, *expected: int) -> bool:
        """Count an answer; whether its status is one of those that were expected."""
        self.statuses[str(answer.status)] += 1
        fits = answer.status in expected
        if not fits:
            self.complain(f"{act}: status {answer.status}: {answer.body[:_SHOWN_BYTES]!r}")
        return fits

    def complain(self, text: str) -> None:
        """Count something that should not have happened."""
        self.unexpected_count += 1
        if len(self.unexpected) < _MOST_KEPT:
            self.unexpected.append(text)
