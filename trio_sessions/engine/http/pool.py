"""The connections that are kept for the next request.

Taking and giving back cost the same whatever their number. The connection used last is taken first, so that a load that
has gone down leaves the others to expire.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import trio

from trio_sessions.engine.http.wire import Origin, Wire

__all__ = ["Pool"]


@dataclass(frozen=True, slots=True)
class _Idle:
    origin: Origin
    expires_at: float


class Pool:
    """Connections by origin.

    Connections that expire are closed also if no request ever comes again. One task does that for all of them, and it
    lives only while there is something to wait for. It is a system task, as a transport belongs to no nursery: httpx
    clients are often made and closed by hand.

    Args:
        max_idle: most connections to keep, over all origins; the one that was idle longest makes room.
        keep_alive: seconds after which an idle connection is closed.
    """

    def __init__(self, *, max_idle: int, keep_alive: float) -> None:
        self._max_idle: Final = max_idle
        self._keep_alive: Final = keep_alive
        # Both in the order in which connections were given back.
        self._idle: OrderedDict[Wire, _Idle] = OrderedDict()
        self._by_origin: dict[Origin, OrderedDict[Wire, None]] = {}
        self._sweeping: trio.CancelScope | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it keeps nothing any more."""
        return self._closed

    @property
    def idle(self) -> int:
        """How many connections are kept."""
        return len(self._idle)

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
        """Close what is idle now, and what is in use as soon as it is given back. Closing twice is no error."""
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
