"""The driver that the state machines of this suite, and perhaps of others, stand on."""

from __future__ import annotations

import itertools
import threading

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from trio_sessions.testing import machine
from trio_sessions.testing.machine import LeakedTasks, StillRunning, TaskCancelled, TrioDriver


@pytest.fixture
def driver():
    with TrioDriver() as made:
        yield made


async def _raise(error):
    await trio.lowlevel.checkpoint()
    raise error


async def _forever():
    for _ in itertools.count():
        await trio.lowlevel.checkpoint()


def test_nothing_runs_between_steps(driver):
    done = []

    async def work():
        done.append("began")
        await trio.lowlevel.checkpoint()
        done.append("ended")
        return 7

    task = driver.start(work)
    assert done == []
    assert (task.done, driver.running) == (False, [task])
    driver.settle()
    assert done == ["began", "ended"]
    assert (task.done, task.cancelled, task.exception, task.result(), driver.running) == (True, False, None, 7, [])


def test_a_step_ends_when_everything_is_blocked(driver):
    gate = trio.Event()
    task = driver.start(gate.wait)
    driver.settle()
    with pytest.raises(StillRunning, match=r"Event\.wait has not ended"):
        task.result()
    gate.set()
    assert not task.done
    driver.settle()
    assert task.done


def test_tasks_that_wake_each_other_run_to_the_end_in_one_step(driver):
    send, receive = trio.open_memory_channel[int](0)
    received = []

    async def give():
        async with send:
            for number in range(100):
                await send.send(number)

    async def take():
        async for number in receive:
            received.append(number)

    driver.start(take)
    driver.start(give)
    driver.settle()
    assert received == list(range(100))


def test_time_passes_only_when_told_to_and_stops_at_every_deadline(driver):
    times = []

    async def tick():
        for _ in range(4):
            await trio.sleep(1)
            times.append(trio.current_time())

    task = driver.start(tick)
    driver.settle()
    assert driver.now == 0
    driver.advance(0.5)
    assert times == []
    driver.advance(2.5)
    assert (times, driver.now) == ([1, 2, 3], 3)
    driver.advance(1)
    assert task.done


@pytest.mark.parametrize("step", [0.1, 0.3, 1 / 3])
def test_deadlines_that_do_not_add_up_are_met_all_the_same(driver, step):
    woken = []

    async def sleep():
        for _ in range(10):
            await trio.sleep(step)
            woken.append(trio.current_time())

    driver.start(sleep)
    driver.advance(10 * step + 0.01)
    assert len(woken) == 10


def test_a_cancelled_task_has_no_result(driver):
    task = driver.start(trio.sleep_forever, name="sleeper")
    driver.settle()
    task.cancel()
    assert not task.done
    driver.settle()
    assert (task.done, task.cancelled, task.exception) == (True, True, None)
    with pytest.raises(TaskCancelled, match="sleeper"):
        task.result()
    assert repr(task) == "<DrivenTask sleeper: cancelled>"


def test_a_task_may_be_cancelled_before_it_begins(driver):
    task = driver.start(trio.sleep_forever)
    task.cancel()
    driver.settle()
    assert task.cancelled


def test_a_task_may_finish_in_spite_of_being_cancelled(driver):
    async def stubborn():
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "done"

    task = driver.start(stubborn)
    driver.settle()
    task.cancel()
    driver.advance(1)
    assert (task.cancelled, task.result()) == (False, "done")


def test_an_exception_belongs_to_who_asks_and_disturbs_nobody(driver):
    other = driver.start(trio.sleep_forever)
    task = driver.start(_raise, KeyError("x"))
    driver.settle()
    assert isinstance(task.exception, KeyError)
    with pytest.raises(KeyError):
        task.result()
    assert not other.done


def test_run_gives_the_result_or_raises(driver):
    async def add(left, right):
        await trio.lowlevel.checkpoint()
        return left + right

    assert driver.run(add, 1, 2) == 3
    with pytest.raises(KeyError):
        driver.run(_raise, KeyError())
    with pytest.raises(StillRunning, match="waits for something"):
        driver.run(trio.sleep_forever)
    assert driver.running == []


def test_a_task_in_a_thread_is_waited_for_by_a_condition(driver):
    gate = threading.Event()
    task = driver.start(trio.to_thread.run_sync, lambda: gate.wait(10))
    driver.settle()
    assert not task.done
    gate.set()
    driver.run_until(lambda: task.done)
    assert task.result() is True


def test_a_condition_that_does_not_come_true_is_given_up(driver):
    driver.start(trio.sleep_forever)
    with pytest.raises(StillRunning, match=r"waited 0 s in vain; running: sleep_forever"):
        driver.run_until(lambda: False, seconds=0)


def test_a_task_that_never_blocks_is_an_error_not_a_hang(driver, monkeypatch):
    monkeypatch.setattr(machine, "_MAX_TICKS", 1000)
    driver.start(_forever)
    with pytest.raises(StillRunning, match="tasks do not block: _forever"):
        driver.settle()


def test_closing_cancels_what_is_left():
    ended = []

    async def work():
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    driver = TrioDriver()
    task = driver.start(work)
    driver.settle()
    driver.close()
    assert ended == [True]
    assert task.cancelled
    driver.close()
    with pytest.raises(RuntimeError, match="closed"):
        driver.start(work)


def test_closing_lets_shielded_deadlines_pass():
    async def clean_up():
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep_forever()

    with TrioDriver() as driver:
        driver.start(clean_up)
        driver.settle()
    assert driver.now == 5


def test_a_task_that_cannot_be_cancelled_is_an_error_and_leaves_no_event_loop():
    async def leak():
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    driver = TrioDriver()
    driver.start(leak, name="leak")
    driver.settle()
    with pytest.raises(LeakedTasks, match="leak") as caught:
        driver.close()
    assert caught.value.names == ["leak"]
    trio.run(trio.sleep, 0)


def test_exceptions_that_nobody_asked_for_come_out_in_the_end():
    driver = TrioDriver()
    asked = driver.start(_raise, KeyError())
    driver.start(_raise, OSError("unseen"))
    driver.settle()
    assert asked.exception is not None
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="unseen")):
        driver.close()
    trio.run(trio.sleep, 0)


class _Stop(BaseException):
    pass


def test_what_is_no_ordinary_exception_ends_the_step_at_once():
    driver = TrioDriver()
    driver.start(_raise, _Stop())
    with pytest.RaisesGroup(_Stop, flatten_subgroups=True):
        driver.settle()
    with pytest.raises(RuntimeError, match="closed"):
        driver.settle()
    driver.close()
    trio.run(trio.sleep, 0)


class _Queue(RuleBasedStateMachine):
    """The example of the module's documentation, grown up: a channel is a queue."""

    def __init__(self):
        super().__init__()
        self.driver = TrioDriver()
        self.send, self.receive = trio.open_memory_channel[int](2)
        self.model = []
        self.takers = []

    @rule(number=st.integers())
    def put(self, number):
        if len(self.model) < 2:
            self.driver.run(self.send.send, number)
            self.model.append(number)
            self._match()

    @rule()
    def take(self):
        self.takers.append(self.driver.start(self.receive.receive))
        self.driver.settle()
        self._match()

    @rule()
    def give_up(self):
        for taker in self.takers:
            taker.cancel()
        self.driver.settle()
        assert all(taker.cancelled for taker in self.takers)
        self.takers.clear()

    def _match(self):
        while self.model and self.takers:
            assert self.takers.pop(0).result() == self.model.pop(0)
        assert not any(taker.done for taker in self.takers)

    def teardown(self):
        self.driver.close()


TestQueue = _Queue.TestCase
TestQueue.settings = settings(max_examples=30, deadline=None)
