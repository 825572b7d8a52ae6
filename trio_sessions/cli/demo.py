"""``trio-sessions demo``: run it, then show it."""

from __future__ import annotations

from trio_sessions.cli.complaint import report_failure
from trio_sessions.cli.progress import progress
from trio_sessions.demo import DemoFailed, print_report, run_demo
from trio_sessions.observe import configure_logging

__all__ = ["run_and_show"]


async def run_and_show(*, seed: int) -> int:
    """Run the demo and print what came of it; the exit status."""
    configure_logging("warning", "text")
    try:
        with progress("Running an engine, a gateway and an agent of three turns ..."):
            demonstration = await run_demo(seed=seed)
    except ExceptionGroup as failure:
        return report_failure(failure, what="the demo", foreseen=(DemoFailed,))
    print_report(demonstration)
    return 0
