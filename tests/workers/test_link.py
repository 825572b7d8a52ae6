"""What supervisor and workers say to each other arrives as it was said."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from trio_sessions.config import Settings
from trio_sessions.testing.strategies import json_values
from trio_sessions.workers.link import (
    Failed,
    FromWorker,
    Link,
    Loaded,
    Serving,
    Sessions,
    Start,
    Stop,
    Table,
    ToWorker,
    WorkerState,
)

SETTINGS = Settings(
    host="::",
    api_key=("a-key-of-24-characters-x", "another-key-of-some-more"),
    port=0,
    workers=3,
    worker_port_base=9100,
    engine="https://engine.example",
    tokenizer="ä b\n",
    mode="tree",
    chat_template=Path("a/b.jinja"),
    chat_template_kwargs={"x": {"y": [1, None, "\u2028"]}},
    on_truncated="close",
    routing_replay=True,
    num_layers=2,
    lora="l",
    instance_id="ab" * 16,
    engine_timeout=0.5,
    log_format="json",
)
STATES = (WorkerState(0, True, 0, 5), WorkerState(1, False, 2, 0))


async def carried(kinds, *messages, pieces=None):
    """What the other end reads, to its end."""
    sending, receiving = memory_stream_pair()
    there = Link(receiving, kinds)
    received = []
    async with trio.open_nursery() as nursery:

        async def send():
            here = Link(sending, kinds)
            for message in messages:
                await here.send(message)
            await sending.aclose()

        nursery.start_soon(send)
        while (message := await there.receive()) is not None:
            received.append(message)
    return received


async def test_messages_arrive_in_their_order_and_then_the_end():
    to_worker = [Start(1, ("http://a:1", "http://b:2"), "s", SETTINGS), Table("http://e", STATES), Stop()]
    assert await carried(ToWorker, *to_worker) == to_worker
    from_worker = [Loaded("qwen3"), Serving(), Sessions(7), Failed("configuration_error", "--tokenizer: no\nsuch")]
    assert await carried(FromWorker, *from_worker) == from_worker


@given(st.dictionaries(st.text(max_size=5), json_values(), max_size=3), st.booleans())
def test_settings_arrive_as_they_were(kwargs, default):
    settings = Settings() if default else Settings(chat_template_kwargs=kwargs)
    [start] = trio.run(carried, ToWorker, Start(0, ("http://a:1",), "s", settings))
    assert start.settings == settings


async def test_messages_are_put_together_from_what_arrives():
    sending, receiving = memory_stream_pair()
    link = Link(receiving, FromWorker)
    for piece in (b'{"type":"sess', b'ions","count":1}\n{"type":"serving"}\n{"ty', b'pe":"sessions","count":2}\n'):
        await sending.send_all(piece)
    assert [await link.receive() for _ in range(3)] == [Sessions(1), Serving(), Sessions(2)]


async def test_what_is_said_to_one_who_is_gone_is_lost_and_a_broken_stream_is_an_end():
    one, other = memory_stream_pair()
    link = Link(one, FromWorker)
    await other.aclose()
    await link.send(Sessions(1))
    assert await link.receive() is None


async def test_half_a_message_at_the_end_is_none():
    sending, receiving = memory_stream_pair()
    await sending.send_all(b'{"type":"serv')
    await sending.aclose()
    assert await Link(receiving, FromWorker).receive() is None


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"type":"start"}\n', b'{"type":"sessions","count":"1"}\n'])
async def test_what_is_no_message_is_refused(line):
    sending, receiving = memory_stream_pair()
    await sending.send_all(line)
    with pytest.raises(ValueError, match=r".+"):
        await Link(receiving, FromWorker).receive()
