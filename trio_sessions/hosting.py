"""Serve an ASGI application on a socket: whole requests, an undisturbed end, and settings that fit long answers.

``WholeRequests`` cures four faults of the stack it stands in (Hypercorn and Quart-Trio):

* An answer sent before the request's body arrived leaves the connection unusable for the next request. Here the body
  is read before the application starts, so no answer can come first.
* Once an answer is complete, Hypercorn reports a disconnect, on which Quart cancels the task that is still finishing
  the answer. Here that late disconnect is not passed on.
* Quart gives up a body over its limit without reading it. Here the rest is read and thrown away, so that the client
  can read the 413.
* Quart spells header values in UTF-8. Headers are bytes that are read as Latin-1; here they are sent as they were read.

WebSockets are refused.
"""

from __future__ import annotations

import logging
import math
import socket
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from trio_sessions.core import json
from trio_sessions.errors import AddressInUse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.trio.task_group import TaskGroup
    from hypercorn.typing import (
        AppWrapper,
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        Framework,
        HTTPResponseStartEvent,
        Scope,
    )

__all__ = ["AppServer", "WholeRequests", "bind", "hypercorn_config", "listen", "url_of"]

# Turns are drained before the server stops; what is left then are requests that answer at once.
_CONNECTION_GRACE_SECONDS: Final = 3.0
_BACKLOG: Final = 2048
# Longer than the idle time of the usual clients, so that they, not we, close an idle connection.
_KEEP_ALIVE_SECONDS: Final = 75.0
# Several times Hypercorn's: a body of megabytes arrives in fewer pieces, each of which passes through many hands.
_RECEIVE_BYTES: Final = 128 * 1024
_FINAL_ANSWER: Final = tuple(b"HTTP/1.1 %d" % digit for digit in range(2, 6))
_ADVICE: Final = "choose another --host or --port (0 picks a free one)"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.hosting")


def bind(host: str, port: int, *, advice: str = _ADVICE) -> socket.socket:
    """A bound TCP socket, which refuses connections until an ``AppServer`` runs on it.

    Args:
        host: address.
        port: 0 picks a free one.
        advice: what to do if it cannot be bound.

    Raises:
        AddressInUse: it cannot be bound; the text says which address and what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except (OSError, ValueError, TypeError) as error:
        listener.close()
        raise _address_in_use(host, port, error, advice) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect to a bound socket; a second time is harmless.

    Raises:
        AddressInUse: another process was bound to the same address, and listened first.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _address_in_use(host, port, error) from error


def _address_in_use(host: str, port: int, error: Exception, advice: str = _ADVICE) -> AddressInUse:
    return AddressInUse(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; {advice}")


def hypercorn_config() -> Config:
    """Hypercorn's settings, where its defaults do not fit long-running requests."""
    config = Config()
    config.keep_alive_timeout = _KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 2**31
    config.loglevel = "WARNING"
    config.accesslog = None
    config.errorlog = logging.getLogger("trio_sessions.hypercorn")
    return config


def url_of(listener: socket.socket) -> str:
    """``http://host:port`` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AppServer:
    """Hypercorn's protocols over one ASGI application and one bound socket.

    Connections are accepted here, not by ``hypercorn.trio.serve``, because they have to be known to be ended: Hypercorn
    sends under a shield, so that a client that reads nothing of its answer would hold up a stop for ever.

    Args:
        app: the application; it gets no lifespan events.
        listener: from ``bind``; closed when the server stops.
        config: Hypercorn's settings.
    """

    def __init__(self, app: ASGIFramework, listener: socket.socket, config: Config | None = None) -> None:
        self._config = config or hypercorn_config()
        self._app = wrap_app(cast("Framework", app), self._config.wsgi_max_body_size, "asgi")
        self._listener = listener
        self._context = WorkerContext(None)
        self._streams: set[trio.SocketStream] = set()
        self._stream_ended = trio.Event()
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until ``stop``; ``task_status`` is told once they are answered."""
        listen(self._listener)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener))
        try:
            await self._serve(listener, task_status)
        finally:
            self._stopped.set()

    async def _serve(self, listener: trio.SocketListener, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as connections:
            connections.start_soon(self._close_streams_when_cancelled)
            async with trio.open_nursery() as accepting:
                await accepting.start(
                    partial(trio.serve_listeners, self._connection, [listener], handler_nursery=connections)
                )
                task_status.started()
                await self._stop.wait()
                accepting.cancel_scope.cancel()
            # Idle connections end at once, the others when they have their answer.
            await self._context.terminated.set()
            with trio.move_on_after(_CONNECTION_GRACE_SECONDS):
                while self._streams:
                    await self._stream_ended.wait()
            connections.cancel_scope.cancel()

    async def stop(self) -> None:
        """Close the listener and idle connections, and give the others a few seconds to take their answers."""
        self._stop.set()
        await self._stopped.wait()

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._streams.add(stream)
        try:
            await _Connection(self._app, self._config, self._context, ConnectionState({}), stream)
        # What a client sends can make the protocol libraries raise almost anything, and is its connection's end alone.
        except Exception as error:  # noqa: BLE001
            _log.warning("connection broke", kind=type(error).__name__)
            await trio.aclose_forcefully(stream)
        finally:
            self._streams.discard(stream)
            self._stream_ended.set()
            self._stream_ended = trio.Event()

    async def _close_streams_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            for stream in self._streams:
                stream.socket.close()


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


class _Connection(TCPServer):
    """Hypercorn's connection, which ends when its client has closed it, not with the idle timer, and costs less."""

    def __init__(
        self, app: AppWrapper, config: Config, context: WorkerContext, state: ConnectionState, stream: trio.SocketStream
    ) -> None:
        super().__init__(app, config, context, cast("Any", state), cast("Any", stream))
        self._gone = False
        self._head = b""
        self._idle_timer = _IdleTimer(config.keep_alive_timeout, cast("EventWrapper", context.terminated))
        # What Hypercorn restarts and stops.
        self.idle_task = cast("Any", self._idle_timer)

    async def _read_data(self) -> None:
        data = b"not yet"
        while data:
            try:
                data = bytes(await self.stream.receive_some(_RECEIVE_BYTES))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self.protocol.handle(RawData(data))
        await self.protocol.handle(Closed())
        self._gone = True
        self._idle_timer.end()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if event.data.startswith(_FINAL_ANSWER):
                # The body follows at once, see ``WholeRequests``: both are sent together.
                self._head = event.data
                return
            data, self._head = self._head + event.data, b""
            # The end of an answer of known length is no bytes.
            if data:
                await self._send(data)
        elif not (self._gone and isinstance(event, Updated)):
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
            await self.protocol.handle(Closed())
        finally:
            self.send_lock.release()

    async def _idle_timeout(self) -> None:
        await self._initiate_server_close()


class _Incomplete(Enum):
    """Why there is no whole body."""

    TOO_LARGE = auto()
    TOO_SLOW = auto()
    GONE = auto()


class WholeRequests:
    """Wraps an ASGI application as described above.

    Args:
        app: gets each request's body in one piece.
        max_body_bytes: a larger body is answered 413.
        body_timeout: seconds in which the whole body must arrive, else 408.
    """

    def __init__(self, app: ASGIFramework, *, max_body_bytes: float = math.inf, body_timeout: float = math.inf) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] == "websocket":
            await _refuse_websocket(send)
        if scope["type"] != "http":
            return
        match await self._read(receive):
            case bytes() as body:
                await self._run(scope, body, receive, send)
            case _Incomplete.TOO_LARGE:
                limit = self._max_body_bytes / 2**20
                await _refuse(send, 413, f"the request body is larger than {limit:g} MiB (--max-body-mb)")
            case _Incomplete.TOO_SLOW:
                await _refuse(send, 408, f"the request body did not arrive within {self._body_timeout:g} s", close=True)
            case _Incomplete.GONE:
                pass

    async def _read(self, receive: ASGIReceiveCallable) -> bytes | _Incomplete:
        chunks: list[bytes] = []
        size = 0
        with trio.move_on_after(self._body_timeout):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    return _Incomplete.GONE
                size += len(event["body"])
                if size <= self._max_body_bytes:
                    chunks.append(event["body"])
                else:
                    chunks.clear()
                if not event["more_body"]:
                    return b"".join(chunks) if size <= self._max_body_bytes else _Incomplete.TOO_LARGE
        return _Incomplete.TOO_SLOW

    async def _run(self, scope: Scope, body: bytes, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        delivered = False
        complete = False
        start: ASGISendEvent | None = None

        async def receive_whole() -> ASGIReceiveEvent:
            nonlocal delivered
            if not delivered:
                delivered = True
                return {"type": "http.request", "body": body, "more_body": False}
            event = await receive()
            if complete and event["type"] == "http.disconnect":
                await trio.sleep_forever()
            return event

        async def send_marking(event: ASGISendEvent) -> None:
            nonlocal complete, start
            if event["type"] == "http.response.start":
                start = _with_header_bytes(event)
                return
            if event["type"] == "http.response.body" and not event.get("more_body", False):
                complete = True
            if start is not None:
                await send(start)
                start = None
            await send(event)

        await self._app(scope, receive_whole, send_marking)


async def _refuse(send: ASGISendCallable, status: int, text: str, *, close: bool = False) -> None:
    body = json.encode({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse_websocket(send: ASGISendCallable) -> None:
    # 426, not 404: clients that try WebSockets first fall back at once.
    body = json.encode({"error": "WebSockets are not served; use HTTP requests"})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"upgrade", b"HTTP/1.1"),
        (b"connection", b"close"),
    ]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _with_header_bytes(event: HTTPResponseStartEvent) -> HTTPResponseStartEvent:
    headers = [(name, value.decode().encode("latin-1", errors="replace")) for name, value in event["headers"]]
    return {**event, "headers": headers}
