"""In which order a stream is sent, whatever its connection holds up."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.web.support import LIMIT_SECONDS, settle
from trio_sessions.core.stream import Delta
from trio_sessions.web.dialects.chat import ChatEvents
from trio_sessions.web.streams import EventStream


class Connection:
    """Takes an event when it may."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.takes = trio.Event()

    async def send(self, event: Any) -> None:
        await self.takes.wait()
        self.sent.append(event)

    @property
    def bodies(self) -> list[bytes]:
        return [event["body"] for event in self.sent if event["type"] == "http.response.body"]


@pytest.fixture
def connection() -> Connection:
    return Connection()


async def test_the_end_waits_for_what_came_before_it(connection: Connection) -> None:
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            stream = EventStream(connection.send, nursery, grace=LIMIT_SECONDS, interval=LIMIT_SECONDS)
            stream.begin(ChatEvents(), None)
            stream.offer(Delta("", "a"))
            await settle()
            # What comes while the connection takes nothing is put together, or left to the end.
            stream.offer(Delta("", "b"))
            assert stream.settle()
            nursery.start_soon(stream.end, b"the end")
            await settle()
            assert connection.sent == []
            connection.takes.set()
    assert [event["type"] for event in connection.sent] == ["http.response.start", *["http.response.body"] * 2]
    assert b'"content":"a"' in connection.bodies[0]
    assert (connection.bodies[1], connection.sent[-1]["more_body"]) == (b"the end", False)


async def test_what_waited_is_sent_as_one(connection: Connection) -> None:
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            stream = EventStream(connection.send, nursery, grace=LIMIT_SECONDS, interval=LIMIT_SECONDS)
            stream.begin(ChatEvents(), None)
            stream.offer(Delta("", "a"))
            await settle()
            for text in "bcd":
                stream.offer(Delta("", text))
            connection.takes.set()
            await settle()
            stream.settle()
    assert len(connection.bodies) == 2
    assert b'"content":"bcd"' in connection.bodies[1]


async def test_nothing_is_opened_once_it_is_settled(connection: Connection) -> None:
    connection.takes.set()
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            stream = EventStream(connection.send, nursery, grace=0, interval=0)
            stream.begin(ChatEvents(), None)
            stream.offer(Delta("", "a"))
            assert not stream.settle()
            await settle()
    assert connection.sent == []


async def test_what_is_known_later_is_in_the_head_while_that_is_not_sent(connection: Connection) -> None:
    connection.takes.set()
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            stream = EventStream(connection.send, nursery, grace=LIMIT_SECONDS, interval=LIMIT_SECONDS)
            writer = ChatEvents()
            stream.begin(writer, None)
            await settle()
            stream.begin(writer, 7)
            stream.offer(Delta("", "a"))
            await settle()
            assert stream.settle()
    assert [event["type"] for event in connection.sent] == ["http.response.start", "http.response.body"]
    assert dict(connection.sent[0]["headers"])[b"x-trio-sessions-remaining-tokens"] == b"7"
