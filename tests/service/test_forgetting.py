"""Answers are kept for retries as long as a retry gets them, and no longer, also where a session is left alone."""

from __future__ import annotations

import gc
from weakref import ref

import trio

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.retries import AttemptResult, RetryMark
from trio_sessions.testing.engine import chat_answer

MARK = RetryMark(key="k", is_retry=False)


async def test_an_answer_is_let_go_when_no_retry_gets_it_any_more(bench, autojump_clock):
    made = bench(chat_answer(), retry_window=60)
    sessions = [await made.registry.create() for _ in range(1500)]
    last = sessions[-1]
    await made.turn(last, "a")
    [committed] = last.history.nodes
    attempt = last.attempts.begin(MARK, b"same")
    last.attempts.end(attempt, AttemptResult(EngineAnswer(200, (), b"{}"), committed=committed))
    kept = ref(attempt)
    del attempt
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.registry.forget_old_answers)
        await trio.sleep(55)
        assert await last.attempts.find(MARK, b"same") is kept() is not None
        await trio.sleep(25)
        gc.collect()
        assert kept() is None
        nursery.cancel_scope.cancel()
