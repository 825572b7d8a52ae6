"""Streams of the embedded engine: chunks with ids, which come to the answer that it gives whole."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio

from tests.engine.embedded_fixtures import WEATHER, body, engine, output
from trio_sessions.core.completion import extract_completion
from trio_sessions.core.stream import AnswerAssembler, EventSplitter
from trio_sessions.engine.embedded import EmbeddedEngine, serve_engine
from trio_sessions.engine.embedded.chunks import chunked_reply
from trio_sessions.engine.embedded.desk import Desk
from trio_sessions.engine.embedded.reply import EngineReply
from trio_sessions.errors import BadEngineAnswer

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
REPLAY = {"return_routed_experts": True, "return_indexer_topk": True}


def streamed(name: str = "builtin", **fields: Any) -> list[dict[str, Any]]:
    """The chunks of an answer."""
    reply = engine(name).complete(body(**{**USAGE, **fields}))
    assert reply.status == 200, reply.body
    assert dict(reply.headers)["content-type"] == "text/event-stream"
    *events, done, rest = reply.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    return chunks


def assembled(stream: bytes) -> Any:
    assembler = AnswerAssembler()
    for data in EventSplitter().feed(stream):
        assembler.add(data)
    return json.loads(assembler.answer())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """What is the same whenever an answer is sampled with the same seed; null and absence are one."""
    choice = answer["choices"][0]
    meta = {name: value for name, value in choice["meta_info"].items() if name not in ("id", "e2e_latency")}
    message = {name: value for name, value in choice["message"].items() if value is not None}
    for call in message.get("tool_calls", ()):
        assert call.pop("id").startswith("call_")
    return {
        "message": message,
        "meta": meta,
        "finish_reason": choice["finish_reason"],
        "matched_stop": choice.get("matched_stop"),
        "usage": {name: value for name, value in answer["usage"].items() if value is not None},
    }


@pytest.mark.parametrize("name", ["builtin", "qwen3"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "parallel_tool_calls": True},
        {"separate_reasoning": False},
        {"max_tokens": 5},
        {"stop": "."},
        {"input_ids": [5, 6, 7], **REPLAY},
    ],
)
def test_a_stream_comes_to_the_answer_that_is_given_whole(name: str, fields: dict[str, Any]) -> None:
    toy = engine(name)
    kinds = set()
    for seed in range(12):
        # What is cached is part of an answer.
        toy.handle("POST", "flush_cache", b"")
        whole = json.loads(toy.complete(body(**fields, seed=seed)).body)
        toy.handle("POST", "flush_cache", b"")
        stream = toy.complete(body(**fields, **USAGE, seed=seed)).body
        assert comparable(assembled(stream)) == comparable(whole)
        kinds.add(bool(whole["choices"][0]["message"]["reasoning_content"]))
    assert kinds == {True, False} or "chat_template_kwargs" not in fields


def test_texts_come_a_few_ids_at_a_time_and_in_order() -> None:
    chunks = streamed(tools=[WEATHER], parallel_tool_calls=True, tool_choice="required", seed=3, **REPLAY)
    *some, last, usage = chunks
    assert (usage["choices"], usage["usage"]["completion_tokens"] > 8) == ([], True)
    assert all("usage" not in chunk for chunk in (*some, last))
    [end] = last["choices"]
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")
    assert {"finish_reason", "prompt_tokens", "completion_tokens", "routed_experts"} <= end["meta_info"].keys()
    assert "output_token_logprobs" not in end["meta_info"]
    choices = [chunk["choices"][0] for chunk in some]
    sampling = [choice for choice in choices if "meta_info" in choice]
    assert choices[: len(sampling)] == sampling
    assert {len(choice["meta_info"]["output_token_logprobs"]) for choice in sampling[:-1]} == {4}
    calling = [choice["delta"]["tool_calls"][0] for choice in choices[len(sampling) :]]
    assert [call["index"] for call in calling] == sorted(call["index"] for call in calling)
    assert all(choice["finish_reason"] is None for choice in choices)


def test_reasoning_comes_before_content() -> None:
    for seed in range(20):
        chunks = streamed(seed=seed, chat_template_kwargs={"enable_thinking": True})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
        assert kinds == sorted(kinds, reverse=True)
        if "reasoning_content" in kinds:
            assert kinds.count("reasoning_content") > 1
            assert kinds.count("content") > 1
            return
    pytest.fail("no answer had reasoning")


def test_content_that_was_reasoned_about_is_still_behind_the_reasoning() -> None:
    text = "<think>\nok é ok</think>\n\nok"
    spelled = [text.encode()[at : at + 1] for at in range(len(text.encode()))]
    message = {"role": "assistant", "content": "ok", "reasoning_content": "ok é ok", "tool_calls": None}
    meta = {"output_token_logprobs": [[-1.0, index, None] for index in range(len(spelled))]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "meta_info": meta}
    whole = {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": {"completion_tokens": len(spelled)}}
    reply = chunked_reply(whole, text, spelled, include_usage=True)
    # The assembler refuses reasoning behind content.
    assert assembled(reply.body)["choices"][0]["message"] == {
        name: value for name, value in message.items() if value is not None
    }


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_for_those_who_ask_for_it(options: Any) -> None:
    chunks = streamed(stream_options=options)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_over_http_the_ids_are_those_of_the_answer_in_memory() -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_engine, EmbeddedEngine(seed=5))
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            reply = await client.post("/v1/chat/completions", content=body(**USAGE, seed=1))
            assert reply.headers["transfer-encoding"] == "chunked"
            direct = json.loads(engine().complete(body(seed=1)).body)
            assert output(assembled(reply.content)) == output(direct)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "fault",
    [
        *("not-json", "not-object", "empty-choices", "no-choices", "no-meta", "no-logprobs", "count-mismatch"),
        *("nan-logprob", "inf-logprob", "null-logprob", "bad-token-id", "bad-token-id:string"),
    ],
)
async def test_a_fault_of_the_answer_is_one_of_the_stream(fault: str) -> None:
    reply = await Desk(engine()).answer("POST", "v1/chat/completions", body(**USAGE), fault_spec=fault)
    assert isinstance(reply, EngineReply)
    with pytest.raises(BadEngineAnswer):
        extract_completion(json.dumps(assembled(reply.body)).encode())


@pytest.mark.parametrize("fault", ["null-content", "null-message"])
async def test_a_text_that_is_missing_leaves_the_ids(fault: str) -> None:
    """In deltas null is no text, and no error."""
    reply = await Desk(engine()).answer("POST", "v1/chat/completions", body(**USAGE), fault_spec=fault)
    assert isinstance(reply, EngineReply)
    answer = assembled(reply.body)
    assert answer["choices"][0]["message"]["content"] == ""
    assert len(output(answer)[0]) == answer["usage"]["completion_tokens"] > 0


async def test_a_stream_can_break_off() -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_engine, EmbeddedEngine(seed=5))
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(
                    "/v1/chat/completions", content=body(**USAGE), headers={"x-engine-fault": "disconnect"}
                )
        nursery.cancel_scope.cancel()
