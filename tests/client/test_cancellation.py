"""Cancelling the asynchronous client: nothing is sent again, connections close, sessions are deleted."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from tests.client.scripted import SILENCE, Reply, Scripted
from trio_sessions.client import AsyncClient

BACKENDS = ("trio", "asyncio")
CREATED = Reply.json({"session_id": "abc"})


def run(backend, main):
    async def bounded():
        with anyio.fail_after(30):
            await main()

    anyio.run(bounded, backend=backend)


async def until_arrived(server: Scripted, count: int) -> None:
    for _ in range(count):
        assert await anyio.to_thread.run_sync(server.arrived.acquire, True, 20)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_turn_closes_its_connection_and_is_not_sent_again(server: Scripted, url: str, backend: str) -> None:
    server.script = [SILENCE]

    async def main():
        async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.attach("abc").chat, [])
            await until_arrived(server, 1)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(server.vanished.wait, 20)

    run(backend, main)
    assert len(server.received) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_block_deletes_its_session(server: Scripted, url: str, backend: str) -> None:
    server.script = [CREATED, Reply(204)]

    async def rollout(client, inside):
        async with client.session():
            inside.set()
            await anyio.sleep_forever()

    async def main():
        inside = anyio.Event()
        async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(rollout, client, inside)
            await inside.wait()
            tasks.cancel_scope.cancel()

    run(backend, main)
    assert server.lines == ["POST /sessions", "DELETE /sessions/abc"]


def test_a_task_that_asyncio_itself_cancels_deletes_its_session(server: Scripted, url: str) -> None:
    server.script = [CREATED, SILENCE, Reply(204)]

    async def rollout(client):
        async with client.session() as session:
            await session.chat([])

    async def main():
        async with AsyncClient(url) as client:
            task = asyncio.create_task(rollout(client))
            await until_arrived(server, 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert server.lines == ["POST /sessions", "POST /sessions/abc/v1/chat/completions", "DELETE /sessions/abc"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deletion_that_is_cancelled_is_finished(server: Scripted, url: str, backend: str) -> None:
    server.script = [CREATED, SILENCE, Reply(204)]

    async def rollout(client):
        async with client.session():
            pass

    async def main():
        async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(rollout, client)
            await until_arrived(server, 2)
            tasks.cancel_scope.cancel()

    run(backend, main)
    assert server.lines[1:] == ["DELETE /sessions/abc"] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_waiting_for_the_next_attempt_can_be_cancelled(server: Scripted, url: str, backend: str) -> None:
    server.script = [Reply(503)]

    async def main():
        waiting = anyio.Event()

        async def sleep(_: float) -> None:
            waiting.set()
            await anyio.sleep_forever()

        async with AsyncClient(url, sleep=sleep) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.health)
            await waiting.wait()
            tasks.cancel_scope.cancel()

    run(backend, main)
    assert len(server.received) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_turns_wait_at_the_same_time(server: Scripted, url: str, backend: str) -> None:
    everyone = threading.Barrier(150)

    def together(_):
        everyone.wait(20)
        return Reply.json({"choices": [{"message": {"role": "assistant", "content": "x"}}]})

    server.otherwise = together

    async def main():
        async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
            for number in range(150):
                tasks.start_soon(client.attach(str(number)).chat, [])

    run(backend, main)
    assert len(set(server.lines)) == 150
