"""What a call to the engine costs the gateway: the engine client against ``httpx.AsyncClient`` with its own pool.

``python -m benchmarks.engine_client [--quick]`` prints medians of CPU time per call of this process. The engine is a
process of its own that answers when all calls in flight have had the time to arrive, so that they really are.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from zlib import crc32

import httpx
import trio
from rich.console import Console
from rich.progress import track
from rich.table import Table

from trio_sessions.engine.base import Engine, EngineAnswer, EngineCall
from trio_sessions.engine.sglang import SGLangEngine

# So few that a client which costs little is idle for most of the time, and no queue forms.
_CALLS_PER_SECOND = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a client.

    Attributes:
        in_flight: calls at a time.
        calls: in one run.
        request_bytes: of each body sent.
        answer_bytes: of each body received.
    """

    in_flight: int
    calls: int
    request_bytes: int = 2_000
    answer_bytes: int = 4_000

    @property
    def latency(self) -> float:
        """Seconds that the engine takes to answer."""
        return 0.0 if self.in_flight == 1 else self.in_flight / _CALLS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Row:
    """Medians at one load, in milliseconds of CPU time per call.

    Attributes:
        load: which one.
        own_ms: the engine client.
        one_pool_ms: one ``httpx.AsyncClient``.
        sharded_ms: 16 of them, sessions spread over them.
    """

    load: Load
    own_ms: float
    one_pool_ms: float
    sharded_ms: float


LOADS = (
    Load(in_flight=1, calls=1_000),
    Load(in_flight=64, calls=1_000),
    Load(in_flight=256, calls=1_024),
    Load(in_flight=1024, calls=1_024),
    Load(in_flight=1, calls=40, request_bytes=400_000, answer_bytes=4_000_000),
)
QUICK = (Load(in_flight=1, calls=50), Load(in_flight=16, calls=100))


def measure(loads: Sequence[Load] = LOADS, *, repeats: int = 5) -> list[Row]:
    """One row a load; the clients take turns, so that all meet the same noise."""
    with _engine_process() as url:
        return [_row(url, load, repeats) for load in track(loads, description="measuring", transient=True)]


def _row(url: str, load: Load, repeats: int) -> Row:
    samples = [
        (
            trio.run(_cpu_ms, SGLangEngine(url, timeout=600), load),
            trio.run(_cpu_ms, _HttpxEngine(url, pools=1), load),
            trio.run(_cpu_ms, _HttpxEngine(url, pools=16), load),
        )
        for _ in range(repeats)
    ]
    own, one_pool, sharded = (statistics.median(column) for column in zip(*samples, strict=True))
    return Row(load=load, own_ms=own, one_pool_ms=one_pool, sharded_ms=sharded)


async def _cpu_ms(client: SGLangEngine | _HttpxEngine, load: Load) -> float:
    """CPU time per call, connecting left out."""
    async with client:
        await _run(client, load, calls=load.in_flight)
        began = time.process_time()
        await _run(client, load, calls=load.calls)
        return (time.process_time() - began) * 1000 / load.calls


async def _run(client: Engine, load: Load, *, calls: int) -> None:
    left = iter(range(calls))
    body = b" " * load.request_bytes

    async def one_after_another(session_id: str) -> None:
        for _ in left:
            answer = await client.call(
                EngineCall(
                    method="POST",
                    path=f"{load.answer_bytes}/{load.latency:g}",
                    query="",
                    headers=(("content-type", "application/json"), ("authorization", "Bearer x")),
                    body=body,
                    session_id=session_id,
                )
            )
            assert len(answer.body) == load.answer_bytes

    async with trio.open_nursery() as nursery:
        for number in range(load.in_flight):
            nursery.start_soon(one_after_another, f"{number:032x}")


class _HttpxEngine:
    """The same calls over httpx with the connection pools that it comes with."""

    def __init__(self, url: str, *, pools: int) -> None:
        self._url = url
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=1024, keepalive_expiry=4)
        self._clients = [
            httpx.AsyncClient(
                trust_env=False,
                verify=False,  # noqa: S501 - nothing here is encrypted, and loading certificates takes its time
                timeout=httpx.Timeout(None, connect=10),
                headers={"accept-encoding": "identity"},
                limits=limits,
            )
            for _ in range(pools)
        ]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> _HttpxEngine:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def call(self, request: EngineCall) -> EngineAnswer:
        client = self._clients[crc32(request.session_id.encode()) % len(self._clients)]
        with trio.fail_after(600):
            response = await client.request(
                request.method,
                f"{self._url}/{request.path}",
                content=request.body,
                headers=[*request.headers, ("X-SMG-Routing-Key", request.session_id)],
            )
        return EngineAnswer(
            status=response.status_code,
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw],
            body=response.content,
        )


class _Answering(asyncio.Protocol):
    """The least that answers: the path says how many bytes, and after how many seconds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = bytearray()
        self._missing = 0
        self._answer = b""
        self._latency = 0.0

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._buffer += data
            head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not found:
                return
            self._buffer.clear()
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._missing = int(length)
            _, size, latency = head.split(b" ", 2)[1].split(b"/")
            answer_bytes = int(size)
            self._latency = float(latency)
            self._answer = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: s\r\ncontent-length: %d\r\n\r\n%s"
                % (answer_bytes, b"x" * answer_bytes)
            )
            data = rest
        self._missing -= len(data)
        if not self._missing:
            asyncio.get_running_loop().call_later(self._latency, self._transport.write, self._answer)


def _serve(ready: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def _engine_process() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls, to see that it runs")
    quick = bool(parser.parse_args().quick)
    rows = measure(QUICK if quick else LOADS, repeats=1 if quick else 5)
    table = Table(
        "in flight", "sent", "received", "own, ms", "one pool, ms", "16 pools, ms", title="CPU per engine call"
    )
    for row in rows:
        table.add_row(
            str(row.load.in_flight),
            str(row.load.request_bytes),
            str(row.load.answer_bytes),
            f"{row.own_ms:.2f}",
            f"{row.one_pool_ms:.2f}",
            f"{row.sharded_ms:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
