"""A request that is cancelled, wherever it is, leaves nothing behind: no socket, no next request spoilt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.engine.http.conftest import Tls
from tests.engine.http.support import call, open_sockets, request
from tests.raw_server import Connection, Handler, RawServer, response, serving
from trio_sessions.engine.http import TrioTransport

# For all the places of one scenario together.
PATIENCE = 60
# For one of them.
PATIENCE_FOR_ONE = 5
LARGE = b"x" * (8 * 2**20)
"""More than the kernel takes at once."""

Scenario = Callable[[TrioTransport, RawServer], Awaitable[object]]


class CancelAt(trio.abc.Instrument):
    """Cancels ``scope`` when the task that made this, or a task below it, stops to wait for the ``place``-th time."""

    def __init__(self, scope: trio.CancelScope, place: int) -> None:
        self._root = trio.lowlevel.current_task()
        self._scope = scope
        self._place = place
        self.places = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_below(task):
            self.places += 1
            if self.places == self._place:
                self._scope.cancel()

    def _is_below(self, task: trio.lowlevel.Task | None) -> bool:
        while task is not None and task is not self._root:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is self._root


async def cancel_at(place: int, scenario: Callable[[], Awaitable[object]]) -> bool:
    """Run ``scenario`` and cancel it there, at 0 before it begins; whether it got as far as that."""
    reached = False
    ended = trio.Event()

    async def run() -> None:
        nonlocal reached
        scope = trio.CancelScope()
        instrument = CancelAt(scope, place)
        trio.lowlevel.add_instrument(instrument)
        if place == 0:
            scope.cancel()
        with scope:
            await scenario()
        trio.lowlevel.remove_instrument(instrument)
        reached = instrument.places >= place
        ended.set()

    # In a task of its own, as the server's are below this one.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await ended.wait()
    return reached


async def left_with(server: RawServer, transport: TrioTransport, others: int) -> None:
    """Until nothing is open but the ``others`` and both sides of what is idle; it is an error if that never comes."""
    idle = transport.idle
    with trio.move_on_after(2):
        while (server.open, open_sockets()) != (idle, others + 2 * idle):
            await wait_all_tasks_blocked(0.001)
    assert (server.open, open_sockets()) == (idle, others + 2 * idle)


async def slowly(connection: Connection, *pieces: bytes) -> None:
    """Send, so that each piece is waited for."""
    for piece in pieces:
        await wait_all_tasks_blocked()
        await connection.send(piece)


async def with_length(connection: Connection) -> None:
    while await connection.read() is not None:
        await slowly(
            connection, b"HTTP/1.1 100 X\r\n\r\nHTTP/1.1 200 X\r\n", b"content-length: 4\r\n\r\nab", b"c", b"d"
        )


async def chunked(connection: Connection) -> None:
    while await connection.read() is not None:
        head = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n"
        await slowly(connection, head, b"2\r\nab\r\n", b"2\r\nc", b"d\r\n", b"0\r\n\r\n")


async def until_the_end(connection: Connection) -> None:
    if await connection.read() is not None:
        await slowly(connection, b"HTTP/1.1 200 X\r\n\r\nab", b"cd")


async def without_body(connection: Connection) -> None:
    while await connection.read() is not None:
        await slowly(connection, b"HTTP/1.1 204 X\r\n", b"\r\n")


async def early(connection: Connection) -> None:
    if await connection.read_some():
        await slowly(connection, response(b"ab", status="413 X")[:-1], b"b")
        await connection.until_closed()


async def small(transport: TrioTransport, server: RawServer) -> None:
    await call(transport, server)


async def large(transport: TrioTransport, server: RawServer) -> None:
    await call(transport, server, content=LARGE)


async def medium(transport: TrioTransport, server: RawServer) -> None:
    await call(transport, server, content=b"x" * 200_000)


async def generated(transport: TrioTransport, server: RawServer) -> None:
    async def pieces():
        for _ in range(3):
            yield b"x" * 1000
            await trio.lowlevel.checkpoint()

    async with aclosing(pieces()) as content:
        await call(transport, server, content=content)


async def endless(transport: TrioTransport, server: RawServer) -> None:
    async def pieces():
        while True:
            yield b"x" * 100_000

    async with aclosing(pieces()) as content:
        await call(transport, server, content=content)


async def timed(transport: TrioTransport, server: RawServer) -> None:
    await call(transport, server, connect=9, read=9, write=9)


async def by_name(transport: TrioTransport, server: RawServer) -> None:
    url = server.url.replace("127.0.0.1", "localhost")
    await (await transport.handle_async_request(httpx.Request("POST", url, content=b"{}"))).aread()


async def closed_early(transport: TrioTransport, server: RawServer) -> None:
    answer = await transport.handle_async_request(request(server))
    async with aclosing(answer.aiter_raw()) as pieces:
        await anext(pieces)
        await answer.aclose()


async def through_a_client(transport: TrioTransport, server: RawServer) -> None:
    # Not closed, as that would close the transport.
    await httpx.AsyncClient(transport=transport, trust_env=False).post(server.url, content=b"{}")


async def at_every_place(
    handler: Handler, scenario: Scenario, *, warm: bool, tls: Tls | None = None, at_least: int
) -> None:
    """Cancel ``scenario`` at each place where it waits in turn, over a new connection or over one that was used."""
    place = 0
    reached = True
    async with serving(handler, patience=PATIENCE, tls=tls.server if tls else None) as server:
        others = open_sockets()
        while reached:
            with trio.fail_after(PATIENCE_FOR_ONE):
                async with TrioTransport(tls=tls.client if tls else None) as transport:
                    if warm:
                        await scenario(transport, server)
                    reached = await cancel_at(place, lambda transport=transport: scenario(transport, server))
                    await left_with(server, transport, others)
                    # And the next one gets what is its own.
                    await scenario(transport, server)
                    await left_with(server, transport, others)
                await left_with(server, transport, others)
            place += 1
    assert place > at_least


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("handler", [with_length, chunked, until_the_end, without_body])
async def test_whatever_the_answer_is(handler, warm):
    await at_every_place(handler, small, warm=warm, at_least=3)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("scenario", [large, generated, timed, by_name, closed_early, through_a_client])
async def test_however_it_is_asked_for(scenario, warm):
    await at_every_place(with_length, scenario, warm=warm, at_least=3)


@pytest.mark.parametrize("scenario", [large, endless])
async def test_while_it_is_answered_early(scenario):
    await at_every_place(early, scenario, warm=False, at_least=3)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("scenario", [small, medium, timed])
async def test_encrypted(tls, scenario, warm):
    await at_every_place(with_length, scenario, warm=warm, tls=tls, at_least=4)
