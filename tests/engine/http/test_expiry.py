"""Idle connections expire: they are not used, and they are closed also when no request comes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.http.support import call, open_sockets
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.http import TrioTransport

# Bounds tests that jump the clock.
PATIENCE = 1000


@pytest.fixture
def clock() -> MockClock:
    """Stands still unless it is told otherwise."""
    return MockClock()


def _sweepers() -> int:
    """How many tasks close idle connections now."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return sum(
        task.name == "close idle connections" for nursery in root.child_nurseries for task in nursery.child_tasks
    )


async def test_they_are_closed_when_no_request_comes(clock):
    async with serving(response(), patience=PATIENCE) as server, TrioTransport(keep_alive=4) as transport:
        before = open_sockets()
        await call(transport, server)
        clock.jump(3.9)
        await wait_all_tasks_blocked(0.01)
        assert transport.idle == 1
        clock.jump(0.1)
        await wait_all_tasks_blocked(0.01)
        assert transport.idle == 0
        assert open_sockets() == before


async def test_one_task_closes_them_and_only_while_there_are_any(clock):
    together = trio.Event()

    async def handler(connection: Connection) -> None:
        while await connection.read() is not None:
            await together.wait()
            await connection.send(response())

    async with serving(handler, patience=PATIENCE) as server, TrioTransport(keep_alive=4) as transport:
        assert _sweepers() == 0
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(call, transport, server)
                await wait_all_tasks_blocked(0.01)
                together.set()
            assert (transport.idle, _sweepers()) == (10, 1)
            clock.jump(4)
            await wait_all_tasks_blocked(0.01)
            assert (transport.idle, server.open, _sweepers()) == (0, 0, 0)


async def test_each_expires_in_its_own_time(clock):
    async with (
        serving(response(), patience=PATIENCE) as one,
        serving(response(), patience=PATIENCE) as two,
        TrioTransport(keep_alive=4) as transport,
    ):
        await call(transport, one)
        clock.jump(3)
        await call(transport, two)
        clock.jump(1)
        await wait_all_tasks_blocked(0.01)
        assert (transport.idle, one.open, two.open) == (1, 0, 1)
        # What is used again lives on.
        clock.jump(2.5)
        await call(transport, two)
        clock.jump(2.5)
        await wait_all_tasks_blocked(0.01)
        assert two.connections == two.open == 1
        clock.jump(1.5)
        await wait_all_tasks_blocked(0.01)
        assert two.open == 0


async def test_one_that_has_expired_is_not_used_although_it_is_still_open(clock):
    async with serving(response(), patience=PATIENCE) as server, TrioTransport(keep_alive=4) as transport:
        await call(transport, server)
        # Nothing has run between this and the call but the call.
        clock.jump(4)
        await call(transport, server)
        assert server.connections == 2


async def test_closing_the_transport_ends_the_task(clock):
    async with serving(response(), patience=PATIENCE) as server:
        async with TrioTransport(keep_alive=4) as transport:
            await call(transport, server)
            assert _sweepers() == 1
        await wait_all_tasks_blocked(0.01)
        assert _sweepers() == 0


def test_a_transport_that_nobody_closes_does_not_keep_trio_running():
    async def main() -> TrioTransport:
        async with serving(response()) as server:
            transport = TrioTransport(keep_alive=1000)
            await call(transport, server)
            return transport

    # The task that waits for the connection's end is no reason to stay, and closes it on its way out.
    before = open_sockets()
    assert trio.run(main).idle == 0
    assert open_sockets() == before
