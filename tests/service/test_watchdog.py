"""The watchdog under a clock that is set by hand, and on the work that must not hold the loop."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.service.conftest import Bench
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.observe import Metrics
from trio_sessions.render.load import load_renderer
from trio_sessions.service.watchdog import watch_loop
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import sampled_ids


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


def answering(text: str) -> Callable[[EngineCall], Awaitable[EngineAnswer]]:
    answer = chat_answer(text, token_ids=sampled_ids(text))

    async def reply(_: EngineCall) -> EngineAnswer:
        return answer

    return reply


async def test_four_megabytes_of_answer_and_a_long_prompt_hold_it_for_a_part_of_their_time_only():
    """How long that is depends on the machine, and on what else it does; that other tasks run meanwhile does not."""
    reply = answering("x" * 120_000)
    assert len((await reply(None)).body) > 3_000_000
    made = Bench(ScriptedEngine(otherwise=reply), load_renderer("builtin"))
    shares = []
    for _ in range(5):
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await trio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            began = time.perf_counter()
            await made.turn(made.registry.create(), "a word " * 60_000)
            shares.append(longest / (time.perf_counter() - began))
            nursery.cancel_scope.cancel()
    assert min(shares) < 0.5
