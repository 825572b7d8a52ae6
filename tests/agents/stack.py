"""A gateway on a real port over an embedded engine on another, and all that the gateway was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import trio

from tests.agents.engine import Call, directed_engine
from tests.web.support import http_client
from trio_sessions.cli.resolve import resolve_settings
from trio_sessions.core.samples import Sample, decode_samples
from trio_sessions.engine.embedded import serve_engine
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.hosting import AppServer, bind
from trio_sessions.render.load import load_renderer
from trio_sessions.serve import gateway_app
from trio_sessions.service.gateway import Gateway

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

ENGINE_SECONDS = 60.0


@dataclass
class Exchange:
    """One request to the gateway, and the status of its answer.

    Attributes:
        method: of HTTP; ``WEBSOCKET`` for a handshake.
        path: without a query.
        headers: names in lower case.
        status: None while there is no answer.
        pieces: in how many the body of the answer was sent.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    status: int | None = None
    pieces: int = 0


class Recorder:
    """Notes every request on its way to ``app``."""

    def __init__(self, app: ASGIFramework) -> None:
        self.exchanges: list[Exchange] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"] if scope["type"] == "http" else "WEBSOCKET"
        exchange = Exchange(method, scope["path"], headers)
        self.exchanges.append(exchange)

        async def note_answer(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                exchange.status = event["status"]
            elif event["type"] == "http.response.body":
                exchange.pieces += bool(event["body"])
            await send(event)

        await self._app(scope, receive, note_answer)


@dataclass(frozen=True)
class Rollout:
    """What a session holds after an agent has run.

    Attributes:
        records: of its turns.
        metadata: of the session.
        samples: for training.
    """

    records: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Stack:
    """A gateway with one session.

    Attributes:
        gateway: what is served.
        port: where, on 127.0.0.1.
        session_url: what the agent is given.
        exchanges: what was asked below it, in order.
    """

    gateway: Gateway
    port: int
    session_url: str
    exchanges: list[Exchange]
    _client: httpx.AsyncClient

    def url_by_way_of(self, port: int) -> str:
        """The session behind another port."""
        return self.session_url.replace(f":{self.port}/", f":{port}/")

    async def rollout(self) -> Rollout:
        """Reads the session; what is noted of the agent's requests stays as it is."""
        noted = len(self.exchanges)
        state = (await self._client.get(self.session_url)).raise_for_status().json()
        payload = (await self._client.post(f"{self.session_url}/samples")).raise_for_status().content
        del self.exchanges[noted:]
        return Rollout(state["records"], state["metadata"], decode_samples(payload).samples)

    def count(self, name: str, **labels: str) -> float:
        """A metric of the gateway."""
        value = self.gateway.metrics.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value


@asynccontextmanager
async def stack(calls: Sequence[Call], *, thinks: bool, options: Sequence[str], latency: float) -> AsyncIterator[Stack]:
    """Serve a gateway with ``options`` of its command line, over an engine that makes these calls.

    Args:
        calls: what the engine's model calls.
        thinks: whether it thinks before.
        options: of the gateway.
        latency: seconds that every answer of the engine takes.
    """
    given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(*[iter(options)] * 2, strict=True)}
    settings = resolve_settings({**given, "port": "0"}, environment={}).settings
    engine = await trio.to_thread.run_sync(lambda: directed_engine(calls, thinks=thinks))
    renderer = await trio.to_thread.run_sync(load_renderer, "builtin")
    async with trio.open_nursery() as nursery:
        engine_url = await nursery.start(partial(serve_engine, engine, latency=latency))
        async with SGLangEngine(engine_url, timeout=ENGINE_SECONDS) as client:
            gateway = Gateway(settings, engine=client, renderer=renderer)
            recorder = Recorder(gateway_app(gateway))
            with bind("127.0.0.1", 0) as listener:
                port = listener.getsockname()[1]
                server = AppServer(recorder, listener)
                await nursery.start(server.run)
                async with http_client(port) as http:
                    session_id = (await http.post("/sessions")).json()["session_id"]
                    recorder.exchanges.clear()
                    url = f"http://127.0.0.1:{port}/sessions/{session_id}"
                    yield Stack(gateway, port, url, recorder.exchanges, http)
                await server.stop()
        nursery.cancel_scope.cancel()
