"""Streams whose client waits for the engine: when they open, what keeps them alive, how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.web.reading import BODY, COMMENT, opened
from tests.web.support import CHAT, Serve, Session, assert_error, settle, until, user
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer


@pytest.fixture
def held() -> HeldCalls:
    return HeldCalls()


async def eager(serve: Serve, held: HeldCalls, **settings: Any) -> Session:
    """A session whose streams are opened at once, and kept alive all the time."""
    settings = {"stream_grace": 0.0, "stream_keep_alive": 0.01, **settings}
    return await (await serve(ScriptedEngine(otherwise=held), **settings)).session()


async def test_the_head_goes_out_and_comments_follow_until_the_answer_is_there(serve: Serve, held: HeldCalls) -> None:
    session = await eager(serve, held)
    async with opened(session) as reading:
        assert reading.response.status_code == 200
        assert reading.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        await reading.until(COMMENT * 3)
        held.waiting[0].answer(chat_answer("ok"))
        body = await reading.rest()
    events = body.replace(COMMENT, b"")
    assert json.loads(events.removeprefix(b"data: ").partition(b"\n\n")[0])["choices"][0]["delta"]["content"] == "ok"
    assert events.endswith(b"data: [DONE]\n\n")
    assert events.count(b"data: ") == 2
    assert len(await session.records()) == 1


async def test_an_answer_within_the_grace_is_sent_with_nothing_before_it(serve: Serve, held: HeldCalls) -> None:
    session = await eager(serve, held, stream_grace=20.0)
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await until(lambda: bool(held.waiting))
            held.waiting[0].answer(chat_answer("ok"))

        nursery.start_soon(answer)
        async with opened(session) as reading:
            assert (await reading.rest()).startswith(b'data: {"id":"chatcmpl-scripted"')


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (EngineUnreachable("ConnectError", "no"), 502, "backend transport error: ConnectError: no"),
        (EngineAnswer(400, (), b'{"message":"too hot"}'), 400, None),
        (EngineAnswer(200, (), b"{}"), 502, "invalid chat completion response: choices must be a list with at least "),
    ],
)
class TestAFailure:
    async def test_within_the_grace_keeps_its_status(
        self, serve: Serve, failure: Any, status: int, text: str | None
    ) -> None:
        session = await (await serve(ScriptedEngine(failure), stream_grace=20.0)).session()
        response = await session.chat(user("hi"), stream=True)
        assert response.status_code == status
        if text is None:
            assert response.content == failure.body
        else:
            assert response.json()["error"].startswith(text)

    async def test_after_it_is_an_error_event(
        self, serve: Serve, held: HeldCalls, failure: Any, status: int, text: str | None
    ) -> None:
        session = await eager(serve, held)
        async with session.unchanged(), opened(session) as reading:
            await reading.until(COMMENT)
            held.waiting[0].answer(failure)
            body = await reading.rest()
        event, done, end = body.replace(COMMENT, b"").split(b"\n\n")
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert error["message"].startswith(text or "too hot")
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
        assert (done, end) == (b"data: [DONE]", b"")


async def test_a_request_that_is_not_streamed_is_never_opened(serve: Serve, held: HeldCalls) -> None:
    session = await eager(serve, held)
    async with trio.open_nursery() as nursery:

        async def refuse() -> None:
            await until(lambda: bool(held.waiting))
            await settle()
            held.waiting[0].answer(EngineUnreachable("ReadError", "gone"))

        nursery.start_soon(refuse)
        response = await session.chat(user("hi"))
    assert_error(response, 502, "backend transport error: ReadError: gone")


async def test_a_client_that_leaves_an_opened_stream_cancels_its_turn(serve: Serve, held: HeldCalls) -> None:
    session = await eager(serve, held)
    served = session.served
    async with session.unchanged():
        body = json.dumps(BODY).encode()
        async with await served.connect() as connection:
            head = f"POST {session.path}/{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            await connection.send(head.encode() + body)
            assert await connection.interim() == b"HTTP/1.1 200 "
        await until(lambda: served.engine.cancelled == 1)


async def test_the_next_request_uses_the_connection_of_a_stream_that_was_opened(serve: Serve, held: HeldCalls) -> None:
    session = await eager(serve, held)
    for text in ("a", "b"):
        async with opened(session) as reading:
            await reading.until(COMMENT)
            held.waiting[0].answer(chat_answer(text))
            assert f'"content":"{text}"'.encode() in await reading.rest()
    records = await session.records()
    assert [record["response"]["choices"][0]["message"]["content"] for record in records] == ["b"]
