"""A run of the suite: as JSON, and as tables on a terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Self

import msgspec
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.figures import Figure, Table

__all__ = ["Machine", "Report", "show_tables", "spelled", "versions"]

_LIBRARIES: Final = (
    *("trio-sessions", "trio", "hypercorn", "quart", "quart-trio", "httpx", "h11", "msgspec", "numpy"),
    *("transformers", "tokenizers", "fastapi", "starlette", "uvicorn"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured.

    Attributes:
        cpu: model, as the kernel names it.
        cores: how many this process may use.
        memory_mib: of the machine.
        kernel: name and release.
        python: implementation and version.
    """

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """The machine that this runs on."""
        return cls(
            cpu=_proc_field("/proc/cpuinfo", "model name"),
            cores=len(os.sched_getaffinity(0)),
            memory_mib=int(_proc_field("/proc/meminfo", "MemTotal").split()[0]) // 1024,
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run found.

    Attributes:
        machine: where.
        versions: of the libraries, by name.
        options: what the run was told, by name.
        seconds: that it took.
        tables: what it found.
    """

    machine: Machine
    versions: Mapping[str, str]
    options: Mapping[str, str]
    seconds: float
    tables: tuple[Table, ...]

    def with_parts_of(self, other: Report) -> Report:
        """This report with the parts of ``other`` in the place of its own; its options name them as ``later``.

        Raises:
            ValueError: ``other`` was measured elsewhere, with other libraries or otherwise: their figures would stand
                side by side as if they could be compared.
        """
        if (self.machine, self.versions) != (other.machine, other.versions):
            raise ValueError("it was measured on another machine or with other versions of libraries")
        if self._thoroughness() != other._thoroughness():
            raise ValueError("it was measured with other options")
        parts = {table.part for table in other.tables}
        later = {*self.options.get("later", "").split(), *parts}
        return replace(
            self,
            options={**self.options, "later": " ".join(sorted(later))},
            seconds=round(self.seconds + other.seconds, 1),
            tables=(*(table for table in self.tables if table.part not in parts), *other.tables),
        )

    def _thoroughness(self) -> Mapping[str, str]:
        return {name: value for name, value in self.options.items() if name not in ("parts", "later")}

    def to_json(self) -> bytes:
        """The report, each figure with its median and how far its values lie apart."""
        built = msgspec.to_builtins(self)
        for table, shown_table in zip(self.tables, built["tables"], strict=True):
            for row, shown_row in zip(table.rows, shown_table["rows"], strict=True):
                shown_row["figures"] = {name: _spread(figure) for name, figure in row.figures.items()}
        return msgspec.json.format(msgspec.json.encode(built), indent=1) + b"\n"

    @classmethod
    def from_json(cls, raw: bytes) -> Report:
        """What ``to_json`` wrote.

        Raises:
            ValueError: it is something else.
        """
        return msgspec.json.decode(raw, type=Report)

    @classmethod
    def read(cls, file: Path) -> Report:
        """The report in a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it holds something else.
        """
        return cls.from_json(file.read_bytes())


def versions() -> dict[str, str]:
    """Versions of the libraries that have a part in the figures, of those that are installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # another part may still be measured without it
    return found


def show_tables(tables: Sequence[Table], console: Console) -> None:
    """Print every table: medians, and in brackets the least and the greatest where there were several."""
    for table in tables:
        labels, figures = list(table.rows[0].labels), list(table.rows[0].figures)
        shown = RichTable(title=f"{table.part}: {table.title}", title_justify="left")
        for name in labels:
            shown.add_column(name, overflow="fold")
        for name in figures:
            shown.add_column(name.replace("_", " "), justify="right", overflow="fold")
        for row in table.rows:
            shown.add_row(*row.labels.values(), *(_cell(row.figures[name]) for name in figures))
        console.print(shown)


def spelled(value: float) -> str:
    """A number with three digits that count."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _cell(figure: Figure) -> Text:
    cell = Text(spelled(figure.median))
    if len(figure.values) > 1:
        cell.append(f" ({spelled(figure.low)} to {spelled(figure.high)})", style="dim")
    if figure.target is not None:
        met = figure.median <= figure.target
        cell.append(f" target {spelled(figure.target)}", style="green" if met else "red")
    return cell


def _spread(figure: Figure) -> dict[str, object]:
    return {
        "median": figure.median,
        "low": figure.low,
        "high": figure.high,
        "repeats": len(figure.values),
        "values": list(figure.values),
        "target": figure.target,
    }


def _proc_field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"
