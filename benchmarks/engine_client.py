"""What a call to the engine costs the gateway: the engine client against ``httpx.AsyncClient`` with its own pool.

The engine is a process of its own that answers when all calls in flight have had the time to arrive, so that they
really are.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final
from zlib import crc32

import httpx
import trio

from benchmarks.figures import Row, Table, figure, ratio
from benchmarks.options import Options
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.sglang import SGLangEngine

__all__ = ["measure"]

PART: Final = "engine"
_REPEATS: Final = 3
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


LOADS = (
    Load(in_flight=1, calls=1_000),
    Load(in_flight=64, calls=1_000),
    Load(in_flight=256, calls=1_024),
    Load(in_flight=1024, calls=1_024),
    Load(in_flight=1, calls=40, request_bytes=400_000, answer_bytes=4_000_000),
)
QUICK = (Load(in_flight=1, calls=50), Load(in_flight=16, calls=100))


def measure(options: Options) -> list[Table]:
    """One row a load; the clients take turns, so that all meet the same noise."""
    with _engine_process() as url:
        rows = [_row(url, load, options) for load in (QUICK if options.quick else LOADS)]
    return [Table(PART, "processor time of one engine call", tuple(rows))]


def _row(url: str, load: Load, options: Options) -> Row:
    options.show.step(f"{load.in_flight:,} engine calls in flight, answers of {load.answer_bytes:,} bytes")
    samples = [
        (
            trio.run(_cpu_ms, SGLangEngine(url, timeout=600), load),
            trio.run(_cpu_ms, _HttpxEngine(url, pools=1), load),
            trio.run(_cpu_ms, _HttpxEngine(url, pools=16), load),
        )
        for _ in range(options.times(_REPEATS))
    ]
    own, one_pool, sharded = (figure(column) for column in zip(*samples, strict=True))
    return Row(
        {
            "in flight": f"{load.in_flight:,}",
            "sent": f"{load.request_bytes:,} B",
            "received": f"{load.answer_bytes:,} B",
        },
        {
            "own_ms": own,
            "one_httpx_pool_ms": one_pool,
            "sixteen_httpx_pools_ms": sharded,
            "own_to_one_pool": ratio(own, one_pool),
        },
    )


async def _cpu_ms(client: SGLangEngine | _HttpxEngine, load: Load) -> float:
    """CPU time per call, connecting left out."""
    async with client:
        await _run(client, load, calls=load.in_flight)
        began = time.process_time()
        await _run(client, load, calls=load.calls)
        return (time.process_time() - began) * 1000 / load.calls


async def _run(client: SGLangEngine | _HttpxEngine, load: Load, *, calls: int) -> None:
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
