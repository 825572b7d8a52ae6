"""One connection: Hypercorn's, where it costs a turn more than it needs to, or keeps what it should let go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer

from trio_sessions.hosting.fate import STATE_KEY, ConnectionFate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.trio.task_group import TaskGroup
    from hypercorn.trio.worker_context import EventWrapper, WorkerContext
    from hypercorn.typing import AppWrapper, ConnectionState

__all__ = ["Connection"]

# Several times Hypercorn's: a body of megabytes arrives in fewer pieces, each of which passes through many hands.
_RECEIVE_BYTES: Final = 128 * 1024
# Up to here copying a body behind its head is cheaper than another system call.
_SMALL_BODY_BYTES: Final = 64 * 1024
_INTERIM: Final = b"HTTP/1.1 1"


class _IdleTimer:
    """Runs an action when it has been armed for a while, or the server stops while it is armed.

    In the place of Hypercorn's own, which starts and cancels a task on every request.

    Args:
        seconds: how long.
        stopping: wakes when the server stops.
    """

    def __init__(self, seconds: float, stopping: EventWrapper) -> None:
        self._seconds = seconds
        self._stopping = stopping
        self._armed = trio.Event()
        self._patience = trio.CancelScope()
        self._running = False
        self._over = False

    async def restart(self, task_group: TaskGroup, action: Callable[[], Awaitable[None]]) -> None:
        """Arm it anew; its one task starts the first time."""
        self._armed.set()
        self._patience.deadline = trio.current_time() + self._seconds
        if not self._running:
            self._running = True
            task_group.spawn(self._run, action)

    async def stop(self) -> None:
        """Disarm it."""
        if self._armed.is_set():
            self._armed = trio.Event()
        self._patience.deadline = math.inf

    def end(self) -> None:
        """Disarm it for good."""
        self._over = True
        self._patience.cancel()

    async def _run(self, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            with self._patience:
                await self._stopping.wait()
                await self._armed.wait()
            if self._over:
                return
            if self._armed.is_set():
                break
            # It was disarmed in the moment it ran out.
            self._patience = trio.CancelScope()
        # What closes a connection is not to be interrupted half way.
        with trio.CancelScope(shield=True):
            await action()


class Connection(TCPServer):
    """Hypercorn's connection, which ends when its client has closed it, not with the idle timer, and costs less."""

    def __init__(
        self, app: AppWrapper, config: Config, context: WorkerContext, state: ConnectionState, stream: trio.SocketStream
    ) -> None:
        self._fate = ConnectionFate()
        super().__init__(app, config, context, cast("Any", {**state, STATE_KEY: self._fate}), cast("Any", stream))
        self._reading = trio.CancelScope()
        self._head_due = False
        self._head = b""
        self._idle_timer = _IdleTimer(config.keep_alive_timeout, cast("EventWrapper", context.terminated))
        # What Hypercorn restarts and stops.
        self.idle_task = cast("Any", self._idle_timer)

    async def _read_data(self) -> None:
        data = b"not yet"
        with self._reading:
            while data:
                try:
                    data = bytes(await self.stream.receive_some(_RECEIVE_BYTES))
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    break
                await self.protocol.handle(RawData(data))
        await self.protocol.handle(Closed())
        self._fate.closed = True
        self._idle_timer.end()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if self._head_due and not event.data.startswith(_INTERIM):
                # The body follows at once, see ``WholeRequests``, and both are sent together.
                self._head, self._head_due = event.data, False
                return
            head, self._head = self._head, b""
            if head and len(event.data) > _SMALL_BODY_BYTES:
                await self._send(head)
                head = b""
            # The end of an answer of known length is no bytes.
            if data := head + event.data:
                await self._send(data)
            return
        if isinstance(event, Updated):
            # A request has come, and of HTTP/1 the first thing that is sent for it is the head of its answer.
            self._head_due = not event.idle and isinstance(self.protocol.protocol, H11Protocol)
        if not (isinstance(event, Updated) and (self._fate.closed or self._fate.broken)):
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        try:
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_lock.acquire()
        try:
            # As Hypercorn does: an answer that is cut in the middle would be worse than one that comes late.
            with trio.CancelScope(shield=True):
                await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._fate.broken = True
            await self.protocol.handle(Closed())
            # With the next request already there, Hypercorn reads on once it has answered this one: never.
            self._reading.cancel()
        finally:
            self.send_lock.release()

    async def _idle_timeout(self) -> None:
        await self._initiate_server_close()
