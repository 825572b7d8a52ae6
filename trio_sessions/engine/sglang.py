"""The client for an engine, or a router of engines, that speaks SGLang's chat contract over HTTP."""

from __future__ import annotations

import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Self
from zlib import crc32

import httpx
import trio

from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.headers import to_engine
from trio_sessions.errors import EngineUnreachable

__all__ = ["SGLangEngine"]

# httpcore's pool looks at all its connections on every request, which costs more than the request itself once
# hundreds are in flight. Sessions are therefore spread over several pools.
_SHARDS: Final = 16
_CONNECT_TIMEOUT_SECONDS: Final = 10.0
# Below the five seconds of uvicorn, which engines are served by: a connection that it is about to close is not used.
_KEEP_ALIVE_SECONDS: Final = 4.0


class SGLangEngine:
    """Calls one base URL. Use as an async context manager.

    Args:
        base_url: ``http://host:port``, with or without a path.
        timeout: seconds until a call is given up, connecting included.
    """

    def __init__(self, base_url: str, *, timeout: float) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self._base_path = httpx.URL(self.base_url).raw_path.decode("ascii").rstrip("/")
        # One context for all: loading the certificate store is slow and the same for each.
        tls: ssl.SSLContext | bool = ssl.create_default_context() if base_url.startswith("https:") else False
        self._clients = [
            httpx.AsyncClient(
                # Proxies from the environment are for the outside world, not for an engine next door.
                trust_env=False,
                verify=tls,
                follow_redirects=False,
                timeout=httpx.Timeout(None, connect=min(_CONNECT_TIMEOUT_SECONDS, timeout)),
                # Compressing between neighbours costs both of them more than it saves.
                headers={"accept-encoding": "identity"},
                # What one session's answer sets is nothing to another's requests.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEEP_ALIVE_SECONDS
                ),
            )
            for _ in range(_SHARDS)
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Closing sockets must happen also when the block is left by cancellation.
        with trio.CancelScope(shield=True):
            for client in self._clients:
                await client.aclose()

    async def call(self, request: EngineCall) -> EngineAnswer:
        """See ``Engine.call``."""
        with trio.move_on_after(self.timeout):
            return await self._send(request)
        raise EngineUnreachable("ReadTimeout", f"the engine did not answer within {self.timeout:g} s")

    def _target(self, request: EngineCall) -> bytes:
        query = f"?{request.query}" if request.query else ""
        return f"{self._base_path}/{request.path}{query}".encode("latin-1")

    async def _send(self, request: EngineCall) -> EngineAnswer:
        client = self._clients[crc32(request.session_id.encode()) % _SHARDS]
        try:
            response = await client.request(
                request.method,
                self.base_url,
                # The target as it is: httpx would encode some characters of it once more.
                extensions={"target": self._target(request)},
                content=request.body,
                headers=[
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, value in to_engine(request.headers, session_id=request.session_id)
                ],
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachable(type(error).__name__, str(error)) from error
        return EngineAnswer(
            status=response.status_code,
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw],
            body=response.content,
        )
