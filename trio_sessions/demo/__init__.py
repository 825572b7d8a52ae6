"""``trio-sessions demo``: engine, gateway and agent in one process, and what came of it.

The agent speaks HTTP like any other. What a trainer would get is put together here from ``GET /sessions/{id}``, and the
exactness that the gateway promises is checked, not assumed.
"""

from __future__ import annotations

from trio_sessions.demo.failure import DemoFailed
from trio_sessions.demo.report import print_report
from trio_sessions.demo.run import Demonstration, run_demo

__all__ = ["DemoFailed", "Demonstration", "print_report", "run_demo"]
