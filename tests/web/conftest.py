from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from tests.web.support import LIMIT_SECONDS, Serve, Served, Session, serving
from tests.web.wire_engine import WireEngine, wire_engine
from trio_sessions.engine.sglang import SGLangEngine


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts gateways, and bounds the test: past the limit it is cancelled and fails."""
    done = trio.Event()

    async def run(*, task_status: trio.TaskStatus[Served], **options: Any) -> None:
        async with serving(**options) as served:
            task_status.started(served)
            await done.wait()

    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:

            async def start(engine: Any = None, **options: Any) -> Served:
                served: Served = await nursery.start(partial(run, engine=engine, **options))
                return served

            yield start
            done.set()


@pytest.fixture
async def served(serve: Serve) -> Served:
    """A gateway with the default settings, over an engine that answers ``ok``."""
    return await serve()


@pytest.fixture
async def session(served: Served) -> Session:
    """A session of it."""
    return await served.session()


@pytest.fixture
async def wire() -> AsyncIterator[WireEngine]:
    """An engine behind a real port, that keeps what it received to the byte."""
    async with wire_engine() as engine:
        yield engine


@pytest.fixture
async def over_http(serve: Serve, wire: WireEngine) -> AsyncIterator[Served]:
    """A gateway that asks ``wire`` with its real client."""
    async with SGLangEngine(wire.url, timeout=LIMIT_SECONDS) as engine:
        yield await serve(engine)
