"""Hypercorn's protocols on a socket of our own."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from trio_sessions.hosting.address import listen
from trio_sessions.hosting.connection import Connection
from trio_sessions.hosting.limits import ConnectionLimits
from trio_sessions.hosting.refusal import last_answer

if TYPE_CHECKING:
    import ssl

    from hypercorn.typing import ASGIFramework, Framework

__all__ = ["AppServer", "hypercorn_config"]

# Turns are drained before the server stops; what is left then are requests that answer at once.
_CONNECTION_GRACE_SECONDS: Final = 3.0
# Longer than the idle time of the usual clients, so that they, not we, close an idle connection.
_KEEP_ALIVE_SECONDS: Final = 75.0
_HANDSHAKE_SECONDS: Final = 10.0
# Refusing takes a connection too, for a moment.
_REFUSALS_AT_A_TIME: Final = 64
_REFUSAL_SECONDS: Final = 1.0
_UNREAD_BYTES: Final = 64 * 1024

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.hosting")


def hypercorn_config() -> Config:
    """Hypercorn's settings, where its defaults do not fit long-running requests."""
    config = Config()
    config.keep_alive_timeout = _KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 2**31
    config.loglevel = "WARNING"
    config.accesslog = None
    # Of those who connect and do not begin, or do not speak TLS.
    config.ssl_handshake_timeout = _HANDSHAKE_SECONDS
    config.errorlog = logging.getLogger("trio_sessions.hypercorn")
    return config


class AppServer:
    """Hypercorn's protocols over one ASGI application and one bound socket.

    Connections are accepted here, not by ``hypercorn.trio.serve``, because they have to be known to be ended: Hypercorn
    sends under a shield, so that a client that reads nothing of its answer would hold up a stop for ever.

    Args:
        app: the application; it gets no lifespan events.
        listener: from ``bind``; closed when the server stops.
        config: Hypercorn's settings.
        tls: what connections are encrypted with; a client that does not speak TLS is dropped. None for plain ones.
        limits: what its connections may take; None for whatever they like.
    """

    def __init__(
        self,
        app: ASGIFramework,
        listener: socket.socket,
        config: Config | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._limits = limits or ConnectionLimits()
        self._refusing = trio.CapacityLimiter(_REFUSALS_AT_A_TIME)
        self._config = config or hypercorn_config()
        self._app = wrap_app(cast("Framework", app), self._config.wsgi_max_body_size, "asgi")
        self._listener = listener
        self._tls = tls
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
        if not self._limits.room.take():
            self._limits.on_limit("connections")
            await self._refuse(stream)
            return
        self._streams.add(stream)
        try:
            encrypted = self._encrypted(stream)
            await Connection(self._app, self._config, self._context, ConnectionState({}), encrypted, self._limits)
        # What a client sends can make the protocol libraries raise almost anything, and is its connection's end alone.
        except Exception as error:  # noqa: BLE001
            _log.warning("connection broke", kind=type(error).__name__)
            await trio.aclose_forcefully(stream)
        finally:
            self._limits.room.leave()
            self._streams.discard(stream)
            self._stream_ended.set()
            self._stream_ended = trio.Event()

    def _encrypted(self, stream: trio.SocketStream) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
        if self._tls is None:
            return stream
        # As most clients of HTTP end a connection: without a farewell.
        return trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)

    async def _refuse(self, stream: trio.SocketStream) -> None:
        """Say that there is no room, and close; where too many are told so, close without a word."""
        if self._tls is not None:
            # Whoever waits for a handshake cannot read an answer.
            await trio.aclose_forcefully(stream)
            return
        try:
            self._refusing.acquire_on_behalf_of_nowait(stream)
        except trio.WouldBlock:
            await trio.aclose_forcefully(stream)
            return
        text = f"the server has {self._limits.room.most:.0f} connections already (--max-connections)"
        answer = last_answer(HTTPStatus.SERVICE_UNAVAILABLE, text, self._config, retry_after=1)
        try:
            with suppress(trio.BrokenResourceError, OSError), trio.move_on_after(_REFUSAL_SECONDS):
                await stream.send_all(answer)
                await stream.send_eof()
                # Closed before its request is read, a connection would be reset, and the answer lost.
                while await stream.receive_some(_UNREAD_BYTES):
                    pass
        finally:
            self._refusing.release_on_behalf_of(stream)
            await trio.aclose_forcefully(stream)

    async def _close_streams_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            for stream in self._streams:
                stream.socket.close()
