"""The connections that are kept for the next request, and the slots for those in use.

Taking and giving back cost the same whatever their number. The connection used last is taken first, so that a load that
has gone down leaves the others to expire.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httpx
import trio

from trio_sessions.engine.http.wire import Origin, Wire

__all__ = ["Pool", "PoolState", "Slot"]


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a pool holds.

    Attributes:
        idle: connections kept.
        in_flight: requests that hold a slot.
        waiting: requests that wait for one.
    """

    idle: int
    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class _Idle:
    origin: Origin
    expires_at: float


class Slot:
    """The right of one request to use one connection at a time."""

    __slots__ = ("_limiter", "_pool", "_taken")

    def __init__(self, pool: Pool, limiter: trio.CapacityLimiter | None) -> None:
        self._pool = pool
        self._limiter = limiter
        self._taken = True

    def release(self) -> None:
        """Give it to whoever has waited longest. Releasing twice is no error."""
        if self._taken:
            self._taken = False
            self._pool._in_flight -= 1
            if self._limiter is not None:
                self._limiter.release_on_behalf_of(self)


class Pool:
    """Connections by origin.

    Connections that expire are closed also if no request ever comes again. One task does that for all of them, and it
    lives only while there is something to wait for. It is a system task, as a transport belongs to no nursery: httpx
    clients are often made and closed by hand.

    Args:
        max_idle: most connections to keep, over all origins; the one that was idle longest makes room.
        max_in_flight: most requests at a time; None for any number.
        keep_alive: seconds after which an idle connection is closed.
    """

    def __init__(self, *, max_idle: int, max_in_flight: int | None, keep_alive: float) -> None:
        self._max_idle: Final = max_idle
        self._keep_alive: Final = keep_alive
        self._limiter = None if max_in_flight is None else trio.CapacityLimiter(max_in_flight)
        # Both in the order in which connections were given back.
        self._idle: OrderedDict[Wire, _Idle] = OrderedDict()
        self._by_origin: dict[Origin, OrderedDict[Wire, None]] = {}
        self._in_flight = 0
        self._sweeping: trio.CancelScope | None = None
        self._closed = False

    @property
    def state(self) -> PoolState:
        """How many of what."""
        waiting = 0 if self._limiter is None else self._limiter.statistics().tasks_waiting
        return PoolState(idle=len(self._idle), in_flight=self._in_flight, waiting=waiting)

    async def slot(self, seconds: float | None) -> Slot:
        """A slot, in the order of asking. Without a limit, and while there are free ones, this does not wait.

        Raises:
            httpx.PoolTimeout: none was free for ``seconds``.
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the transport is closed")
        slot = Slot(self, self._limiter)
        if self._limiter is not None:
            await _acquire(self._limiter, slot, seconds)
        self._in_flight += 1
        return slot

    def take(self, origin: Origin) -> Wire | None:
        """The connection to ``origin`` that was used last, unless it has expired."""
        wires = self._by_origin.get(origin)
        if not wires:
            return None
        self._close_expired()
        if not wires:
            return None
        wire, _ = wires.popitem()
        del self._idle[wire]
        if not wires:
            del self._by_origin[origin]
        return wire

    def keep(self, origin: Origin, wire: Wire) -> None:
        """Keep a connection for the next request to ``origin``."""
        if self._closed or self._max_idle == 0:
            wire.close()
            return
        self._idle[wire] = _Idle(origin, trio.current_time() + self._keep_alive)
        self._by_origin.setdefault(origin, OrderedDict())[wire] = None
        if len(self._idle) > self._max_idle:
            self._close_oldest()
        if self._sweeping is None:
            self._sweeping = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._sweep, self._sweeping, name="close idle connections")

    def close(self) -> None:
        """Close what is idle now, and what is in flight as soon as it is given back. Closing twice is no error."""
        self._closed = True
        while self._idle:
            self._close_oldest()
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while self._idle:
                    await trio.sleep_until(self._expiry_of_oldest())
                    self._close_expired()
        finally:
            self._sweeping = None
            # There are some still if trio itself comes to its end, and then nobody else can close them.
            while self._idle:
                self._close_oldest()

    def _expiry_of_oldest(self) -> float:
        return next(iter(self._idle.values())).expires_at

    def _close_expired(self) -> None:
        now = trio.current_time()
        while self._idle and self._expiry_of_oldest() <= now:
            self._close_oldest()

    def _close_oldest(self) -> None:
        wire, idle = self._idle.popitem(last=False)
        wires = self._by_origin[idle.origin]
        del wires[wire]
        if not wires:
            del self._by_origin[idle.origin]
        wire.close()


async def _acquire(limiter: trio.CapacityLimiter, slot: Slot, seconds: float | None) -> None:
    # A timeout costs more than taking what is free, and this raises only if nothing is or others wait already.
    with suppress(trio.WouldBlock):
        limiter.acquire_on_behalf_of_nowait(slot)
        return
    with trio.move_on_after(float("inf") if seconds is None else seconds) as waiting:
        await limiter.acquire_on_behalf_of(slot)
    if waiting.cancelled_caught:
        raise httpx.PoolTimeout(f"no connection was free for {seconds:g} s")
