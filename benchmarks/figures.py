"""What a benchmark finds: tables of figures, each with all the values it was measured as."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Figure", "Row", "Table", "figure", "percentile", "ratio"]


_LEAST: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity; its name, in its row, ends with its unit.

    Attributes:
        values: one a repeat.
        target: what its median is to stay at or below; None for a quantity without a target.
    """

    values: tuple[float, ...]
    target: float | None = None

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The greatest value."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Row:
    """Figures that belong together.

    Attributes:
        labels: what they were measured on.
        figures: by name.
    """

    labels: Mapping[str, str]
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same labels and figures.

    Attributes:
        part: the part of the suite that it comes from.
        title: what it is about.
        rows: at least one.
    """

    part: str
    title: str
    rows: tuple[Row, ...]


def figure(values: Iterable[float], *, target: float | None = None) -> Figure:
    """A figure of values, one a repeat."""
    return Figure(tuple(values), target)


def ratio(above: Figure, below: Figure, *, target: float | None = None) -> Figure:
    """What was measured in the same repeat, divided pair by pair."""
    pairs = zip(above.values, below.values, strict=True)
    # Processor time is counted in ticks, of which a short run may have none.
    return Figure(tuple(a / max(b, _LEAST) for a, b in pairs), target)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of them do not exceed, 0 < share <= 1."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
