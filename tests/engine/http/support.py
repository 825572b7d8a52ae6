"""What the tests of the transport share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from trio.testing import wait_all_tasks_blocked

from tests.raw_server import RawServer
from trio_sessions.engine.http import TrioTransport


def open_sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def request(
    server: RawServer, *, method: str = "POST", content: Any = b"{}", headers: Any = (), **timeouts: float
) -> httpx.Request:
    """A request to ``server`` with those timeouts."""
    return httpx.Request(
        method, server.url, content=content, headers=list(headers), extensions={"timeout": timeouts} if timeouts else {}
    )


async def call(transport: TrioTransport, server: RawServer, **options: Any) -> bytes:
    """The body of the answer."""
    response = await transport.handle_async_request(request(server, **options))
    return await response.aread()


async def settled(server: RawServer, transport: TrioTransport) -> None:
    """Until the server has noticed which connections are closed: what is then open is idle in the pool."""
    while server.open != transport.state.idle:
        await wait_all_tasks_blocked(0.001)
