"""One request, in trio: the wait, the fault, the worker thread, the counters.

The HTTP application and the in-process engine share it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from trio_sessions.engine.embedded.chat import Cut, EmbeddedEngine
from trio_sessions.engine.embedded.faults import Fault, damaged, parse_fault
from trio_sessions.engine.embedded.reply import EngineReply, error_reply

__all__ = ["BrokenOff", "Desk", "Stats"]

_GENERATES: Final = frozenset({"v1/chat/completions", "v1/completions"})
# What does not generate must not wait behind what does.
_OTHER_THREADS: Final = 2


@dataclass(slots=True)
class Stats:
    """Counters of the requests that generate.

    Attributes:
        requests: requests that came in.
        completed: those that were answered, with whatever status.
        cancelled: those whose client went away or whose caller was cancelled.
        in_flight: those still being answered.
    """

    requests: int = 0
    completed: int = 0
    cancelled: int = 0
    in_flight: int = 0

    def encoded(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(
            {
                "requests": self.requests,
                "completed": self.completed,
                "cancelled": self.cancelled,
                "in_flight": self.in_flight,
            }
        )


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """An answer whose connection has to break in the middle of the body.

    Attributes:
        reply: what would have been sent.
    """

    reply: EngineReply


class Desk:
    """Answers requests with an engine.

    Args:
        engine: computes the answers, in worker threads.
        latency: seconds to wait before each generated answer.
        fault: strikes generating requests that name no fault of their own.
    """

    def __init__(self, engine: EmbeddedEngine, *, latency: float = 0.0, fault: Fault | None = None) -> None:
        self.engine = engine
        self.stats = Stats()
        self._latency = latency
        self._fault = fault
        self._generating = trio.CapacityLimiter(engine.language.threads)
        self._other = trio.CapacityLimiter(_OTHER_THREADS)

    async def answer(
        self, method: str, path: str, body: bytes, *, fault_spec: str | None = None
    ) -> EngineReply | BrokenOff:
        """The answer to one request; a cancelled call is counted, and its thread told to give up.

        Args:
            method: HTTP method.
            path: without a query.
            body: the whole body.
            fault_spec: a fault for this request only.
        """
        path = path.strip("/")
        if path == "engine/stats":
            return EngineReply(200, (("content-type", "application/json"),), self.stats.encoded())
        generates = method.upper() == "POST" and path in _GENERATES
        try:
            own = parse_fault(fault_spec) if fault_spec else None
        except ValueError as error:
            return error_reply(400, str(error))
        if not generates:
            return await self._compute(method, path, body, own, self._other)
        self.stats.requests += 1
        fault = own or self._fault
        if fault is not None and not fault.strikes(self.stats.requests):
            fault = None
        self.stats.in_flight += 1
        try:
            if self._latency:
                await trio.sleep(self._latency)
            reply = await self._compute(method, path, body, fault, self._generating)
        except trio.Cancelled:
            self.stats.cancelled += 1
            raise
        else:
            self.stats.completed += 1
            return reply
        finally:
            self.stats.in_flight -= 1

    async def _compute(
        self, method: str, path: str, body: bytes, fault: Fault | None, limiter: trio.CapacityLimiter
    ) -> EngineReply | BrokenOff:
        cut: Cut | None = None
        if fault is not None:
            if fault.kind == "hang":
                await trio.sleep_forever()
            if fault.kind == "slow":
                await trio.sleep(fault.seconds)
            cut = "length" if fault.kind == "length" else "abort" if fault.kind == "abort" else None
        given_up = threading.Event()
        try:
            # An abandoned thread keeps its place in the limiter until it ends.
            reply = await trio.to_thread.run_sync(
                partial(self.engine.handle, method, path, body, cut=cut, given_up=given_up.is_set),
                abandon_on_cancel=True,
                limiter=limiter,
            )
        finally:
            given_up.set()
        if fault is None:
            return reply
        return BrokenOff(reply) if fault.kind == "disconnect" else damaged(fault, reply)
