"""``stream: true``: one chunk and the end mark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web.support import CHAT, Serve, Session, assert_error, assistant, compact, error_text, user
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import ScriptedEngine, chat_answer

CALLS = [
    {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":"é"}'}},
    {"id": "c1", "type": "function", "index": 7, "function": {"name": "g", "arguments": "{}"}},
]


async def streamed(serve: Serve, answer: Any, **fields: Any) -> tuple[Session, bytes]:
    """A streamed turn that this answer is given to: its session and body."""
    session = await (await serve(ScriptedEngine(answer))).session()
    response = await session.chat(user("hi"), stream=True, **fields)
    assert response.status_code == 200
    return session, response.content


def chunk(delta: dict[str, Any], *, finish_reason: str = "stop", usage: Any = None) -> bytes:
    """The whole body that belongs to an answer of ``chat_answer``."""
    fields: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
    if usage is not None:
        fields["usage"] = usage
    return b"data: " + compact(fields) + b"\n\ndata: [DONE]\n\n"


USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


async def test_one_chunk_and_done_to_the_byte(serve: Serve) -> None:
    _, body = await streamed(serve, chat_answer("ok"))
    assert body == chunk({"role": "assistant", "content": "ok"}, usage=USAGE)


async def test_the_headers_are_those_of_an_event_stream(session: Session) -> None:
    headers = {"accept": "text/event-stream"}
    response = await session.chat(user("hi"), stream=True, headers=headers)
    assert response.headers["content-type"].split(";")[0] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert len(response.headers.get_list("server")) == len(response.headers.get_list("date")) == 1


async def test_usage_is_absent_when_the_engine_gave_none(serve: Serve) -> None:
    for usage in ({}, {"usage": None}):
        answer = json.loads(chat_answer("ok").body)
        del answer["usage"]
        _, body = await streamed(serve, EngineAnswer(200, (), compact({**answer, **usage})))
        assert body == chunk({"role": "assistant", "content": "ok"})


async def test_there_is_no_meta_info_and_the_record_keeps_it(serve: Serve) -> None:
    session, body = await streamed(serve, chat_answer("ok", meta_info={"routed_experts": "AA"}))
    assert b"meta_info" not in body
    assert b"routed_experts" not in body
    meta = (await session.records())[0]["response"]["choices"][0]["meta_info"]
    assert meta["routed_experts"] == "AA"


async def test_reasoning_content_if_any(serve: Serve) -> None:
    message = assistant("ok", reasoning_content="hm é")
    _, body = await streamed(serve, chat_answer(message=message))
    assert body == chunk({"role": "assistant", "content": "ok", "reasoning_content": "hm é"}, usage=USAGE)
    _, body = await streamed(serve, chat_answer(message=assistant("ok", reasoning_content=None)))
    assert body == chunk({"role": "assistant", "content": "ok"}, usage=USAGE)


async def test_all_tool_calls_each_with_its_index(serve: Serve) -> None:
    message = assistant("", tool_calls=CALLS)
    session, body = await streamed(serve, chat_answer(message=message, finish_reason="tool_calls"))
    event = json.loads(body.partition(b"\n\n")[0].removeprefix(b"data: "))
    delta = event["choices"][0]["delta"]
    assert delta["content"] == ""
    assert [call["index"] for call in delta["tool_calls"]] == [0, 1]
    assert [{**call, "index": 0} for call in delta["tool_calls"]] == [{**call, "index": 0} for call in CALLS]
    assert event["choices"][0]["finish_reason"] == "tool_calls"
    assert (await session.records())[0]["response"]["choices"][0]["message"]["tool_calls"] == CALLS


async def test_no_tool_calls_key_without_tool_calls(serve: Serve) -> None:
    for calls in (None, []):
        _, body = await streamed(serve, chat_answer(message=assistant("ok", tool_calls=calls)))
        assert body == chunk({"role": "assistant", "content": "ok"}, usage=USAGE)


async def test_a_message_without_a_role_is_the_assistants(serve: Serve) -> None:
    _, body = await streamed(serve, chat_answer(message={"content": "ok"}))
    assert body == chunk({"role": "assistant", "content": "ok"}, usage=USAGE)


async def test_text_with_line_ends_stays_in_one_event(serve: Serve) -> None:
    text = "a\nb\r\n\n\u2028data: x"
    _, body = await streamed(serve, chat_answer(message=assistant(text)))
    assert body.count(b"\n") == 4
    assert body == chunk({"role": "assistant", "content": text}, usage=USAGE)


async def test_a_streamed_turn_is_recorded_as_any_other(serve: Serve) -> None:
    session, _ = await streamed(serve, chat_answer("ok"), stream_options={"include_usage": True})
    plain = await session.served.session()
    session.served.engine.script.append(chat_answer("ok"))
    await plain.turn(user("hi"))
    (left,), (right,) = await session.records(), await plain.records()
    assert {**left, "timestamp": 0, "request_timestamp": 0} == {**right, "timestamp": 0, "request_timestamp": 0}


async def test_the_delta_can_be_replayed(serve: Serve) -> None:
    message = assistant("", tool_calls=CALLS, reasoning_content="hm")
    session, body = await streamed(serve, chat_answer(message=message))
    delta = json.loads(body.partition(b"\n\n")[0].removeprefix(b"data: "))["choices"][0]["delta"]
    await session.turn(user("hi"), delta, {"role": "tool", "tool_call_id": "c0", "content": "1"})
    assert len(await session.records()) == 2


@pytest.mark.parametrize(
    ("step", "status", "text"),
    [
        (
            EngineUnreachable("ReadError", "gone"),
            502,
            "backend transport error: ReadError: gone",
        ),
        (
            EngineAnswer(200, (), b'{"choices":[{"message":{"content":"x"}}]}'),
            502,
            "meta_info and output_token_logprobs must be in choice (requires logprobs=True)",
        ),
    ],
)
async def test_errors_before_the_body_keep_their_status_and_json(
    serve: Serve, step: Any, status: int, text: str
) -> None:
    session = await (await serve(ScriptedEngine(step))).session()
    async with session.unchanged():
        assert_error(await session.chat(user("hi"), stream=True), status, text)


async def test_an_engines_error_keeps_its_status_and_json(serve: Serve) -> None:
    answer = EngineAnswer(429, (("content-type", "application/json"),), b'{ "error": "slow down" }')
    session = await (await serve(ScriptedEngine(answer))).session()
    response = await session.chat(user("hi"), stream=True)
    assert (response.status_code, response.content) == (429, b'{"error":"slow down"}')
    assert response.headers["content-type"] == "application/json"


async def test_errors_of_the_client_keep_their_status_and_json(session: Session) -> None:
    await session.turn(user("a"))
    await session.turn(user("a"), assistant("ok"), user("b"))
    async with session.unchanged():
        text = error_text(await session.chat(user("other"), stream=True), 400)
    assert text.startswith("rollback failed: discard_count=2 ")
    await session.delete()
    response = await session.chat(user("other"), stream=True)
    assert_error(response, 404, f"session not found: session_id={session.id}")


async def test_the_stream_comes_through_a_reader_of_lines(session: Session) -> None:
    body = compact({"messages": [user("hi")], "stream": True})
    async with session.served.client.stream("POST", f"{session.path}/{CHAT}", content=body) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert len(lines) == 2
    assert lines[1] == "data: [DONE]"
