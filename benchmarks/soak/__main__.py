"""``python -m benchmarks.soak``: let sessions come and go, and see whether everything comes back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.arguments import count, number, writable
from benchmarks.load.processes import ProcessFailed, Stopped, run_async
from benchmarks.options import Show
from benchmarks.soak.judge import Tolerances
from benchmarks.soak.peer import Broken
from benchmarks.soak.report import show
from benchmarks.soak.run import SoakOptions, soak

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 1 where something did not come back.

    Args:
        argv: arguments without the program's name; None reads the process's own.
    """
    given = _parser().parse_args(argv)
    options = SoakOptions(
        seconds=given.seconds,
        sessions=given.sessions,
        mode=given.mode,
        warm_up=given.warm_up,
        settle=given.settle,
        patience=given.patience,
        seed=given.seed,
        tolerances=Tolerances(mib_per_1000_cycles=given.max_growth, judged_seconds=given.judged),
        serve=tuple(given.serve),
    )
    try:
        with Show() as progress:
            report = run_async(lambda: soak(options, progress))
    except KeyboardInterrupt:
        return 130
    except Stopped as stopped:
        return stopped.status
    except (ProcessFailed, Broken) as failed:
        print(failed, file=sys.stderr)  # noqa: T201
        return 1
    if given.json is not None:
        given.json.write_bytes(report.to_json())
    show(report, Console())
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=(
            "Let sessions come and go in front of the embedded engine while engines, clients and requests go wrong, "
            "then see whether memory, descriptors, threads and tasks come back. Exit status 1 where they do not. "
            "Without another --store the gateway's journal is in a temporary folder."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seconds", type=number, default=60.0, help="how long sessions come and go")
    parser.add_argument("--sessions", type=count, default=16, metavar="N", help="how many there are at once")
    parser.add_argument("--mode", choices=("linear", "tree"), default="linear", help="of the gateway")
    parser.add_argument("--warm-up", type=number, default=20.0, metavar="SECONDS", help="the same load before that")
    parser.add_argument(
        "--settle", type=number, default=15.0, metavar="SECONDS", help="without load before the first reading"
    )
    parser.add_argument(
        "--patience", type=number, default=30.0, metavar="SECONDS", help="most to wait for everything to come back"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument(
        "--max-growth",
        type=number,
        default=2.0,
        metavar="MIB",
        help="growth of memory per 1000 sessions once warm; an empty session takes some 5 KiB",
    )
    parser.add_argument(
        "--judged", type=number, default=60.0, metavar="SECONDS", help="least second half to judge that growth by"
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the report to this file, too")
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="more options of trio-sessions serve")
    return parser


if __name__ == "__main__":
    sys.exit(main())
