"""A gateway on a real port, and what tests need to talk to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import trio
import trio.testing

from trio_sessions.config import Settings
from trio_sessions.hosting import AppServer, ConnectionLimits, bind, hypercorn_config
from trio_sessions.serve import connection_limits, gateway_app
from trio_sessions.service.gateway import Gateway
from trio_sessions.store import Store
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import TOY_END, TOY_START, ToyRenderer

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

LIMIT_SECONDS = 20.0
"""Nothing in these tests may take longer."""

CHAT = "v1/chat/completions"


@dataclass(frozen=True)
class Served:
    """A gateway that answers.

    Attributes:
        gateway: what is served.
        engine: what it asks.
        server: what takes its connections.
        limits: what these may take.
        port: where it listens on 127.0.0.1.
        client: a real client, its base URL set.
    """

    gateway: Gateway
    engine: ScriptedEngine
    server: AppServer
    limits: ConnectionLimits
    port: int
    client: httpx.AsyncClient

    async def session(self) -> Session:
        """A new session."""
        return Session(self, (await self.client.post("/sessions")).json()["session_id"])

    async def connect(self) -> RawConnection:
        """A connection to send bytes over that no client would."""
        return RawConnection(await trio.open_tcp_stream("127.0.0.1", self.port))

    def raw_client(self) -> httpx.AsyncClient:
        """Another client, for requests that are to be abandoned."""
        return http_client(self.port)


class Serve(Protocol):
    """Starts a gateway that runs until the test ends."""

    async def __call__(
        self,
        engine: Any = None,
        *,
        renderer: Any = None,
        clock: Callable[[], float] | None = None,
        store: Store | None = None,
        **settings: Any,
    ) -> Served:
        """``settings`` are those of ``Settings``."""


@dataclass(frozen=True)
class Session:
    """A session of a gateway."""

    served: Served
    id: str

    @property
    def path(self) -> str:
        return f"/sessions/{self.id}"

    async def post(self, body: bytes, *, headers: Any = None, query: str = "") -> httpx.Response:
        """A turn with this body, whatever it is."""
        return await self.served.client.post(f"{self.path}/{CHAT}{query}", content=body, headers=headers)

    async def chat(self, *messages: Any, headers: Any = None, **fields: Any) -> httpx.Response:
        """A turn."""
        return await self.post(json.dumps({"messages": list(messages), **fields}).encode(), headers=headers)

    async def turn(self, *messages: Any, **fields: Any) -> dict[str, Any]:
        """A turn that must be answered 200; its assistant message."""
        response = await self.chat(*messages, **fields)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    async def state(self) -> bytes:
        """The body of ``GET /sessions/{id}``."""
        response = await self.served.client.get(self.path)
        assert response.status_code == 200, response.text
        return response.content

    async def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = json.loads(await self.state())["records"]
        return records

    async def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(await self.state())["metadata"]
        return metadata

    async def delete(self) -> httpx.Response:
        return await self.served.client.delete(self.path)

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """What happens inside leaves the session as it is, to the byte."""
        before = await self.state()
        yield
        assert await self.state() == before


@dataclass(frozen=True)
class RawResponse:
    """A response as it stood on the wire.

    Attributes:
        version: of HTTP, such as ``HTTP/1.1``.
        status: status code.
        headers: names as they came, in order.
        body: the body.
    """

    version: str
    status: int
    headers: list[tuple[str, bytes]]
    body: bytes

    def all(self, name: str) -> list[bytes]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]


def tasks() -> int:
    """How many tasks there are."""

    def below(task: trio.lowlevel.Task) -> int:
        return 1 + sum(below(child) for nursery in task.child_nurseries for child in nursery.child_tasks)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return below(root)


class RawConnection:
    """A TCP connection that speaks HTTP/1 only as far as a test wants."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = b""

    async def __aenter__(self) -> RawConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def send(self, *segments: bytes) -> None:
        """Each in a segment of its own, the server having seen the one before."""
        for index, segment in enumerate(segments):
            if index:
                await settle()
            await self._stream.send_all(segment)

    def unread(self, data: bytes) -> None:
        """Give back what was taken from the stream."""
        self._received = data + self._received

    async def response(self, *, to: str = "GET") -> RawResponse:
        """The next response, interim ones skipped."""
        with trio.fail_after(LIMIT_SECONDS):
            while True:
                head = await self._until(b"\r\n\r\n")
                status_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
                version, status, *_ = status_line.split(" ", 2)
                if status.startswith("1"):
                    continue
                headers = [
                    (name, value.strip().encode("latin-1")) for name, value in (line.split(":", 1) for line in lines)
                ]
                response = RawResponse(version, int(status), headers, b"")
                if to == "HEAD" or status in ("204", "304"):
                    return response
                lengths, codings = response.all("content-length"), response.all("transfer-encoding")
                assert len(lengths) + len(codings) == 1, f"not framed in one way: {head!r}"
                body = await (self._exactly(int(lengths[0])) if lengths else self._chunks())
                return RawResponse(version, int(status), headers, body)

    async def interim(self) -> bytes:
        """The status line of an interim response."""
        with trio.fail_after(LIMIT_SECONDS):
            return (await self._until(b"\r\n\r\n")).partition(b"\r\n")[0]

    async def closed(self) -> bool:
        """Wait until the server closes the connection; whether nothing came before that."""
        with trio.fail_after(LIMIT_SECONDS):
            try:
                return await self._stream.receive_some() == b"" and not self._received
            except trio.BrokenResourceError:
                return not self._received

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            await self._receive()
        head, _, self._received = self._received.partition(mark)
        return head + mark

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._receive()
        body, self._received = self._received[:size], self._received[size:]
        return body

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._until(b"\r\n"), 16):
            body += await self._exactly(size)
            assert await self._exactly(2) == b"\r\n"
        assert await self._exactly(2) == b"\r\n"
        return body

    async def _receive(self) -> None:
        chunk = await self._stream.receive_some()
        assert chunk, f"the connection was closed after {self._received!r}"
        self._received += chunk


def http_client(port: int) -> httpx.AsyncClient:
    """A real client of a server on 127.0.0.1."""
    # Loading certificates costs more than most of these tests.
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_SECONDS, trust_env=False, verify=False)


@asynccontextmanager
async def serving(
    engine: Any = None,
    *,
    renderer: Any = None,
    clock: Callable[[], float] | None = None,
    store: Store | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A gateway as ``trio_sessions.serve`` runs it, on a free port."""
    engine = ScriptedEngine() if engine is None else engine
    gateway = Gateway(
        Settings(port=0, **settings),
        engine=engine,
        renderer=renderer or ToyRenderer(),
        store=store,
        **({} if clock is None else {"clock": clock}),
    )
    with bind("127.0.0.1", 0) as listener:
        limits = connection_limits(gateway)
        server = AppServer(gateway_app(gateway), listener, limits=limits)
        port = listener.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            async with http_client(port) as client:
                yield Served(gateway, engine, server, limits, port, client)
            await server.stop()


@asynccontextmanager
async def serving_app(app: ASGIFramework, *, keep_alive: float) -> AsyncIterator[int]:
    """Hypercorn as the gateway configures it, except for the idle time, over any application; its port."""
    config = hypercorn_config()
    config.keep_alive_timeout = keep_alive
    with bind("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(AppServer(app, listener, config).run)
            yield listener.getsockname()[1]
            # A connection that is stuck is what some tests provoke; it need not be waited for.
            nursery.cancel_scope.cancel()


def assert_error(response: httpx.Response, status: int, text: str) -> None:
    """``{"error": text}``, to the byte."""
    expected = json.dumps({"error": text}, ensure_ascii=False, separators=(",", ":")).encode()
    assert (response.status_code, response.content) == (status, expected)
    assert response.headers["content-type"] == "application/json"


def error_text(response: httpx.Response, status: int) -> str:
    """The text of an error that must have this status and nothing besides its text."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert response.content == compact(body)
    assert isinstance(body["error"], str)
    return body["error"]


def compact(value: Any) -> bytes:
    """JSON without spaces, non-ASCII text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def spelled(*messages: dict[str, Any]) -> list[int]:
    """The toy format, said once more: ``<start>``, role, line feed, content, ``<end>``; one id a byte."""
    return [
        id_
        for message in messages
        for id_ in (TOY_START, *f"{message['role']}\n{message.get('content') or ''}".encode(), TOY_END)
    ]


OPENER = [TOY_START, *b"assistant\n"]
"""What a prompt ends with."""


async def settle() -> None:
    """Until no task of the process has anything to do; what was sent has then arrived and been looked at."""
    with trio.fail_after(LIMIT_SECONDS):
        await trio.testing.wait_all_tasks_blocked(0.02)


async def until(holds: Callable[[], bool], *, seconds: float = LIMIT_SECONDS) -> None:
    """Give the others a chance until it holds."""
    with trio.fail_after(seconds):
        # What is waited for are facts of the service, which has no events for tests.
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.002)


async def gather(*functions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run them at the same time; their results in order."""
    results: list[Any] = [None] * len(functions)

    async def run(index: int) -> None:
        results[index] = await functions[index]()

    async with trio.open_nursery() as nursery:
        for index in range(len(functions)):
            nursery.start_soon(run, index)
    return results
