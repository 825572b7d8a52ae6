"""Whether what was held came back: pure, of readings and a series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.soak.readings import Held

__all__ = ["Moment", "Quantity", "Slope", "Tolerances", "Verdict", "is_back", "judge", "slope_of"]

Quantity = Literal["descriptors", "threads", "tasks", "sessions", "turns", "engine_calls"]
_QUANTITIES: Final[tuple[Quantity, ...]] = ("descriptors", "threads", "tasks", "sessions", "turns", "engine_calls")


@dataclass(frozen=True, slots=True)
class Moment:
    """Resident memory at a moment under load.

    Attributes:
        seconds: since the load began.
        cycles: sessions that had come and gone by then.
        rss_mib: resident memory.
    """

    seconds: float
    cycles: int
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Slope:
    """How resident memory grew over the second half of a load: lines by least squares.

    Attributes:
        seconds: that the second half took.
        mib_per_minute: by time.
        mib_per_1000_cycles: by sessions that came and went.
    """

    seconds: float
    mib_per_minute: float
    mib_per_1000_cycles: float


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What may be left.

    Descriptors, threads, tasks, sessions, turns and calls at the engine: nothing.

    Attributes:
        mib_per_1000_cycles: how much resident memory may grow while sessions come and go.
        judged_seconds: a second half that was shorter says nothing about memory, and is not judged.
    """

    mib_per_1000_cycles: float
    judged_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that was judged.

    Attributes:
        what: a quantity.
        before: what it was before the load, where that counts.
        after: what it was afterwards.
        most: what it was allowed to be.
        met: whether it is not more.
    """

    what: str
    before: float | None
    after: float
    most: float
    met: bool


def is_back(before: Held, after: Held) -> bool:
    """Whether nothing that is counted is more than it was."""
    return all(verdict.met for verdict in _counted(before, after))


def slope_of(series: Sequence[Moment]) -> Slope | None:
    """The slope of a series; None where the second half has no two moments with cycles between them."""
    if not series:
        return None
    middle = (series[0].seconds + series[-1].seconds) / 2
    half = [moment for moment in series if moment.seconds >= middle]
    if len(half) < 2 or half[0].cycles == half[-1].cycles:
        return None
    memory = [moment.rss_mib for moment in half]
    by_time = statistics.linear_regression([moment.seconds for moment in half], memory)
    by_cycles = statistics.linear_regression([moment.cycles for moment in half], memory)
    return Slope(
        seconds=half[-1].seconds - half[0].seconds,
        mib_per_minute=by_time.slope * 60,
        mib_per_1000_cycles=by_cycles.slope * 1000,
    )


def judge(
    *, before: Held, after: Held, series: Sequence[Moment], unexpected: int, tolerances: Tolerances
) -> tuple[Verdict, ...]:
    """What came back and what did not.

    Args:
        before: what was held when the gateway was warm and idle.
        after: what was held when it was idle again.
        series: resident memory under load, by time.
        unexpected: answers that should not have come.
        tolerances: what may be left.
    """
    verdicts = [*_counted(before, after), _verdict("unexpected answers", None, unexpected, 0)]
    slope = slope_of(series)
    if slope is not None and slope.seconds >= tolerances.judged_seconds:
        allowed = tolerances.mib_per_1000_cycles
        verdicts.append(_verdict("rss MiB per 1000 cycles", None, slope.mib_per_1000_cycles, allowed))
    return tuple(verdicts)


def _counted(before: Held, after: Held) -> list[Verdict]:
    found = []
    for name in _QUANTITIES:
        was: int = getattr(before, name)
        found.append(_verdict(name.replace("_", " "), was, getattr(after, name), was))
    return found


def _verdict(what: str, before: float | None, after: float, most: float) -> Verdict:
    return Verdict(what=what, before=before, after=after, most=most, met=after <= most)
