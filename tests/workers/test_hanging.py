"""A worker that hangs: its port takes connections, and nobody answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from tests.raw_server import Connection, RawServer, ReceivedRequest, serving
from tests.web.support import settle, until
from tests.workers.cluster import Cluster, cluster


@dataclass(frozen=True)
class Hanging:
    """Two workers, of which the second hangs.

    Attributes:
        cluster: the first is the one to ask.
        second: what the other's port is.
        asked: what it was asked so far.
    """

    cluster: Cluster
    second: RawServer
    asked: list[ReceivedRequest]

    @property
    def client(self) -> httpx.AsyncClient:
        return self.cluster.served[0].client

    @property
    def created(self) -> int:
        """How many sessions the first has."""
        return len(self.cluster.served[0].gateway.registry)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """Time goes on as ever, and can be made to jump."""
    mock_clock.rate = 1
    return mock_clock


@asynccontextmanager
async def hanging() -> AsyncIterator[Hanging]:
    asked = []

    async def hang(connection: Connection) -> None:
        request = await connection.read()
        if request is not None:
            asked.append(request)
            await connection.until_closed()

    async with serving(hang, patience=30) as second, cluster(urls=["http://127.0.0.1:9", second.url]) as made:
        yield Hanging(made, second, asked)


async def test_its_share_of_new_sessions_goes_to_the_next(clock: MockClock) -> None:
    async with hanging() as workers:
        answers = []

        async def create() -> None:
            answers.append(await workers.client.post("/sessions"))

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(create)
            await until(lambda: len(workers.asked) == len(answers) == 1)
            await settle()
            assert len(answers) == 1
            clock.jump(5)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {workers.cluster.owner(answer.json()["session_id"]) for answer in answers} == {0}
        assert workers.created == 2
        await until(lambda: not workers.second.open)


async def test_a_client_that_goes_meanwhile_gets_no_session(clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with hanging() as workers:
        await workers.client.post("/sessions")
        async with workers.cluster.served[0].raw_client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.post, "/sessions")
            await until(lambda: bool(workers.asked))
            nursery.cancel_scope.cancel()
        await until(lambda: not workers.second.open)
        await settle()
        assert workers.created == 1
    assert caplog.records == []


async def test_metrics_are_those_of_the_others(clock: MockClock) -> None:
    async with hanging() as workers:
        answers = []

        async def scrape() -> None:
            answers.append(await workers.client.get("/metrics"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrape)
            await until(lambda: bool(workers.asked))
            await settle()
            assert answers == []
            clock.jump(3)
        assert answers[0].status_code == 200
        samples = [sample for family in text_string_to_metric_families(answers[0].text) for sample in family.samples]
        told = {sample.labels["worker"] for sample in samples if not sample.name.startswith("trio_sessions_worker_")}
        assert told == {"0"}
        await until(lambda: not workers.second.open)
