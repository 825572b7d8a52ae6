"""What the tests of the transport share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx
import trio
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.raw_server import Connection, RawServer
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


async def read_nothing(connection: Connection) -> None:
    """A handler that leaves a request where it is."""
    await trio.sleep_forever()


async def settled(server: RawServer, transport: TrioTransport) -> None:
    """Until the server has noticed which connections are closed: what is then open is idle in the pool."""
    while server.open != transport.idle:
        await wait_all_tasks_blocked(0.001)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """``data`` in pieces, none of them empty."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


LARGE = b"x" * (20 * 2**20)
"""More than the kernel takes of a request that nobody reads."""

FRAGMENTS = [
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 X\r\n", b"HTTP/1.0 204 X\r\n", b"\r\n", b"\n", b"\r", b" ", b"\x00"),
    *(b"content-length: 3\r\n", b"content-length: 99999999999999999999\r\n", b"connection: close\r\n", b"x: y\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffff\r\n", b"abc"),
]
HOSTILE = st.binary(max_size=200) | st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join)
"""What a server may send that means no good, or that does not know what it does."""
