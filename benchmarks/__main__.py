"""``python -m benchmarks``: measure, print tables, and write JSON."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from rich.console import Console

from benchmarks.figures import Table
from benchmarks.load.processes import ProcessFailed, Stopped
from benchmarks.options import Options, Show
from benchmarks.parts import PARTS
from benchmarks.report import Machine, Report, show_tables, versions

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status.

    Args:
        argv: arguments without the program's name; None reads the process's own.
    """
    given = _parser().parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # What runs in this process would log every turn.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    names = list(given.parts or [part.name for part in PARTS])
    began = time.monotonic()
    tables: list[Table] = []
    try:
        with Show() as show:
            options = Options(show=show, quick=bool(given.quick), repeats=given.repeats)
            for part in PARTS:
                if part.name in names:
                    tables += part.measure(options)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)  # noqa: T201
        return stopped.status
    except KeyboardInterrupt:
        return 130
    except ProcessFailed as failed:
        print(failed, file=sys.stderr)  # noqa: T201
        return 1
    report = Report(
        machine=Machine.here(),
        versions=versions(),
        options={
            "parts": " ".join(names),
            "quick": str(options.quick).lower(),
            "repeats": "usual" if options.repeats is None else str(options.repeats),
        },
        seconds=round(time.monotonic() - began, 1),
        tables=tuple(tables),
    )
    show_tables(report.tables, Console())
    if given.json is not None:
        Path(given.json).write_bytes(report.to_json())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what the gateway costs. Figures are medians; compare them within one run only.",
        epilog="parts:\n" + "\n".join(f"  {part.name:12}{part.summary}" for part in PARTS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", type=_part, metavar="PART", help="what to measure; all of it by default")
    parser.add_argument("--quick", action="store_true", help="small and once, only to see that it runs")
    parser.add_argument("--repeats", type=_positive, metavar="N", help="measure every figure so often")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file, too")
    return parser


def _part(text: str) -> str:
    names = [part.name for part in PARTS]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
