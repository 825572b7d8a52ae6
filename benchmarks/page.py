"""Write a report's tables into a page: ``python -m benchmarks.page REPORT.json PAGE.md``.

What stands between the two marks of the page is replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from benchmarks.figures import Figure
from benchmarks.report import Report, spelled

__all__ = ["main", "written_into"]

_BEGIN: Final = "<!-- generated: python -m benchmarks.page docs/benchmarks.json docs/benchmarks.md -->"
_END: Final = "<!-- end -->"
_WIDTH: Final = 120


def main(argv: Sequence[str] | None = None) -> None:
    """Replace what is generated in the page.

    Args:
        argv: arguments without the program's name; None reads the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("report", type=Path, help="what python -m benchmarks --json wrote")
    parser.add_argument("page", type=Path, help="the page to write into")
    given = parser.parse_args(argv)
    page: Path = given.page
    try:
        report = Report.read(given.report)
        page.write_text(written_into(page.read_text(encoding="utf-8"), report), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))


def written_into(page: str, report: Report) -> str:
    """The page with the report between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{_BEGIN}\n\n" + "\n".join(_lines(report)) + f"\n\n{_END}{after}"


def _lines(report: Report) -> Iterator[str]:
    machine = report.machine
    memory = f"{machine.memory_mib / 1024:.0f} GiB"
    yield f"{machine.cpu}, {machine.cores} cores, {memory}, {machine.kernel}, {machine.python};"
    yield fill(", ".join(f"{name} {version}" for name, version in report.versions.items()) + ".", _WIDTH)
    yield f"Options: {', '.join(f'{name} {value}' for name, value in report.options.items())}; {report.seconds:.0f} s."
    yield "Medians, in brackets the least and the greatest value."
    yield ""
    yield "### Against the targets"
    yield ""
    yield from _markdown(
        ["part", "what", "figure", "measured", "target", "met"],
        (
            [
                table.part,
                ", ".join(row.labels.values()),
                name.replace("_", " "),
                _cell(figure),
                f"≤ {spelled(figure.target)}",
                "yes" if figure.median <= figure.target else "no",
            ]
            for table in report.tables
            for row in table.rows
            for name, figure in row.figures.items()
            if figure.target is not None
        ),
    )
    for table in report.tables:
        yield ""
        yield f"### {table.part}: {table.title}"
        yield ""
        labels, figures = list(table.rows[0].labels), list(table.rows[0].figures)
        yield from _markdown(
            [*labels, *(name.replace("_", " ") for name in figures)],
            ([*row.labels.values(), *(_cell(row.figures[name]) for name in figures)] for row in table.rows),
        )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _cell(figure: Figure) -> str:
    if len(figure.values) == 1:
        return spelled(figure.median)
    return f"{spelled(figure.median)} ({spelled(figure.low)} to {spelled(figure.high)})"


if __name__ == "__main__":
    main()
