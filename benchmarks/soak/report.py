"""What a soak found: frozen, as JSON, and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.report import Machine, spelled
from benchmarks.soak.judge import Moment, Slope, Tolerances, Verdict
from benchmarks.soak.readings import Held

__all__ = ["SoakReport", "show"]


@dataclass(frozen=True, slots=True)
class SoakReport:
    """A soak.

    Attributes:
        machine: where.
        versions: of the libraries, by name.
        command: the gateway's, without its interpreter.
        sessions: how many were there at once.
        seed: of what was drawn.
        seconds: that the load took.
        cycles: sessions that came and went in it.
        acts: what was done, how often.
        statuses: of answers, how often.
        turns: that the gateway counted, by how they ended, warm-up included.
        unexpected: answers that should not have come, the first few of them.
        before: what was held when the gateway was warm and idle.
        after: what was held when it was idle again.
        series: resident memory under load, by time.
        slope: of the second half of the series; None where it is too short for one.
        tolerances: what was allowed.
        verdicts: what came back and what did not.
    """

    machine: Machine
    versions: Mapping[str, str]
    command: tuple[str, ...]
    sessions: int
    seed: int
    seconds: float
    cycles: int
    acts: Mapping[str, int]
    statuses: Mapping[str, int]
    turns: Mapping[str, int]
    unexpected: tuple[str, ...]
    before: Held
    after: Held
    series: tuple[Moment, ...]
    slope: Slope | None
    tolerances: Tolerances
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether everything came back."""
        return all(verdict.met for verdict in self.verdicts)

    def to_json(self) -> bytes:
        """The report."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def read(cls, file: Path) -> SoakReport:
        """The report in a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it holds something else.
        """
        return msgspec.json.decode(file.read_bytes(), type=cls)


def show(report: SoakReport, console: Console) -> None:
    """Print the report."""
    console.print(_counts("what was done", report.acts))
    console.print(_counts("answers by status", report.statuses))
    console.print(_counts("turns by outcome", report.turns))
    judged = Table(title=f"{report.cycles:,} sessions in {report.seconds:.0f} s", title_justify="left")
    for name in ("held", "before", "after", "at most", ""):
        judged.add_column(name, justify="left" if name in ("held", "") else "right")
    for verdict in report.verdicts:
        before = "" if verdict.before is None else spelled(verdict.before)
        met = "[green]ok[/]" if verdict.met else "[red]not back[/]"
        judged.add_row(verdict.what, before, spelled(verdict.after), spelled(verdict.most), met)
    judged.add_row("rss MiB", spelled(report.before.rss_mib), spelled(report.after.rss_mib), "", "")
    console.print(judged)
    if report.slope is None:
        console.print("too short to say how memory grows")
    else:
        by_time, by_cycles = report.slope.mib_per_minute, report.slope.mib_per_1000_cycles
        too_short = report.slope.seconds < report.tolerances.judged_seconds
        console.print(
            f"rss over the last {report.slope.seconds:.0f} s under load: {by_time:+.3f} MiB per minute, "
            f"{by_cycles:+.3f} MiB per 1000 sessions{'; too short to be judged' if too_short else ''}"
        )
    for text in report.unexpected:
        console.print(f"unexpected: {text}", markup=False)


def _counts(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(name, f"{count:,}")
    return table
