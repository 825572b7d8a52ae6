"""Run a gateway: bind, start the parts in a nursery of our own, drain when told to stop.

The services are siblings in one nursery outside the application, so that a crash of any of them ends the process
instead of leaving one that listens and can do nothing.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trio_sessions.config import Settings
from trio_sessions.engine.probe import warn_unless_answering
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.errors import ConfigurationError
from trio_sessions.hosting import AppServer, ConnectionLimits, Room, WholeRequests, bind, server_tls, url_of
from trio_sessions.observe import Metrics
from trio_sessions.render.base import Renderer
from trio_sessions.render.fingerprint import fingerprint
from trio_sessions.render.load import load_renderer
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.keys import with_keys_of_file
from trio_sessions.service.watchdog import watch_loop
from trio_sessions.store import JournalIdentity, MemoryStore, Store
from trio_sessions.store.sqlite import SqliteStore
from trio_sessions.web.app import create_app
from trio_sessions.web.guard import Guard, Neighbours
from trio_sessions.web.refusals import refusal

if TYPE_CHECKING:
    import ssl

    from hypercorn.typing import ASGIFramework

__all__ = [
    "Running",
    "answer_until",
    "connection_limits",
    "engine_at",
    "gateway_app",
    "load_renderer_of",
    "require_no_other_journals",
    "run_embedded_engine",
    "serve",
    "store_of",
    "try_engine",
    "watch_signals",
]

# What other processes answer for this one ends when they have drained; the answers then need a moment.
_ANSWERS_SECONDS: Final = 3.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.serve")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers.

    Attributes:
        base_url: where it listens, ``http://host:port``, or ``https`` with TLS.
        engine_url: the engine it asks.
        instance_id: as in ``GET /health``.
        family: name of the renderer in use.
        worker_urls: where each worker listens for itself; empty without workers.
    """

    base_url: str
    engine_url: str
    instance_id: str
    family: str
    worker_urls: tuple[str, ...] = ()


async def serve(
    settings: Settings,
    *,
    loaded: Callable[[], None] = lambda: None,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain: running turns get ``settings.drain_timeout`` seconds.

    In this process, whatever ``settings.workers`` says; ``trio_sessions.workers`` has the other way. A second signal
    stops at once.

    Args:
        settings: what was asked for.
        loaded: called when everything is loaded, before requests are answered.
        task_status: told once they are.

    Raises:
        ConfigurationError: the address, the keys, the certificate, the tokenizer, the template or the matcher cannot be
            used.
        ExceptionGroup: a service crashed.
    """
    settings = with_keys_of_file(settings)
    require_no_other_journals(settings)
    tls = _tls_of(settings)
    with bind(settings.host, settings.port) as listener:
        renderer = await load_renderer_of(settings)
        async with trio.open_nursery() as services:
            engine_url = settings.engine or await services.start(run_embedded_engine, settings)
            metrics = Metrics()
            async with (
                engine_at(engine_url, settings) as engine,
                store_of(settings, renderer=renderer, metrics=metrics) as store,
            ):
                gateway = Gateway(settings, engine=engine, renderer=renderer, metrics=metrics, store=store)
                stop = trio.Event()
                server = AppServer(gateway_app(gateway), listener, tls=tls, limits=connection_limits(gateway))
                await services.start(watch_signals, stop, services.cancel_scope)
                services.start_soon(try_engine, settings)
                running = Running(
                    base_url=url_of(listener, tls=tls is not None),
                    engine_url=engine_url,
                    instance_id=gateway.instance_id,
                    family=renderer.name,
                )

                def answering() -> None:
                    _log.info("serving", base_url=running.base_url, engine=engine_url, family=renderer.name)
                    task_status.started(running)

                loaded()
                await answer_until(stop, gateway, [server], answering=answering)
            services.cancel_scope.cancel()
    _log.info("stopped")


def _tls_of(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return server_tls(settings.tls_cert, settings.tls_key, client_ca=settings.tls_ca)


def engine_at(url: str, settings: Settings) -> SGLangEngine:
    """The client for the engine at ``url``, as ``settings`` want it."""
    return SGLangEngine(url, timeout=settings.engine_timeout, max_answer_bytes=settings.max_answer_bytes)


def require_no_other_journals(settings: Settings) -> None:
    """Refuse to begin anew beside the journals of another number of workers: their sessions would be gone.

    Raises:
        ConfigurationError: there are such files.
    """
    if not settings.journal_files:
        return
    path = Path(settings.store)
    numbered = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
    others = sorted({path, *numbered} - set(settings.journal_files))
    for other in others:
        if other.is_file() and other.stat().st_size:
            raise ConfigurationError(
                f"--store {path} was served with another number of --workers, which left {other}: serve with that "
                "number, give another --store, or delete the file if its sessions are not wanted"
            )


@asynccontextmanager
async def store_of(
    settings: Settings, *, renderer: Renderer, metrics: Metrics, worker: int = 0
) -> AsyncIterator[Store]:
    """A block with the store open that ``settings`` ask for.

    Args:
        settings: what was asked for.
        renderer: what sessions are rendered with; those in the store have to be of the same.
        metrics: where writing is counted.
        worker: index of the worker whose sessions are kept, each in a file of its own.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    if not settings.journal_files:
        yield MemoryStore()
        return
    identity = JournalIdentity(
        mode=settings.mode,
        rendering=await trio.to_thread.run_sync(fingerprint, renderer, abandon_on_cancel=True),
        worker=worker,
        workers=settings.workers,
    )
    path = settings.journal_files[worker]
    async with SqliteStore.open(path, identity, durability=settings.durability, metrics=metrics) as store:
        yield store


async def try_engine(settings: Settings) -> None:
    """Log a warning if the engine that ``settings`` name does not answer; the embedded one is known to."""
    if settings.engine is not None:
        async with engine_at(settings.engine, settings) as engine:
            await warn_unless_answering(engine, settings.engine)


async def answer_until(
    stop: trio.Event,
    gateway: Gateway,
    servers: Sequence[AppServer],
    *,
    answering: Callable[[], None],
    drained: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve a gateway until ``stop`` is set, then end in good order: turns get ``drain_timeout`` seconds.

    Args:
        stop: set when it is time to end.
        gateway: what is served.
        servers: where.
        answering: called once requests are answered everywhere.
        drained: what else is waited for once the turns of this gateway have ended, while requests are still answered.
    """
    grace = gateway.settings.drain_timeout
    async with trio.open_nursery() as services:
        for server in servers:
            await services.start(server.run)
        watching = trio.CancelScope()
        services.start_soon(_watch, watching, gateway)
        answering()
        await stop.wait()
        _log.info("draining", timeout=grace)
        patience = trio.current_time() + grace + _ANSWERS_SECONDS
        await gateway.registry.drain(grace=grace)
        with trio.move_on_at(patience):
            await drained()
        watching.cancel()
        for server in servers:
            services.start_soon(server.stop)


async def _watch(until: trio.CancelScope, gateway: Gateway) -> None:
    with until:
        async with trio.open_nursery() as watching:
            watching.start_soon(watch_loop, gateway.metrics)
            watching.start_soon(gateway.registry.expire_idle_for_ever)
            watching.start_soon(gateway.registry.forget_old_answers)


def gateway_app(
    gateway: Gateway,
    *,
    behind: Callable[[ASGIFramework], ASGIFramework] = lambda app: app,
    neighbours: Neighbours | None = None,
) -> ASGIFramework:
    """The ASGI application of a gateway, its requests whole and within the limits of its settings.

    Where there are keys, whoever has none is refused before anything is read of what it sends.

    Args:
        gateway: what serves the sessions.
        behind: wraps the application in one that gets the whole requests first.
        neighbours: other processes that serve the same sessions.
    """
    app = WholeRequests(
        behind(create_app(gateway)),
        max_body_bytes=gateway.settings.max_body_bytes,
        body_timeout=gateway.settings.body_timeout,
        refuse=refusal,
        on_limit=gateway.metrics.count_refused,
    )
    if not gateway.keys:
        return app
    return Guard(
        app,
        keys=gateway.keys,
        token_digest=gateway.registry.token_digest,
        metrics=gateway.metrics,
        neighbours=neighbours,
    )


def connection_limits(gateway: Gateway) -> ConnectionLimits:
    """What the connections of a gateway may take; its servers share the room for them."""
    settings = gateway.settings
    return ConnectionLimits(
        room=Room(settings.max_connections),
        header_seconds=settings.header_timeout,
        send_seconds=settings.send_timeout,
        on_limit=gateway.metrics.count_refused,
    )


async def run_embedded_engine(
    settings: Settings, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the embedded engine, with the tokenizer of ``settings``, until cancelled; ``task_status`` gets its URL."""
    # Only a gateway without an engine of its own pays for this import.
    from trio_sessions.engine.embedded import EmbeddedEngine, serve_engine

    engine = await trio.to_thread.run_sync(partial(EmbeddedEngine, settings.tokenizer), abandon_on_cancel=True)
    await serve_engine(engine, task_status=task_status)


async def load_renderer_of(settings: Settings) -> Renderer:
    """The renderer that ``settings`` ask for; what was chosen without being asked for is logged.

    Raises:
        ConfigurationError: the tokenizer or the template cannot be used.
    """
    # Abandoned, so that Ctrl-C need not wait for a hub that does not answer.
    return await trio.to_thread.run_sync(partial(_load_renderer, settings), abandon_on_cancel=True)


def _load_renderer(settings: Settings) -> Renderer:
    renderer = load_renderer(
        settings.tokenizer,
        family=settings.family,
        chat_template=settings.chat_template,
        chat_template_kwargs=settings.chat_template_kwargs,
        special_tokens=settings.special_tokens_in_content,
        tools_as=settings.tools_as,
    )
    for note in renderer.notes:
        _log.info("renderer chosen", family=renderer.name, note=note)
    return renderer


async def watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set ``stop`` at the first SIGTERM or SIGINT, and cancel ``everything`` at the second."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            if stop.is_set():
                _log.warning("stopping at once", signal=name)
                everything.cancel()
                return
            _log.info("stopping", signal=name)
            stop.set()
