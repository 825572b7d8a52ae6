"""How late the event loop is, and how many tasks it has: nothing may hold it for long, and nothing may stay behind."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from trio_sessions.observe import Metrics

__all__ = ["watch_loop"]

# A fiftieth of a second is what nothing is to exceed; waking up so often costs a few thousandths of a core.
_INTERVAL_SECONDS: Final = 0.02
_WORTH_A_LINE_SECONDS: Final = 0.5
# The statistics look at every socket.
_TASKS_INTERVAL_SECONDS: Final = 1.0
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.loop")


async def watch_loop(metrics: Metrics, *, interval: float = _INTERVAL_SECONDS) -> None:
    """Wake up every ``interval`` seconds for ever, and record how late that was; every second also how many tasks live.

    What holds the loop for longer than the interval is always found, at most an interval too short.
    """
    count_tasks_at = trio.current_time()
    while True:
        if trio.current_time() >= count_tasks_at:
            count_tasks_at += _TASKS_INTERVAL_SECONDS
            metrics.tasks.set(trio.lowlevel.current_statistics().tasks_living)
        due = trio.current_time() + interval
        await trio.sleep_until(due)
        late = trio.current_time() - due
        metrics.loop_lag_seconds.observe(late)
        if late >= _WORTH_A_LINE_SECONDS:
            _log.warning("the event loop was held", seconds=round(late, 3))
