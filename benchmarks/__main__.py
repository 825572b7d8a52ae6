"""``python -m benchmarks``: measure, print tables, and write JSON."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from rich.console import Console

from benchmarks.arguments import count, writable
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
    parser = _parser()
    given = parser.parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # What runs in this process would log every turn.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    names = list(given.parts or [part.name for part in PARTS])
    began = time.monotonic()
    report = Report(
        machine=Machine.here(),
        versions=versions(),
        options={
            "parts": " ".join(names),
            "quick": str(bool(given.quick)).lower(),
            "repeats": "usual" if given.repeats is None else str(given.repeats),
        },
        seconds=0.0,
        tables=(),
    )
    earlier: Report | None = None
    if given.merge is not None:
        try:
            earlier = Report.read(given.merge)
            # Now, not when everything is measured.
            earlier.with_parts_of(report)
        except (OSError, ValueError) as error:
            parser.error(f"nothing can be merged into {given.merge}: {error}")
    status = 0
    with Show() as show:
        options = Options(show=show, quick=bool(given.quick), repeats=given.repeats)
        for part in PARTS:
            if part.name not in names:
                continue
            try:
                tables = part.measure(options)
            # Some parts run an event loop, which puts what ends it into groups.
            except* (KeyboardInterrupt, Stopped, ProcessFailed) as ended:
                status = _said(ended)
            if status:
                return status
            show_tables(tables, Console())
            # After each part, so that no more than one is lost.
            seconds = round(time.monotonic() - began, 1)
            report = replace(report, seconds=seconds, tables=(*report.tables, *tables))
            if given.json is not None:
                Path(given.json).write_bytes(report.to_json())
            if earlier is not None:
                Path(given.merge).write_bytes(earlier.with_parts_of(report).to_json())
    return 0


def _said(ended: BaseExceptionGroup[BaseException]) -> int:
    """Say why measuring ended; the exit status."""
    reason: BaseException = ended
    while isinstance(reason, BaseExceptionGroup):
        reason = reason.exceptions[0]
    if isinstance(reason, KeyboardInterrupt):
        return 130
    print(reason, file=sys.stderr)  # noqa: T201
    return reason.status if isinstance(reason, Stopped) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what the gateway costs. Figures are medians; compare them within one run only.",
        epilog="parts:\n" + "\n".join(f"  {part.name:12}{part.summary}" for part in PARTS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("parts", nargs="*", type=_part, metavar="PART", help="what to measure; all of it by default")
    parser.add_argument("--quick", action="store_true", help="small and once, only to see that it runs")
    parser.add_argument("--repeats", type=count, metavar="N", help="measure every figure so often")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write everything to this file, too")
    parser.add_argument(
        "--merge", type=Path, metavar="FILE", help="put what is measured into this report, in the place of its parts"
    )
    return parser


def _part(text: str) -> str:
    names = [part.name for part in PARTS]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
