"""Metrics and logs. Nothing here, or anywhere above debug level, shows what a conversation says."""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, TextIO, get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from trio_sessions.config import LogFormat, LogLevel
from trio_sessions.core.boundary import BoundaryKind
from trio_sessions.core.compare import MismatchType
from trio_sessions.hosting import ConnectionLimit

__all__ = ["METRICS_CONTENT_TYPE", "ErrorLimit", "Limit", "LogWriter", "Metrics", "TurnOutcome", "configure_logging"]

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

TurnOutcome = Literal[
    "committed",  # answered and recorded
    "stale",  # answered, not recorded: the session changed meanwhile
    "closed",  # answered, not recorded: the session was deleted meanwhile
    "repeated",  # a retry, answered with the turn it repeats
    "refused",  # the client's request was wrong
    "engine_error",  # the engine answered an error, nothing usable, or not at all
    "cancelled",  # the client went away, the server shut down, or the session's time was over
    "unavailable",  # refused for want of memory, or of a journal that can be written
    "failed",  # a defect of ours or of the configuration
]

Denial = Literal["invalid_api_key", "permission_denied"]
ErrorLimit = Literal[
    "sessions",
    "memory",
    "turns",  # the queue for turns was full
    "turn_queue_timeout",
    "session_turns",
    "messages",
    "nodes",
    "session_tokens",
    "session_deadline",
    "seq_len",
    "json_depth",
    "json_values",
    "engine_timeout",
]
"""Limits that errors tell of."""

Limit = Literal[ErrorLimit, ConnectionLimit]

_ENGINE_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_OVERHEAD_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """The metrics of one gateway, in a registry of its own so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter("trio_sessions_turns", "Turns by outcome.", ["outcome"], registry=self.registry)
        # A rate needs the zero before the first.
        self._turns = {outcome: self.turns.labels(outcome) for outcome in get_args(TurnOutcome)}
        self.turns_in_flight = Gauge("trio_sessions_turns_in_flight", "Turns being handled.", registry=self.registry)
        self.turns_waiting = Gauge(
            "trio_sessions_turns_waiting", "Turns and proxied requests that wait for a place.", registry=self.registry
        )
        self.refused = Counter(
            "trio_sessions_refused",
            "Requests and connections that a limit refused or ended.",
            ["limit"],
            registry=self.registry,
        )
        self._refused = {limit: self.refused.labels(limit) for limit in get_args(Limit)}
        self.engine_seconds = Histogram(
            "trio_sessions_engine_seconds",
            "Time an engine call of a turn took.",
            buckets=_ENGINE_BUCKETS,
            registry=self.registry,
        )
        self.overhead_seconds = Histogram(
            "trio_sessions_overhead_seconds",
            "Time the gateway added to an answered turn.",
            buckets=_OVERHEAD_BUCKETS,
            registry=self.registry,
        )
        self.loop_lag_seconds = Histogram(
            "trio_sessions_loop_lag_seconds",
            "How late the event loop was whenever a task wanted to run, looked at every 20 ms.",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        self.tasks = Gauge(
            "trio_sessions_tasks",
            "Trio tasks that live in the process, looked at every second.",
            registry=self.registry,
        )
        self.sessions_open = Gauge("trio_sessions_sessions_open", "Sessions that exist.", registry=self.registry)
        self.denied = Counter(
            "trio_sessions_denied",
            "Requests without a credential that opens what they ask for, by code.",
            ["code"],
            registry=self.registry,
        )
        for code in get_args(Denial):
            self.denied.labels(code)
        self.sessions_in_memory = Gauge(
            "trio_sessions_sessions_in_memory",
            "Sessions that are in memory; the others are in the journal until they are used.",
            registry=self.registry,
        )
        self.session_bytes = Gauge(
            "trio_sessions_session_bytes", "Memory that sessions take, as it is reckoned.", registry=self.registry
        )
        self.sessions_spilled = Counter(
            "trio_sessions_sessions_spilled", "Sessions that left memory for the journal.", registry=self.registry
        )
        self.sessions_loaded = Counter(
            "trio_sessions_sessions_loaded", "Sessions that came back from the journal.", registry=self.registry
        )
        self.sessions_expired = Counter(
            "trio_sessions_sessions_expired", "Sessions deleted because nobody used them.", registry=self.registry
        )
        self.sessions_lost = Counter(
            "trio_sessions_sessions_lost", "Sessions that were found damaged in the journal.", registry=self.registry
        )
        self.journal_seconds = Histogram(
            "trio_sessions_journal_seconds",
            "Time until an event was on the disk, of events that are waited for.",
            buckets=_OVERHEAD_BUCKETS,
            registry=self.registry,
        )
        self.journal_bytes = Counter(
            "trio_sessions_journal_bytes", "Bytes of events written to the journal.", registry=self.registry
        )
        self.journal_failures = Counter(
            "trio_sessions_journal_failures", "Writes to the journal that failed.", registry=self.registry
        )
        self.prompt_tokens = Counter(
            "trio_sessions_prompt_tokens", "Prompt tokens of committed turns.", registry=self.registry
        )
        self.sampled_tokens = Counter(
            "trio_sessions_sampled_tokens", "Sampled tokens of committed turns.", registry=self.registry
        )
        self.rollbacks = Counter("trio_sessions_rollbacks", "Checkpoints discarded by retries.", registry=self.registry)
        self.undelivered = Counter(
            "trio_sessions_undelivered_turns",
            "Answers of committed turns whose client went away before it had them; a retry may still get them.",
            registry=self.registry,
        )
        self.synthetic_tokens = Counter(
            "trio_sessions_synthetic_tokens",
            "Token ids added to close turns left open.",
            registry=self.registry,
        )
        self.replaced_tokens = Counter(
            "trio_sessions_replaced_tokens",
            "Sampled stop ids replaced by the opener of the next role.",
            registry=self.registry,
        )
        self.mismatches = Counter(
            "trio_sessions_mismatches",
            "Findings when served ids were compared with the canonical rendering.",
            ["type"],
            registry=self.registry,
        )
        for mismatch in get_args(MismatchType):
            self.mismatches.labels(mismatch)
        self.boundary_events = Counter(
            "trio_sessions_boundary_events",
            "What was declared at the seams before committed turns.",
            ["kind"],
            registry=self.registry,
        )
        for kind in get_args(BoundaryKind):
            self.boundary_events.labels(kind)
        # Memory, descriptors and processor time, under the names that all clients of Prometheus use.
        ProcessCollector(registry=self.registry)

    def count_turn(self, outcome: TurnOutcome) -> None:
        """One more turn ended with ``outcome``."""
        self._turns[outcome].inc()

    def count_refused(self, limit: Limit) -> None:
        """One more request or connection was refused, or ended, by ``limit``."""
        self._refused[limit].inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class LogWriter:
    """Writes lines to a stream from a thread, so that a log that nobody reads neither stops nor fails a turn.

    Lines that cannot be written, or that come while too many wait, are dropped.

    Args:
        stream: where to.
        waiting: how many lines may wait.
    """

    def __init__(self, stream: TextIO, *, waiting: int = 4096) -> None:
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(waiting)
        threading.Thread(target=self._write_forever, name="log writer", daemon=True).start()
        atexit.register(self.flush)

    def __call__(self, *_: Any) -> LogWriter:
        """The logger factory that structlog asks for."""
        return self

    def msg(self, line: str) -> None:
        """Queue one line."""
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    debug = info = warning = error = critical = exception = msg

    def flush(self, *, seconds: float = 1.0) -> None:
        """Wait until all lines are written, or ``seconds`` have passed."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, seconds)

    def _write_forever(self) -> None:
        while True:
            line = self._lines.get()
            # A closed or broken stream loses lines, and nothing else.
            with suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()
            self._lines.task_done()


class _FromLogging(logging.Handler):
    """Hands on what the HTTP server logs through the standard library: where it failed, not what it was told."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log = structlog.get_logger(record.name)
        if error is None:
            log.warning("http server", message=record.getMessage())
        else:
            stack = "".join(traceback.format_tb(error.__traceback__))
            log.error("http server", kind=type(error).__name__, stack=stack)


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send this process's log lines to stderr, as text for people or one JSON object a line.

    For a process of its own: it sets what structlog does for the whole process.
    """
    server = logging.getLogger("trio_sessions.hypercorn")
    server.handlers = [_FromLogging()]
    server.propagate = False
    renderer: Callable[..., str | bytes] = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=LogWriter(sys.stderr),
        cache_logger_on_first_use=False,
    )
