"""Run a gateway: bind, start the parts in a nursery of our own, drain when told to stop.

The services are siblings in one nursery outside the application, so that a crash of any of them ends the process
instead of leaving one that listens and can do nothing.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from trio_sessions.config import Settings
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.hosting import AppServer, WholeRequests, bind, url_of
from trio_sessions.process import settle
from trio_sessions.render.base import Renderer
from trio_sessions.render.load import load_renderer
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.watchdog import watch_loop
from trio_sessions.web.app import create_app

__all__ = ["Running", "gateway_app", "serve"]

_BODY_TIMEOUT_SECONDS: Final = 60.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.serve")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers.

    Attributes:
        base_url: where it listens, ``http://host:port``.
        engine_url: the engine it asks.
        instance_id: as in ``GET /health``.
        family: name of the renderer in use.
    """

    base_url: str
    engine_url: str
    instance_id: str
    family: str


async def serve(settings: Settings, *, task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve until SIGTERM or SIGINT, then drain: running turns get ``settings.drain_timeout`` seconds.

    A second signal stops at once. ``task_status`` is told once requests are answered.

    Raises:
        ConfigurationError: the address, the tokenizer, the template or the matcher cannot be used.
        ExceptionGroup: a service crashed.
    """
    with bind(settings.host, settings.port) as listener:
        # Abandoned, so that Ctrl-C need not wait for a hub that does not answer.
        renderer = await trio.to_thread.run_sync(partial(_load_renderer, settings), abandon_on_cancel=True)
        async with trio.open_nursery() as services:
            engine_url = settings.engine or await services.start(_run_embedded_engine, settings)
            async with SGLangEngine(
                engine_url, timeout=settings.engine_timeout, max_answer_bytes=settings.max_answer_bytes
            ) as engine:
                gateway = Gateway(settings, engine=engine, renderer=renderer)
                stop = trio.Event()
                server = AppServer(gateway_app(gateway), listener)
                await services.start(_watch_signals, stop, services.cancel_scope)
                await services.start(server.run)
                services.start_soon(watch_loop, gateway.metrics)
                running = Running(
                    base_url=url_of(listener),
                    engine_url=engine_url,
                    instance_id=gateway.instance_id,
                    family=renderer.name,
                )
                settle()
                _log.info("serving", base_url=running.base_url, engine=engine_url, family=renderer.name)
                task_status.started(running)
                await stop.wait()
                _log.info("draining", timeout=settings.drain_timeout)
                await gateway.registry.drain(grace=settings.drain_timeout)
                await server.stop()
            services.cancel_scope.cancel()
    _log.info("stopped")


def gateway_app(gateway: Gateway) -> WholeRequests:
    """The ASGI application of a gateway, its requests whole and within the limits of its settings."""
    return WholeRequests(
        create_app(gateway), max_body_bytes=gateway.settings.max_body_bytes, body_timeout=_BODY_TIMEOUT_SECONDS
    )


async def _run_embedded_engine(
    settings: Settings, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    # Only a gateway without an engine of its own pays for this import.
    from trio_sessions.engine.embedded import EmbeddedEngine, serve_engine

    engine = await trio.to_thread.run_sync(partial(EmbeddedEngine, settings.tokenizer), abandon_on_cancel=True)
    await serve_engine(engine, task_status=task_status)


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


async def _watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
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
