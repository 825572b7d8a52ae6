"""One scenario for three clients: the blocking one, and the asynchronous one under trio and under asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from trio_sessions.client import AsyncClient, Client, Session

KINDS = ("blocking", "trio", "asyncio")
LIMIT_SECONDS = 30.0

Scenario = Callable[[Any], Awaitable[Any]]


@dataclass
class Driver:
    """Runs scenarios.

    Attributes:
        kind: one of ``KINDS``.
        delays: what the client would have slept; nothing sleeps.
        asleep: called instead of sleeping.
    """

    kind: str
    delays: list[float] = field(default_factory=list)
    asleep: Callable[[], Any] = lambda: None

    def run(self, url: str, scenario: Scenario, **options: Any) -> Any:
        """What ``scenario`` returns for a client of ``url``."""
        options = {"jitter": lambda: 1.0, "timeout": LIMIT_SECONDS, **options}

        async def main() -> Any:
            with anyio.fail_after(LIMIT_SECONDS):
                if self.kind == "blocking":
                    with Client(url, sleep=self._sleep, **options) as client:
                        return await scenario(_Awaited(client))
                async with AsyncClient(url, sleep=self._sleep_async, **options) as client:
                    return await scenario(client)

        return anyio.run(main, backend="asyncio" if self.kind == "asyncio" else "trio")

    def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.asleep()

    async def _sleep_async(self, seconds: float) -> None:
        self._sleep(seconds)
        await anyio.lowlevel.checkpoint()


class _Awaited:
    """The blocking client behind the asynchronous one's face."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        async def call(*args: Any, **fields: Any) -> Any:
            return _wrapped(value(*args, **fields))

        return call

    def attach(self, session_id: str) -> Any:
        return _wrapped(self._inner.attach(session_id))

    def base_urls(self, **fields: Any) -> Any:
        return self._inner.base_urls(**fields)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        with self._inner.session() as session:
            yield _Awaited(session)


def _wrapped(value: Any) -> Any:
    return _Awaited(value) if isinstance(value, Session) else value
