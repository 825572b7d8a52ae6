"""Long computations leave the event loop, short ones do not."""

from __future__ import annotations

import functools
import threading

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from trio_sessions.service.offload import LONG_BYTES, Offloader
from trio_sessions.testing.toy import ToyRenderer

# Nothing here should take any time; this only bounds a failure.
PATIENCE = 10


async def test_short_work_stays_on_the_event_loop():
    with assert_no_checkpoints():
        assert await Offloader().run(threading.get_ident, size=LONG_BYTES - 1) == threading.get_ident()


async def test_long_work_goes_to_a_thread():
    with assert_checkpoints(), trio.fail_after(PATIENCE):
        assert await Offloader().run(threading.get_ident, size=LONG_BYTES) != threading.get_ident()


@pytest.mark.parametrize("size", [0, LONG_BYTES])
async def test_what_the_work_raises_comes_out(size):
    with pytest.raises(ZeroDivisionError):
        await Offloader().run(lambda: 1 // 0, size=size)


@pytest.mark.parametrize(("method", "allowed"), [("run", 2), ("run_json", 1)])
async def test_as_many_threads_as_allowed_work_at_once(method, allowed):
    offloader = Offloader(threads=2)
    gate = threading.Event()
    started_sender, started = trio.open_memory_channel[int](10)
    results = []

    def work(number):
        trio.from_thread.run_sync(started_sender.send_nowait, number)
        assert gate.wait(PATIENCE)
        return number

    async def run(number):
        results.append(await getattr(offloader, method)(functools.partial(work, number), size=LONG_BYTES))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(run, number)
            for _ in range(allowed):
                await started.receive()
            await wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock):
                started.receive_nowait()
            gate.set()
    assert sorted(results) == list(range(5))


async def test_a_cancelled_caller_leaves_the_thread_behind():
    gate, finished = threading.Event(), threading.Event()
    began = trio.Event()

    def work():
        trio.from_thread.run_sync(began.set)
        gate.wait(PATIENCE)
        finished.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: Offloader().run(work, size=LONG_BYTES))
            await began.wait()
            nursery.cancel_scope.cancel()
        assert not finished.is_set()
        gate.set()
        await trio.to_thread.run_sync(finished.wait, PATIENCE)
    assert finished.is_set()


class _SlowRenderer(ToyRenderer):
    """Renders long conversations when told to."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.began = trio.Event()

    def render(self, messages, *, tools, kwargs, now=None):
        if self.weight(messages, tools=tools, kwargs=kwargs) >= LONG_BYTES:
            trio.from_thread.run_sync(self.began.set)
            assert self.gate.wait(PATIENCE)
        return super().render(messages, tools=tools, kwargs=kwargs)


async def test_other_sessions_go_on_while_a_long_prompt_is_rendered(bench):
    renderer = _SlowRenderer()
    made = bench(renderer=renderer)
    slow, other = await made.registry.create(), await made.registry.create()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.turn, slow, "x" * LONG_BYTES)
            await renderer.began.wait()
            assert slow.lock.locked()
            assert (await made.turn(other, "a")).status == 200
            renderer.gate.set()
    assert slow.history.active is not None


async def test_a_client_that_goes_while_its_prompt_is_rendered_frees_the_session_at_once(bench):
    renderer = _SlowRenderer()
    made = bench(renderer=renderer)
    session = await made.registry.create()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.turn, session, "x" * LONG_BYTES)
            await renderer.began.wait()
            nursery.cancel_scope.cancel()
        assert (await made.turn(session, "a")).status == 200
    renderer.gate.set()
    assert [message["content"] for message in session.history.active.path_messages()] == ["a", "ok"]
    assert made.outcomes() == {"cancelled": 1, "committed": 1}
