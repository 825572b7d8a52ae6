"""Run a gateway: bind, start the parts in a nursery of our own, drain when told to stop.

The services are siblings in one nursery outside the application, so that a crash of any of them ends the process
instead of leaving one that listens and can do nothing.
"""

from __future__ import annotations

import logging
import signal
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve

from trio_sessions.config import Settings
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.errors import ConfigurationError
from trio_sessions.render.load import load_renderer
from trio_sessions.service.gateway import Gateway
from trio_sessions.web.app import create_app
from trio_sessions.web.shell import WholeRequests

if TYPE_CHECKING:
    from hypercorn.typing import Framework

__all__ = ["AddressInUse", "Running", "Server", "hypercorn_config", "listen", "serve"]

_BODY_TIMEOUT_SECONDS: Final = 60.0
# Turns are drained before the server stops; what is left then are requests that answer at once.
_CONNECTION_GRACE_SECONDS: Final = 3.0
_BACKLOG: Final = 2048
# Longer than the idle time of the usual clients, so that they, not we, close an idle connection.
_KEEP_ALIVE_SECONDS: Final = 75.0

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


class AddressInUse(ConfigurationError):
    """The address to listen on cannot be bound."""

    code = "address_in_use"


async def serve(settings: Settings, *, task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve until SIGTERM or SIGINT, then drain: running turns get ``settings.drain_timeout`` seconds.

    A second signal stops at once. ``task_status`` is told once requests are answered.

    Raises:
        ConfigurationError: the address, the tokenizer, the template or the matcher cannot be used.
        ExceptionGroup: a service crashed.
    """
    with listen(settings.host, settings.port) as listener:
        renderer = await trio.to_thread.run_sync(partial(_load_renderer, settings))
        async with trio.open_nursery() as services:
            engine_url = settings.engine or await services.start(_run_embedded_engine, settings)
            async with SGLangEngine(engine_url, timeout=settings.engine_timeout) as engine:
                gateway = Gateway(settings, engine=engine, renderer=renderer)
                stop = trio.Event()
                server = Server(gateway, listener)
                await services.start(_watch_signals, stop, services.cancel_scope)
                await services.start(server.run)
                running = Running(
                    base_url=_url_of(listener),
                    engine_url=engine_url,
                    instance_id=gateway.instance_id,
                    family=renderer.name,
                )
                _log.info("serving", base_url=running.base_url, engine=engine_url, family=renderer.name)
                task_status.started(running)
                await stop.wait()
                _log.info("draining", timeout=settings.drain_timeout)
                await gateway.registry.drain(grace=settings.drain_timeout)
                await server.stop()
            services.cancel_scope.cancel()
    _log.info("stopped")


class Server:
    """Hypercorn over one application and one listening socket."""

    def __init__(self, gateway: Gateway, listener: socket.socket) -> None:
        settings = gateway.settings
        self._app = WholeRequests(
            create_app(gateway), max_body_bytes=settings.max_body_bytes, body_timeout=_BODY_TIMEOUT_SECONDS
        )
        self._config = hypercorn_config(listener)
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until ``stop``."""
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(
                    hypercorn_serve,
                    cast("Framework", self._app),
                    self._config,
                    shutdown_trigger=self._stop.wait,
                    mode="asgi",
                )
            )
            task_status.started()
        self._stopped.set()

    async def stop(self) -> None:
        """Close the listener and idle connections, and wait until the rest is answered."""
        self._stop.set()
        await self._stopped.wait()


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket that listens.

    Raises:
        AddressInUse: it cannot be bound; the text says which address and what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --host or --port (0 picks a free one)"
        ) from error
    return listener


def hypercorn_config(listener: socket.socket) -> Config:
    """Hypercorn's settings for a listening socket, where its defaults do not fit long-running requests."""
    config = Config()
    # Hypercorn closes what it serves, so it gets a descriptor of its own.
    config.bind = [f"fd://{listener.dup().detach()}"]
    config.backlog = _BACKLOG
    config.keep_alive_timeout = _KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = _CONNECTION_GRACE_SECONDS
    config.loglevel = "WARNING"
    config.accesslog = None
    config.errorlog = logging.getLogger("trio_sessions.hypercorn")
    return config


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _load_renderer(settings: Settings):
    template = None
    if settings.chat_template is not None:
        try:
            template = settings.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read --chat-template {settings.chat_template}: {error}") from error
    return load_renderer(
        settings.tokenizer,
        family=settings.family,
        chat_template=template,
        chat_template_kwargs=settings.chat_template_kwargs,
    )


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
