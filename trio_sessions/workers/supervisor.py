"""The process that users start: it owns the ports, starts the workers on them and watches over them.

It serves no session, so that nothing that a request can do reaches it. Workers are processes of their own from the
start, not forks: this one has threads. The sockets are bound here and inherited, so that a worker that is started again
has the port that it had.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from trio_sessions.config import IN_MEMORY, Settings
from trio_sessions.errors import AddressInUse, ConfigurationError, LibraryMissing
from trio_sessions.hosting import bind, listen, url_of
from trio_sessions.serve import Running, require_no_other_journals, run_embedded_engine, try_engine, watch_signals
from trio_sessions.service.keys import with_keys_of_file
from trio_sessions.workers.address import neighbour_url
from trio_sessions.workers.link import (
    Failed,
    FromWorker,
    Link,
    Loaded,
    Serving,
    Sessions,
    Start,
    Stop,
    Table,
    WorkerState,
)
from trio_sessions.workers.restarts import RestartPolicy, Restarts, WorkersFailed

__all__ = ["serve_with_workers"]

# SIGINT is ignored before anything is imported: until then Ctrl-C would end a worker with a traceback.
_PROGRAM: Final = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from trio_sessions.workers.entry import main; sys.exit(main(sys.argv[1:4]))"
)
_PORT_ADVICE: Final = "choose another --worker-port-base, or none for free ports"
# On top of what turns get: for answers to be taken, and for what is left to end.
_STOP_SECONDS: Final = 15.0
_EXIT_SECONDS: Final = 5.0
_KINDS: Final = {kind.code: kind for kind in (ConfigurationError, AddressInUse, LibraryMissing)}

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.workers")


async def serve_with_workers(
    settings: Settings,
    *,
    restarts: RestartPolicy | None = None,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve from ``settings.workers`` processes until SIGTERM or SIGINT, then drain them all.

    A second signal stops at once. ``task_status`` is told once every worker answers requests.

    Args:
        settings: what was asked for.
        restarts: what becomes of workers that die.
        task_status: gets where it serves.

    Raises:
        ConfigurationError: an address, the keys, the tokenizer, the template, the matcher or a hook cannot be used.
        ExceptionGroup: likewise, or of ``WorkersFailed``, or a service crashed.
    """
    # Once, so that all workers have the same, also one that is started again.
    settings = with_keys_of_file(settings)
    require_no_other_journals(settings)
    with ExitStack() as stack:
        public = stack.enter_context(bind(settings.host, settings.port))
        base = settings.worker_port_base
        own = [
            stack.enter_context(bind(settings.host, 0 if base is None else base + index, advice=_PORT_ADVICE))
            for index in range(settings.workers)
        ]
        settings = replace(settings, instance_id=settings.instance_id or uuid.uuid4().hex)
        await _Supervisor(settings, public, own, restarts or RestartPolicy()).run(task_status)
    _log.info("stopped")


@dataclass(frozen=True, slots=True)
class _Death:
    """The end of a process.

    Attributes:
        served: seconds for which it answered requests.
        sessions: how many it had when it last said so.
        failed: why it could not start, if it said so.
        status: its exit status; negative for a signal.
    """

    served: float
    sessions: int
    failed: Failed | None
    status: int


class _Worker:
    """What is known of one worker, whichever process it is at the time."""

    def __init__(self, index: int, listener: socket.socket, policy: RestartPolicy) -> None:
        self.index = index
        self.listener = listener
        self.restarts = Restarts(policy)
        self.started_again = 0
        self.up = False
        self.sessions = 0
        self.loaded = trio.Event()
        self.serving = trio.Event()
        self.family = ""

    @property
    def state(self) -> WorkerState:
        return WorkerState(self.index, self.up, self.started_again, self.sessions)


class _Supervisor:
    def __init__(
        self, settings: Settings, public: socket.socket, own: list[socket.socket], policy: RestartPolicy
    ) -> None:
        self._settings = settings
        self._public = public
        self._workers = [_Worker(index, listener, policy) for index, listener in enumerate(own)]
        self._urls = tuple(neighbour_url(*listener.getsockname()[:2]) for listener in own)
        self._secret = secrets.token_hex(16)
        self._engine_url = ""
        self._open = trio.Event()
        self._stop = trio.Event()
        self._changed = trio.Event()
        self._failure: WorkersFailed | None = None

    async def run(self, task_status: trio.TaskStatus[Running]) -> None:
        settings = self._settings
        async with trio.open_nursery() as services:
            processes = trio.CancelScope()
            ended = trio.Event()
            services.start_soon(self._keep_all, processes, ended)
            for worker in self._workers:
                await worker.loaded.wait()
            self._engine_url = settings.engine or await services.start(run_embedded_engine, settings)
            for listener in (self._public, *(worker.listener for worker in self._workers)):
                listen(listener)
            self._open.set()
            for worker in self._workers:
                await worker.serving.wait()
            await services.start(watch_signals, self._stop, services.cancel_scope)
            services.start_soon(try_engine, settings)
            running = Running(
                base_url=url_of(self._public),
                engine_url=self._engine_url,
                instance_id=str(settings.instance_id),
                family=self._workers[0].family,
                worker_urls=tuple(url_of(worker.listener) for worker in self._workers),
            )
            _log.info("serving", base_url=running.base_url, engine=running.engine_url, workers=settings.workers)
            task_status.started(running)
            await self._stop.wait()
            _log.info("draining", timeout=settings.drain_timeout)
            self._close_ports()
            self._tell_all()
            with trio.move_on_after(settings.drain_timeout + _STOP_SECONDS):
                await ended.wait()
            if not ended.is_set():
                _log.warning("killing workers that do not end", workers=[w.index for w in self._workers if w.up])
                processes.cancel()
                await ended.wait()
            if self._failure is not None:
                raise self._failure
            services.cancel_scope.cancel()

    async def _keep_all(self, processes: trio.CancelScope, ended: trio.Event) -> None:
        with processes:
            async with trio.open_nursery() as nursery:
                for worker in self._workers:
                    nursery.start_soon(self._keep, worker)
        ended.set()

    async def _keep(self, worker: _Worker) -> None:
        """Run the process of one worker, again whenever it ends, until all stop.

        Raises:
            ConfigurationError, WorkersFailed: it never came to serve.
        """
        while True:
            death = await self._live(worker)
            if self._stop.is_set():
                return
            how = _end(death)
            if not worker.serving.is_set():
                if death.failed is not None:
                    raise _KINDS.get(death.failed.code, ConfigurationError)(death.failed.text)
                raise WorkersFailed(f"worker {worker.index} {how} before it served any request; its log is above")
            delay = worker.restarts.died(served=death.served)
            lost = death.sessions if self._settings.store == IN_MEMORY else 0
            _log.warning("worker ended", worker=worker.index, how=how, sessions_lost=lost, restarts_in=delay)
            if delay is None:
                text = f"worker {worker.index} keeps dying (last: it {how}) and is not restarted"
                self._failure = self._failure or WorkersFailed(text)
                self._stop.set()
                return
            with trio.move_on_after(delay):
                await self._stop.wait()
                return
            worker.started_again += 1

    async def _live(self, worker: _Worker) -> _Death:
        """Run the process of one worker to its end."""
        ours, theirs = socket.socketpair()
        served_since: float | None = None
        failed: Failed | None = None
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream, trio.open_nursery() as nursery:
            link: Link[FromWorker] = Link(stream, FromWorker)
            with theirs:
                process = await nursery.start(self._process, worker, theirs)
            _log.info("worker started", worker=worker.index, pid=process.pid, url=url_of(worker.listener))
            nursery.start_soon(self._tell, worker, link)
            while (message := await link.receive()) is not None:
                match message:
                    case Loaded():
                        worker.family = message.family
                        worker.loaded.set()
                    case Serving():
                        served_since = trio.current_time()
                        worker.up = True
                        worker.serving.set()
                    case Sessions():
                        worker.sessions = message.count
                    case Failed():
                        failed = message
                self._tell_all()
            sessions = worker.sessions
            worker.up = False
            worker.sessions = 0
            self._tell_all()
            death = _Death(
                served=0.0 if served_since is None else trio.current_time() - served_since,
                sessions=sessions,
                failed=failed,
                status=await _exit_status(process),
            )
            nursery.cancel_scope.cancel()
        return death

    async def _process(
        self, worker: _Worker, link: socket.socket, *, task_status: trio.TaskStatus[trio.Process]
    ) -> None:
        descriptors = [inherited.fileno() for inherited in (link, self._public, worker.listener)]
        command = [sys.executable, "-P", "-c", _PROGRAM, *map(str, descriptors), f"worker-{worker.index}"]
        await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            check=False,
            deliver_cancel=_kill,
            pass_fds=descriptors,
            # Where this process found its modules, a user's hooks among them, a worker finds them too.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            task_status=task_status,
        )

    async def _tell(self, worker: _Worker, link: Link[FromWorker]) -> None:
        await link.send(Start(worker.index, self._urls, self._secret, self._settings))
        await self._open.wait()
        while not self._stop.is_set():
            changed = self._changed
            await link.send(Table(self._engine_url, tuple(each.state for each in self._workers)))
            await changed.wait()
        await link.send(Stop())

    def _tell_all(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _close_ports(self) -> None:
        """Leave the ports to the workers, so that nobody can connect once they have stopped."""
        self._public.close()
        for worker in self._workers:
            worker.listener.close()


async def _exit_status(process: trio.Process) -> int:
    with trio.move_on_after(_EXIT_SECONDS):
        return await process.wait()
    process.kill()
    return await process.wait()


async def _kill(process: trio.Process) -> None:
    process.kill()


def _end(death: _Death) -> str:
    """What the worker did, to stand behind its name."""
    if death.failed is not None:
        return f"could not start: {death.failed.text}"
    if death.status < 0:
        return f"was killed by {signal.Signals(-death.status).name}"
    return f"ended with status {death.status}"
