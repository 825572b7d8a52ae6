"""What runs in the process of a worker; the supervisor starts it with three inherited sockets."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio

from trio_sessions.errors import ConfigurationError
from trio_sessions.hosting import AppServer, url_of
from trio_sessions.observe import Metrics, configure_logging
from trio_sessions.process import settle, share_heap
from trio_sessions.render.base import Renderer
from trio_sessions.serve import (
    answer_until,
    connection_limits,
    engine_at,
    gateway_app,
    load_renderer_of,
    store_of,
)
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.registry import SessionRegistry
from trio_sessions.workers.front import Front, Passing
from trio_sessions.workers.link import Failed, Link, Loaded, Serving, Sessions, Start, Stop, Table, ToWorker
from trio_sessions.workers.membership import Membership
from trio_sessions.workers.ownership import owned_id
from trio_sessions.workers.peers import Peers
from trio_sessions.workers.trust import WorkerTrust

__all__ = ["main", "run_worker"]

_REPORT_SECONDS: Final = 0.25

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.workers")


def main(arguments: Sequence[str]) -> int:
    """Run a worker; the exit status.

    Args:
        arguments: descriptors of the sockets: to the supervisor, of all workers, of this worker alone.
    """
    # Ctrl-C in a terminal is sent to the supervisor and to its workers alike; the supervisor alone acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    share_heap()
    control, public, own = (socket.socket(fileno=int(descriptor)) for descriptor in arguments)
    try:
        trio.run(run_worker, control, public, own)
    # The last place where it can be logged like everything else.
    except Exception as error:  # noqa: BLE001
        _log.error("crashed", service="worker", exc_info=error)
        return 1
    return 0


async def run_worker(control: socket.socket, public: socket.socket, own: socket.socket) -> None:
    """Do as the supervisor says until it says stop, ends, or a SIGTERM comes; then drain.

    Args:
        control: to the supervisor.
        public: shared with all workers, bound and listening by the time they are told to serve.
        own: likewise, of this worker alone.

    Raises:
        ExceptionGroup: a service crashed.
    """
    async with trio.SocketStream(trio.socket.from_stdlib_socket(control)) as stream:
        link: Link[ToWorker] = Link(stream, ToWorker)
        start = await link.receive()
        if isinstance(start, Start):
            configure_logging(start.settings.log_level, start.settings.log_format)
            structlog.contextvars.bind_contextvars(worker=start.index)
            await _Worker(start, link).run(public, own)


class _Worker:
    def __init__(self, start: Start, link: Link[ToWorker]) -> None:
        self._settings = start.settings
        self._secret = start.secret
        self._link = link
        self._members = Membership(start.index, start.urls)
        self._stop = trio.Event()

    async def run(self, public: socket.socket, own: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._obey_sigterm)
            nursery.start_soon(self._obey)
            loading = trio.CancelScope()
            nursery.start_soon(self._cancel_at_stop, loading)
            renderer: Renderer | None = None
            try:
                with loading:
                    renderer = await load_renderer_of(self._settings)
                    await self._link.send(Loaded(renderer.name))
                    await self._members.described.wait()
                if renderer is not None and self._members.table is not None:
                    await self._serve(renderer, self._members.table.engine_url, public, own)
            except ConfigurationError as error:
                await self._link.send(Failed(error.code, str(error)))
            nursery.cancel_scope.cancel()

    async def _serve(self, renderer: Renderer, engine_url: str, public: socket.socket, own: socket.socket) -> None:
        settings, passing = self._settings, Passing()
        metrics = Metrics()
        async with (
            engine_at(engine_url, settings) as engine,
            store_of(settings, renderer=renderer, metrics=metrics, worker=self._members.index) as store,
            Peers() as peers,
        ):
            gateway = Gateway(
                settings, engine=engine, renderer=renderer, new_id=self._new_id, metrics=metrics, store=store
            )
            front = partial(
                Front, gateway=gateway, members=self._members, peers=peers, secret=self._secret, passing=passing
            )
            trust = WorkerTrust(self._members, self._secret, peers)
            app = gateway_app(gateway, behind=front, neighbours=trust)
            async with trio.open_nursery() as nursery:

                def answering() -> None:
                    _log.info("serving", base_url=url_of(own), engine=engine_url, family=renderer.name)
                    nursery.start_soon(self._report, gateway.registry)

                settle()
                limits = connection_limits(gateway)
                servers = [AppServer(app, listener, limits=limits) for listener in (public, own)]
                await answer_until(self._stop, gateway, servers, answering=answering, drained=passing.settle)
                nursery.cancel_scope.cancel()
        _log.info("stopped")

    async def _report(self, registry: SessionRegistry) -> None:
        """Tell the supervisor that requests are answered, and from then on how many sessions there are."""
        await self._link.send(Serving())
        told = 0
        while True:
            if len(registry) != told:
                told = len(registry)
                await self._link.send(Sessions(told))
            await trio.sleep(_REPORT_SECONDS)

    async def _obey(self) -> None:
        while not self._stop.is_set():
            match await self._link.receive():
                case Table() as table:
                    self._members.update(table)
                # Nothing more comes when the supervisor is gone, and nobody would watch this worker.
                case Stop() | None:
                    self._stop.set()
                case Start():
                    raise AssertionError("a worker is started once")

    async def _obey_sigterm(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._stop.set()

    async def _cancel_at_stop(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    def _new_id(self) -> str:
        return owned_id(secrets.randbits(128), owner=self._members.index, workers=len(self._members.urls))
