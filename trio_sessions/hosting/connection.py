"""One connection: Hypercorn's, where it costs a turn more than it needs to, or keeps what it should let go."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer

from trio_sessions.hosting.fate import STATE_KEY, ConnectionFate
from trio_sessions.hosting.limits import ConnectionLimits
from trio_sessions.hosting.refusal import last_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import h11
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
# What Hypercorn answers to a head that is too large, and no application of ours to anything.
_HEAD_TOO_LARGE: Final = b"HTTP/1.1 431"
# A client that takes as much in time is not given up.
_SEND_BYTES: Final = 256 * 1024


class _IdleTimer:
    """Runs an action when it has been armed for a while, or the server stops while it is armed.

    In the place of Hypercorn's own, which starts and cancels a task on every request.

    Args:
        first: how long the first time.
        seconds: how long from then on.
        stopping: wakes when the server stops.
    """

    def __init__(self, first: float, seconds: float, stopping: EventWrapper) -> None:
        self._first = first
        self._seconds = seconds
        self._stopping = stopping
        self._armed = trio.Event()
        self._patience = trio.CancelScope()
        self._running = False
        self._over = False

    async def restart(self, task_group: TaskGroup, action: Callable[[], Awaitable[None]]) -> None:
        """Arm it anew; its one task starts the first time."""
        self._armed.set()
        if self._running:
            self.set(self._seconds)
        else:
            self.set(self._first)
            self._running = True
            task_group.spawn(self._run, action)

    def set(self, seconds: float) -> None:
        """Have it run its action so many seconds from now, while it is armed."""
        self._patience.deadline = trio.current_time() + seconds

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


class _NotHTTP1(Exception):
    """The client speaks HTTP/2."""


async def _require_http1(request: h11.Request) -> None:
    """In the place of Hypercorn's question for the protocol: an upgrade may be left unanswered."""
    if request.method == b"PRI":
        raise _NotHTTP1


class Connection(TCPServer):
    """Hypercorn's connection, which ends when its client has closed it, not with the idle timer, and costs less.

    It speaks HTTP/1 alone: in HTTP/2 one connection has many requests and says itself how much it is sent, so that none
    of the limits would be one.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        limits: ConnectionLimits,
    ) -> None:
        self._fate = ConnectionFate()
        super().__init__(app, config, context, cast("Any", {**state, STATE_KEY: self._fate}), cast("Any", stream))
        self._reading = trio.CancelScope()
        self._head_due = False
        self._head = b""
        self._limits = limits
        # Whether the next that comes is a head, and whether a part of one has come.
        self._awaits_head = True
        self._head_began = False
        idle = config.keep_alive_timeout
        first = limits.header_seconds if math.isfinite(limits.header_seconds) else idle
        self._idle_timer = _IdleTimer(first, idle, cast("EventWrapper", context.terminated))
        # What Hypercorn restarts and stops.
        self.idle_task = cast("Any", self._idle_timer)

    async def _read_data(self) -> None:
        self.protocol.protocol._check_protocol = _require_http1  # type: ignore[method-assign, union-attr]
        data = b"not yet"
        with self._reading:
            while data:
                try:
                    data = bytes(await self.stream.receive_some(_RECEIVE_BYTES))
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    break
                if self._awaits_head and data:
                    self._awaits_head, self._head_began = False, True
                    if math.isfinite(self._limits.header_seconds):
                        self._idle_timer.set(self._limits.header_seconds)
                try:
                    await self.protocol.handle(RawData(data))
                except _NotHTTP1:
                    text = "HTTP/2 is not served; use HTTP/1.1"
                    await self._send(last_answer(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, text, self.config))
                    break
        await self.protocol.handle(Closed())
        self._fate.closed = True
        self._idle_timer.end()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if event.data.startswith(_HEAD_TOO_LARGE):
                self._limits.on_limit("header")
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
            self._head_due = not event.idle
            self._awaits_head, self._head_began = event.idle, False
        if not (isinstance(event, Updated) and (self._fate.closed or self._fate.broken)):
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        try:
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_lock.acquire()
        try:
            if not await self._send_in_time(data):
                self._limits.on_limit("send_timeout")
                self._fate.broken = True
                await trio.aclose_forcefully(self.stream)
                await self.protocol.handle(Closed())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._fate.broken = True
            await self.protocol.handle(Closed())
            # With the next request already there, Hypercorn reads on once it has answered this one: never.
            self._reading.cancel()
        finally:
            self.send_lock.release()

    async def _send_in_time(self, data: bytes) -> bool:
        """Whether the client has taken all of it, no part later than it may."""
        # As Hypercorn does: an answer that is cut in the middle would be worse than one that comes late.
        with trio.CancelScope(shield=True) as patience:
            for start in range(0, len(data), _SEND_BYTES):
                patience.deadline = trio.current_time() + self._limits.send_seconds
                piece = data if len(data) <= _SEND_BYTES else memoryview(data)[start : start + _SEND_BYTES]
                await self.stream.send_all(piece)
            return True
        return False

    async def _idle_timeout(self) -> None:
        if self._head_began and not self.context.terminated.is_set():
            self._limits.on_limit("header_timeout")
            text = f"the request's head did not arrive within {self._limits.header_seconds:g} s"
            await self._send(last_answer(HTTPStatus.REQUEST_TIMEOUT, text, self.config))
        await self._initiate_server_close()
