"""The watchdog under a clock that is set by hand."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_sessions.observe import Metrics
from trio_sessions.service.watchdog import watch_loop


def later_than(metrics: Metrics, seconds: float) -> float:
    """How often the loop was later than that."""

    def count(bound: str) -> float:
        value = metrics.registry.get_sample_value("trio_sessions_loop_lag_seconds_bucket", {"le": bound})
        assert value is not None
        return value

    return count("+Inf") - count(str(seconds))


@pytest.mark.parametrize(("held", "over", "within"), [(0.03, 0.02, 0.05), (0.3, 0.2, 0.5), (0.0, None, 0.001)])
async def test_what_holds_the_loop_is_recorded_with_its_length(mock_clock, held, over, within):
    metrics = Metrics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop, metrics)
        await trio.testing.wait_all_tasks_blocked()
        # Nothing runs meanwhile: to every other task this is a step that takes so long.
        mock_clock.jump(0.02 + held)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert later_than(metrics, within) == 0
    if over is not None:
        assert later_than(metrics, over) == 1


async def test_tasks_are_counted_every_second(mock_clock):
    metrics = Metrics()
    shown = []

    async def wait_a_second():
        mock_clock.jump(1.1)
        await trio.testing.wait_all_tasks_blocked()
        shown.append(metrics.registry.get_sample_value("trio_sessions_tasks"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop, metrics)
        await trio.testing.wait_all_tasks_blocked()
        await wait_a_second()
        async with trio.open_nursery() as more:
            for _ in range(3):
                more.start_soon(trio.sleep_forever)
            await wait_a_second()
            more.cancel_scope.cancel()
        await wait_a_second()
        nursery.cancel_scope.cancel()
    first, *others = shown
    assert first > 1
    assert others == [first + 3, first]
