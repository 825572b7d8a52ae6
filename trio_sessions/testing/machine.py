"""Drive trio code step by step from synchronous code, such as a Hypothesis state machine.

Hypothesis calls the rules of a ``RuleBasedStateMachine`` one after the other, synchronously; concurrent code needs an
event loop that goes on between them. ``TrioDriver`` is one: trio in guest mode, whose host loop is run by hand, on a
``MockClock``. Between two steps nothing runs and no time passes, so a rule can start tasks, answer what they wait for,
cancel them in mid-flight, let a deadline pass, and then look at a state that stands still::

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.driver = TrioDriver()
            self.gate = trio.Event()

        @rule()
        def wait(self):
            self.task = self.driver.start(self.gate.wait)
            self.driver.settle()  # runs until every task is blocked
            assert not self.task.done

        @rule()
        def open(self):
            self.gate.set()  # trio's synchronous functions work between steps
            self.driver.settle()
            assert self.task.done

        def teardown(self):
            self.driver.close()  # cancels what is left; a task that cannot be cancelled is an error

Under pytest-trio the order in which runnable tasks run is drawn by Hypothesis, so a failing example fails again.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple, cast

import outcome
import trio
from trio.testing import MockClock

__all__ = ["DrivenTask", "LeakedTasks", "StillRunning", "TaskCancelled", "TrioDriver"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# Passes of the run loop in one step; a task that is still not blocked then never will be.
_MAX_TICKS: Final = 100_000
# Attempts to end tasks that do not end when cancelled.
_MAX_EVICTIONS: Final = 100
_SHUTDOWN_SECONDS: Final = 10.0


class StillRunning(Exception):
    """A task was expected to be done, or blocked, and is not."""


class TaskCancelled(Exception):
    """The task has no result because it was cancelled."""


class LeakedTasks(Exception):
    """Tasks went on although they were cancelled and all their deadlines had passed.

    Attributes:
        names: of the tasks.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"tasks that do not end when cancelled: {', '.join(names)}")
        self.names = names


class DrivenTask(Generic[_T]):
    """A task of a ``TrioDriver``, and what became of it.

    Attributes:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._scope = trio.CancelScope()
        self._outcome: outcome.Value[_T] | outcome.Error | None = None
        self._done = False
        self._seen = False

    def __repr__(self) -> str:
        state = "running" if not self._done else "cancelled" if self.cancelled else repr(self._outcome)
        return f"<DrivenTask {self.name}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it ended: with a result, with an exception, or cancelled."""
        return self._done

    @property
    def cancelled(self) -> bool:
        """Whether it ended because it was cancelled. A task may also finish its work in spite of ``cancel``."""
        return self._done and self._outcome is None

    @property
    def exception(self) -> Exception | None:
        """What it raised, if it did."""
        self._seen = True
        return cast(Exception, self._outcome.error) if isinstance(self._outcome, outcome.Error) else None

    def cancel(self) -> None:
        """Cancel it. As everything else, this takes effect in the driver's next step."""
        self._scope.cancel()

    def result(self) -> _T:
        """What it returned; raises what it raised.

        Raises:
            StillRunning: it has not ended.
            TaskCancelled: it was cancelled.
        """
        self._seen = True
        if not self._done:
            raise StillRunning(f"{self.name} has not ended")
        if self._outcome is None:
            raise TaskCancelled(f"{self.name} was cancelled")
        if isinstance(self._outcome, outcome.Error):
            raise self._outcome.error
        return self._outcome.value

    async def _run(self, async_fn: Callable[[], Awaitable[_T]]) -> None:
        try:
            with self._scope:
                self._outcome = outcome.Value(await async_fn())
        # Whatever it is, it belongs to whoever asks for the result.
        except Exception as error:  # noqa: BLE001
            self._outcome = outcome.Error(error)
        finally:
            self._done = True

    @property
    def _unseen_error(self) -> Exception | None:
        return None if self._seen else self.exception


class TrioDriver:
    """Runs trio tasks when told to, from synchronous code in one thread, and stops when all of them are blocked.

    Nothing runs outside the methods that say so: ``settle``, ``advance``, ``run``, ``run_until`` and ``close``.
    In between, synchronous functions of trio (``Event.set``, ``CancelScope.cancel``, ``current_time``) may be called
    directly. Only one event loop can live in a thread, so close a driver before the next one, or ``trio.run``. Usable
    as a context manager.

    Args:
        clock: what the tasks see as time; by default a ``MockClock`` that starts at 0 and never moves by itself.
    """

    def __init__(self, *, clock: MockClock | None = None) -> None:
        self.clock = MockClock() if clock is None else clock
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._tasks: list[DrivenTask[Any]] = []
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()
        self._blocked = False
        self._ended = False
        self._crash: BaseException | None = None
        self._closed = False
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._todo.put,
            done_callback=self._end,
            clock=self.clock,
        )
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def now(self) -> float:
        """The time that the tasks see."""
        return self.clock.current_time()

    @property
    def running(self) -> list[DrivenTask[Any]]:
        """The tasks that have not ended, in the order they were started."""
        return [task for task in self._tasks if not task.done]

    def start(self, async_fn: Callable[[*_Ts], Awaitable[_T]], *args: *_Ts, name: str | None = None) -> DrivenTask[_T]:
        """A new task that calls ``async_fn(*args)``; it makes its first step in the driver's next one.

        Its exception is kept for whoever asks; ``close`` raises those that nobody asked for.

        Args:
            async_fn: what to run.
            *args: its arguments.
            name: for messages; the function's by default.
        """
        if self._nursery is None or self._closed:
            raise RuntimeError("the driver is closed")
        task: DrivenTask[_T] = DrivenTask(name or str(getattr(async_fn, "__qualname__", async_fn)))
        self._tasks.append(task)
        self._nursery.start_soon(task._run, lambda: async_fn(*args), name=task.name)
        return task

    def settle(self) -> None:
        """Run until every task is blocked. No time passes.

        A task that waits for a worker thread or for a socket is blocked too: see ``run_until``.

        Raises:
            StillRunning: some task goes on and on without blocking.
        """
        self._blocked = False
        for _ in range(_MAX_TICKS):
            if self._blocked:
                return
            self._tick()
        raise StillRunning(f"tasks do not block: {self._names()}")

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of the clock pass, stopping at each deadline on the way to run what it wakes."""
        self.settle()
        until = self.now + seconds
        while (step := trio.lowlevel.current_statistics().seconds_to_next_deadline) <= until - self.now:
            self._jump(step)
            self.settle()
        self.clock.jump(max(0.0, until - self.now))
        self.settle()

    def run(self, async_fn: Callable[[*_Ts], Awaitable[_T]], *args: *_Ts) -> _T:
        """What ``async_fn(*args)`` returns, or raises, without anything else being done for it.

        Raises:
            StillRunning: it waits for something. It is cancelled then.
        """
        task = self.start(async_fn, *args)
        self.settle()
        if not task.done:
            task.cancel()
            self.settle()
            raise StillRunning(f"{task.name} waits for something")
        return task.result()

    def run_until(self, condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
        """Run until ``condition()`` holds, for code that waits for worker threads or sockets; then settle.

        Args:
            condition: looked at again and again.
            seconds: of *real* time after which to give up. The driver's clock does not move.

        Raises:
            StillRunning: the condition does not come true.
        """
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                raise StillRunning(f"waited {seconds:g} s in vain; running: {self._names()}")
            self._tick()
        self.settle()

    def close(self) -> None:
        """Cancel every task, let the deadlines of those that shield themselves pass, and end the event loop.

        Raises:
            LeakedTasks: some did not end by themselves.
            ExceptionGroup: of the exceptions that tasks raised and nobody asked for.
        """
        if self._closed:
            return
        self._closed = True
        leaked: list[str] = []
        try:
            if not self._ended:
                leaked = self._cancel_all()
        finally:
            self._shut_down()
        errors = [error for task in self._tasks if (error := task._unseen_error) is not None]
        if leaked:
            raise LeakedTasks(leaked)
        if errors:
            raise ExceptionGroup("tasks failed and nobody asked for their result", errors)

    # -- the guest ----------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        async with trio.open_nursery() as watcher:
            watcher.start_soon(self._watch)
            async with trio.open_nursery() as self._nursery:
                await self._closing.wait()
            watcher.cancel_scope.cancel()

    async def _watch(self) -> None:
        # Waiting for idleness without a pause keeps the guest from ever handing its I/O wait to a thread: each pass
        # of its loop is one call from the queue, and between two of them the host decides whether to go on.
        while True:
            await trio.testing.wait_all_tasks_blocked()
            self._blocked = True

    def _end(self, ended: outcome.Outcome[None]) -> None:
        self._ended = True
        if isinstance(ended, outcome.Error):
            self._crash = ended.error

    # -- the host -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._ended:
            self._raise_crash()
            raise RuntimeError("the driver is closed")
        self._todo.get()()

    def _raise_crash(self) -> None:
        # Something that no task may keep to itself, such as a Ctrl-C. It is told once, to whoever comes first.
        crash, self._crash = self._crash, None
        if crash is not None:
            raise crash

    def _jump(self, seconds: float) -> None:
        before = self.now
        # The sum may round to less than the deadline it aims at.
        self.clock.jump(max(0.0, seconds, math.ulp(before)))

    def _names(self) -> str:
        return ", ".join(task.name for task in self.running) or "none"

    def _cancel_all(self) -> list[str]:
        for task in self.running:
            task.cancel()
        self.settle()
        while self.running:
            step = trio.lowlevel.current_statistics().seconds_to_next_deadline
            if step == math.inf:
                break
            self._jump(step)
            self.settle()
        leaked = [task.name for task in self.running]
        for _ in range(_MAX_EVICTIONS):
            if not self.running:
                break
            self._evict()
            self.settle()
        return leaked

    def _evict(self) -> None:
        """Wake what does not end by itself with an error, so that the thread can have an event loop again."""
        assert self._nursery is not None
        tasks = list(self._nursery.child_tasks)
        while tasks:
            task = tasks.pop()
            children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
            tasks += children
            if not children:
                trio.lowlevel.reschedule(task, outcome.Error(TaskCancelled("evicted")))

    def _shut_down(self) -> None:
        self._closing.set()
        give_up = time.monotonic() + _SHUTDOWN_SECONDS
        while not self._ended:
            try:
                self._todo.get(timeout=max(0.0, give_up - time.monotonic()))()
            except queue.Empty:
                raise LeakedTasks([task.name for task in self.running]) from None
        self._raise_crash()
