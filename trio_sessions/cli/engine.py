"""``trio-sessions engine``: the embedded engine alone, over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from trio_sessions.cli.checks import check_model, check_tokenizer
from trio_sessions.cli.complaint import announce, report_failure
from trio_sessions.cli.progress import progress
from trio_sessions.config import LogLevel
from trio_sessions.errors import ConfigurationError
from trio_sessions.observe import configure_logging

__all__ = ["banner", "serve_engine_until_stopped"]


async def serve_engine_until_stopped(
    *,
    host: str,
    port: int,
    latency: float,
    seed: int,
    fault: str | None,
    tokenizer: str,
    model: str | None,
    log_level: LogLevel,
) -> int:
    """Serve until a signal or a failure; the exit status.

    Raises:
        ConfigurationError: a value is out of its range, or the fault is of no known kind.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"--port must be between 0 and 65535, got {port}")
    if latency < 0:
        raise ConfigurationError(f"--latency must not be negative, got {latency:g}")
    check_tokenizer(tokenizer)
    if model is not None:
        check_model(model, tokenizer=tokenizer)
    configure_logging(log_level, "text")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_cancel_on_signal, nursery.cancel_scope)
            with progress(f"Starting: loading {f'tokenizer {tokenizer}' if model is None else f'model {model}'} ..."):
                serve = await trio.to_thread.run_sync(partial(_load, tokenizer, model, seed, fault))
                url = await nursery.start(partial(serve, host=host, port=port, latency=latency))
            announce(banner(url, tokenizer, model))
    except ExceptionGroup as failure:
        return report_failure(failure, what="the engine")
    return 0


def banner(url: str, tokenizer: str, model: str | None) -> str:
    """How to reach a running engine and stop it."""
    if model is None:
        what, line = "a toy n-gram model", f"tokenizer   {tokenizer}"
    else:
        what, line = "a model on the CPU, in float32", f"model       {model}"
    return f"""\
The embedded engine - {what} - is ready at {url}

  {line}
  Put a gateway in front of it:
    trio-sessions serve --engine {url} --tokenizer {model or tokenizer}
  Stop it with Ctrl-C or SIGTERM.
"""


def _load(tokenizer: str, model: str | None, seed: int, fault: str | None) -> Callable[..., Awaitable[None]]:
    """What serves an engine, given where to; takes seconds and has to run in a thread.

    Raises:
        ConfigurationError: the fault is of no known kind, or the tokenizer or the model cannot be used.
    """
    from trio_sessions.engine.embedded import EmbeddedEngine, load_pretrained_engine, parse_fault, serve_engine

    try:
        parsed = None if fault is None else parse_fault(fault)
    except ValueError as error:
        raise ConfigurationError(f"--fault: {error}") from error
    try:
        if model is None:
            engine = EmbeddedEngine(tokenizer, seed=seed)
        else:
            engine = load_pretrained_engine(Path(model), seed=seed)
    except ConfigurationError as error:
        raise ConfigurationError(f"{'--tokenizer' if model is None else '--model'}: {error}") from error

    return partial(serve_engine, engine, fault=parsed)


async def _cancel_on_signal(
    everything: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            everything.cancel()
            return
