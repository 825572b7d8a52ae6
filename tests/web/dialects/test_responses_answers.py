"""Answers of the Responses API, as the official SDK reads them: whole and as a stream."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from tests.web.dialects.responses_support import (
    CUSTOM,
    NAMESPACE,
    TOOLS,
    Agent,
    agent,
    answer,
    call,
    comparable,
    plain,
)
from tests.web.support import Serve
from trio_sessions.engine.base import EngineAnswer

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 5},
}
ANSWERS = {
    "text": answer("ok"),
    "reasoning": answer("ok", reasoning="hm é"),
    "nothing": answer(""),
    "reasoning alone": answer("", reasoning="hm"),
    "call": answer("", call("run", '{"a":  1}')),
    "everything": answer(
        "I run.",
        call("run", '{"a": 1}', call_id="c0"),
        call("agents__run", "{}", call_id="c1", index=1),
        call("agents__tell", '{"input": "hello"}', call_id="c2", index=2),
        call("patch", '{"input": "*** é\\n"}', call_id="c3", index=3),
        call("unknown", "not json", call_id="c4", index=4),
        reasoning="hm",
    ),
    "no ids": answer("", call("run", "{}", call_id=""), call("run", "{}", call_id="")),
    "length": answer("cut", finish_reason="length"),
    "length in a call": answer("", call("run", '{"a'), finish_reason="length"),
    "filtered": answer("no", finish_reason="content_filter"),
}


def items(response: Any) -> list[dict[str, Any]]:
    """The output without its ids."""
    return [{key: value for key, value in plain(item).items() if key != "id"} for item in response.output]


async def test_a_text(serve: Serve) -> None:
    async with agent(serve, answer("ok", usage=USAGE), clock=lambda: 1_700_000_123.9) as talking:
        response = await talking.create("hi", temperature=0.5, top_p=0.25, metadata={"a": "b"}, instructions="Be kind.")
    digits = response.id.removeprefix("resp_")
    assert len(digits) == 32
    assert response.output_text == "ok"
    assert [item.id for item in response.output] == [f"msg_{digits}"]
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.incomplete_details is None
    assert (response.model, response.created_at) == ("scripted", 1_700_000_123)
    assert (response.temperature, response.top_p, response.metadata) == (0.5, 0.25, {"a": "b"})
    assert (response.instructions, response.previous_response_id) == ("Be kind.", None)
    assert (response.tool_choice, response.tools, response.parallel_tool_calls) == ("auto", [], True)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 3, 10)
    assert response.usage.input_tokens_details.cached_tokens == 5
    assert response.usage.output_tokens_details.reasoning_tokens == 0


async def test_reasoning_comes_first_and_is_encrypted_for_those_who_ask(serve: Serve) -> None:
    async with agent(serve, *[answer("ok", reasoning="hm")] * 2) as talking:
        bare = await talking.create("hi")
        encrypted = await talking.create("hi", include=["reasoning.encrypted_content"])
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert items(bare)[0] == reasoning
    content = items(encrypted)[0].pop("encrypted_content")
    assert content
    assert items(encrypted)[0] == {**reasoning, "encrypted_content": content}


async def test_calls_are_of_the_tools_that_the_client_named(serve: Serve) -> None:
    async with agent(serve, ANSWERS["everything"]) as talking:
        response = await talking.create("hi", tools=TOOLS)
    digits = response.id.removeprefix("resp_")
    done = {"status": "completed"}
    assert [plain(item) for item in response.output[2:]] == [
        {
            "id": f"fc_{digits}_0",
            "type": "function_call",
            "call_id": "c0",
            "name": "run",
            "arguments": '{"a": 1}',
            **done,
        },
        {
            "id": f"fc_{digits}_1",
            "type": "function_call",
            "call_id": "c1",
            "name": "run",
            "namespace": "agents",
            "arguments": "{}",
            **done,
        },
        {
            "id": f"ctc_{digits}_2",
            "type": "custom_tool_call",
            "call_id": "c2",
            "name": "tell",
            "namespace": "agents",
            "input": "hello",
            **done,
        },
        {
            "id": f"ctc_{digits}_3",
            "type": "custom_tool_call",
            "call_id": "c3",
            "name": "patch",
            "input": "*** é\n",
            **done,
        },
        {
            "id": f"fc_{digits}_4",
            "type": "function_call",
            "call_id": "c4",
            "name": "unknown",
            "arguments": "not json",
            **done,
        },
    ]
    assert [item.to_dict() for item in response.tools] == TOOLS


@pytest.mark.parametrize("arguments", ['{"input": 1}', '{"input": "a", "b": 1}', "*** Begin", "", '["input"]'])
async def test_a_custom_tool_gets_what_was_sampled_where_its_input_is_not_in_it(serve: Serve, arguments: str) -> None:
    async with agent(serve, answer("", call("patch", arguments))) as talking:
        response = await talking.create("hi", tools=[CUSTOM])
    assert items(response)[0]["input"] == arguments


async def test_every_call_has_an_id_of_its_own(serve: Serve) -> None:
    calls = [call("run", "{}", call_id=call_id) for call_id in ("c0", "", "c0")]
    async with agent(serve, answer("", *calls)) as talking:
        response = await talking.create("hi", tools=TOOLS)
    digits = response.id.removeprefix("resp_")
    assert [item["call_id"] for item in items(response)] == ["c0", f"call_{digits}_1", f"call_{digits}_2"]


@pytest.mark.parametrize(
    ("finish_reason", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("abort", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
async def test_an_answer_may_be_incomplete(serve: Serve, finish_reason: str, status: str, reason: str | None) -> None:
    async with agent(serve, answer("cut", reasoning="hm", finish_reason=finish_reason)) as talking:
        response = await talking.create("hi")
    assert response.status == status
    assert (response.incomplete_details and response.incomplete_details.reason) == reason
    assert items(response)[-1]["status"] == status


async def test_an_answer_without_anything_is_an_empty_text(serve: Serve) -> None:
    async with agent(serve, answer("")) as talking:
        response = await talking.create("hi")
    assert response.output_text == ""
    assert [item.type for item in response.output] == ["message"]


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_stream_says_the_same_as_the_whole_answer(serve: Serve, name: str) -> None:
    async with agent(serve, ANSWERS[name], ANSWERS[name], mode="tree") as talking:
        whole = await talking.create("hi", tools=TOOLS, metadata={"a": "b"})
        events = await talking.events("hi", tools=TOOLS, metadata={"a": "b"})
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    final = events[-1].response
    assert comparable(final) == comparable(whole)
    assert {event.response.id for event in events if hasattr(event, "response")} == {final.id}
    assert [plain(event.item) for event in events if event.type == "response.output_item.done"] == [
        plain(item) for item in final.output
    ]
    begun = events[0].response
    assert (begun.status, begun.output, begun.usage) == ("in_progress", [], None)
    assert [plain(tool) for tool in begun.tools] == TOOLS


async def test_the_streaming_helper_of_the_sdk(serve: Serve) -> None:
    everything = ANSWERS["everything"]
    async with agent(serve, everything, everything, mode="tree") as talking:
        whole = await talking.create("hi", tools=TOOLS)
        async with talking.client.responses.stream(model="m", input="hi", tools=TOOLS) as stream:
            texts = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert texts == ["I run."]
    # The helper adds the arguments as it parsed them.
    parsed = [{key: value for key, value in item.items() if key != "parsed_arguments"} for item in items(final)]
    assert [_without_parsed(item) for item in parsed] == items(whole)


def _without_parsed(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    parts = [{key: value for key, value in part.items() if key != "parsed"} for part in item["content"]]
    return {**item, "content": parts}


async def test_the_engines_headers_come_with_a_whole_answer(serve: Serve) -> None:
    sampled = answer("ok")
    headers = (("x-engine", "yes"), ("content-type", "text/plain"), ("server", "engine"))
    async with agent(serve, EngineAnswer(200, headers, sampled.body)) as talking:
        response = await talking.client.responses.with_raw_response.create(model="m", input="hi")
    assert response.headers["x-engine"] == "yes"
    assert response.headers.get("server") != "engine"
    assert response.headers.get_list("content-type") == ["application/json"]


async def test_a_stream_is_not_cached_and_not_buffered(serve: Serve) -> None:
    async with agent(serve, answer("ok")) as talking:
        response = await talking.session.served.client.post(
            f"{talking.session.path}/v1/responses", json={"input": "hi", "stream": True}
        )
    assert response.headers["content-type"].split(";")[0] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.text.startswith("event: response.created\ndata: {")
    assert response.text.endswith("}\n\n")


async def test_the_session_knows_the_answer_by_the_id_that_the_client_saw(serve: Serve) -> None:
    async with agent(serve, answer("ok"), mode="tree") as talking:
        response = await talking.create("hi")
        metadata = await talking.session.metadata()
    assert [node["response_id"] for node in metadata["tree"]["nodes"]] == [response.id]


async def test_what_the_engine_says_of_replay_stays_here(serve: Serve) -> None:
    async with agent(serve, answer("ok", meta_info={"routed_experts": "AA"})) as talking:
        response = await talking.client.responses.with_raw_response.create(model="m", input="hi")
    assert "routed_experts" not in response.text
    assert "meta_info" not in response.text


async def test_structured_output(serve: Serve) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with agent(serve, answer('{"a": 1}')) as talking:
        await _structured(talking, schema)
        assert talking.asked()["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "out", "schema": schema, "strict": True},
        }


async def _structured(talking: Agent, schema: dict[str, Any]) -> Response:
    form: Any = {"format": {"type": "json_schema", "name": "out", "schema": schema, "strict": True}}
    return await talking.create("hi", text=form)


async def test_tools_of_a_namespace_alone(serve: Serve) -> None:
    async with agent(serve, answer("", call("agents__run", "{}"))) as talking:
        response = await talking.create("hi", tools=[NAMESPACE])
    assert items(response)[0]["namespace"] == "agents"
