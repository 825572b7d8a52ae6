"""Parts of the service's tests: a gateway whose engine answers what a test says, and a place for its log lines."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from trio_sessions.config import Settings
from trio_sessions.engine.base import Engine
from trio_sessions.render.base import Renderer
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.replies import Reply
from trio_sessions.service.request import TurnRequest
from trio_sessions.service.session import Session
from trio_sessions.store import Store
from trio_sessions.testing.engine import HeldCall, HeldCalls, ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.dialects.chat import ChatDialect


async def described(gateway: Gateway, session: Session) -> bytes:
    """The body of a session's ``GET``."""
    return b"".join([piece async for piece in await gateway.inspector.describe(session)])


class Bench:
    """A gateway on a test bench.

    Attributes:
        engine: what it asks.
        now: the wall clock of new sessions.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        store: Store | None = None,
        clock: float = 1000.0,
        **settings: Any,
    ) -> None:
        numbers = itertools.count(1)
        self.engine = engine
        self.now = datetime(2025, 12, 31, 23, 59)
        self.gateway = Gateway(
            Settings(engine="http://unused", **settings),
            engine=engine,
            renderer=renderer,
            clock=lambda: clock,
            now=lambda: self.now,
            new_id=lambda: f"{next(numbers):032x}",
            store=store,
        )
        self.registry = self.gateway.registry

    async def turn(self, session: Session, *contents: str | dict[str, Any], **fields: Any) -> Reply:
        """One turn: texts are user messages."""
        messages = [{"role": "user", "content": item} if isinstance(item, str) else item for item in contents]
        return await self.raw_turn(session, json.dumps({"messages": messages, **fields}).encode())

    async def raw_turn(self, session: Session, body: bytes) -> Reply:
        request = TurnRequest(method="POST", query="", headers=(), body=body)
        return (await self.gateway.turns.run(session, request, ChatDialect())).reply

    async def described(self, session: Session) -> bytes:
        """The body of its ``GET``."""
        return await described(self.gateway, session)

    def outcomes(self) -> dict[str, int]:
        """How many turns ended how."""
        return {
            sample.labels["outcome"]: int(sample.value)
            for family in self.gateway.metrics.turns.collect()
            for sample in family.samples
            if sample.name.endswith("_total") and sample.value
        }

    def metric(self, name: str, **labels: str) -> float:
        value = self.gateway.metrics.registry.get_sample_value(f"trio_sessions_{name}", labels)
        return 0.0 if value is None else value


class HeldBench(Bench):
    """A bench whose engine answers when the test says so."""

    def __init__(self, renderer: Renderer, **settings: Any) -> None:
        self.calls = HeldCalls()
        super().__init__(ScriptedEngine(otherwise=self.calls), renderer, **settings)

    @property
    def call(self) -> HeldCall:
        """The only call that waits."""
        [call] = self.calls.waiting
        return call


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes a gateway from an engine's script."""

    def make(*script: Any, renderer: Renderer | None = None, **settings: Any) -> Bench:
        return Bench(ScriptedEngine(*script), renderer or ToyRenderer(), **settings)

    return make


@pytest.fixture
def held() -> HeldBench:
    return HeldBench(ToyRenderer())
