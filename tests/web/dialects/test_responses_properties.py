"""Whatever is sent and whatever is sampled: reading fails in one way only, and a stream says what the answer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from tests.web.dialects.readings import unanswered
from tests.web.dialects.responses_support import EVENT, TOOLS, answer, call
from trio_sessions.core import json as wire
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.dialect import Exchange
from trio_sessions.service.failure import Failure
from trio_sessions.web.dialects.responses import ResponsesDialect
from trio_sessions.web.dialects.responses.tools import custom_arguments, custom_input

DIGITS = "0123456789abcdef" * 2
WORDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "custom_tool_call", "function_call_output"),
        *("custom_tool_call_output", "item_reference", "web_search_call", "input_text", "output_text", "refusal"),
        *("input_image", "reasoning_text", "summary_text", "user", "assistant", "system", "developer", "tool"),
        *("function", "namespace", "custom", "json_schema", "json_object", "auto", "required", "grammar"),
        *(f"rs_{DIGITS}", f"msg_{DIGITS}", f"fc_{DIGITS}_0", f"ctc_{DIGITS}_1", f"resp_{DIGITS}"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "call_id", "name", "namespace", "arguments", "input", "output"),
        *("summary", "encrypted_content", "refusal", "tools", "description", "parameters", "format", "syntax"),
        *("definition", "effort", "schema", "strict"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | WORDS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=20
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {"type": WORDS},
        optional={
            "role": WORDS,
            "content": TEXT | st.lists(st.fixed_dictionaries({"type": WORDS, "text": TEXT}), max_size=3),
            "id": WORDS,
            "call_id": TEXT,
            "name": TEXT,
            "namespace": TEXT,
            "arguments": TEXT,
            "input": TEXT,
            "output": TEXT,
            "summary": st.just([]),
        },
    ),
    max_size=6,
)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What the field should be, and now and then anything."""
    return st.integers(0, 19).flatmap(lambda number: right if number else VALUES)


TOP = st.fixed_dictionaries(
    {"input": mostly(TEXT | ITEMS | st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=3))},
    optional={
        "instructions": mostly(TEXT),
        "tools": mostly(st.just(TOOLS) | st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=2)),
        "tool_choice": mostly(WORDS | st.dictionaries(KEYS, SCALARS, max_size=3)),
        "text": mostly(st.dictionaries(KEYS, VALUES, max_size=2)),
        "include": mostly(st.lists(WORDS, max_size=2)),
        "reasoning": mostly(st.dictionaries(KEYS, VALUES, max_size=2)),
        "metadata": mostly(st.dictionaries(KEYS, VALUES, max_size=2)),
        "model": mostly(TEXT),
        "temperature": mostly(st.floats(0, 2) | st.integers(0, 2)),
        "previous_response_id": mostly(st.none()),
        "stream": mostly(st.booleans()),
        "background": mostly(st.just(False)),
    },
)
NAMES = st.sampled_from(["run", "agents__run", "agents__tell", "patch", "unknown", ""])
CALLS = st.lists(
    st.builds(
        lambda name, arguments, call_id: call(name, arguments, call_id=call_id),
        NAMES,
        TEXT | TEXT.map(custom_arguments),
        st.sampled_from(["", "c0", "c1", "c2"]),
    ),
    max_size=4,
)
ANSWERS = st.builds(
    lambda text, calls, reasoning, reason: answer(text, *calls, reasoning=reasoning, finish_reason=reason),
    TEXT,
    CALLS,
    st.none() | TEXT,
    st.sampled_from(["stop", "tool_calls", "length", "abort", "content_filter"]),
)


def read(body: Any, *, roles: frozenset[str] = frozenset({"user"})) -> Exchange:
    reading = unanswered(roles, digits=DIGITS)
    return ResponsesDialect().read(body if isinstance(body, bytes) else wire.encode(body), reading)


def check_reading(body: Any, roles: frozenset[str] = frozenset({"user"})) -> None:
    try:
        exchange = read(body, roles=roles)
    except InvalidRequest:
        return
    assert exchange.chat.messages
    assert all(isinstance(message["role"], str) for message in exchange.chat.messages)
    assert all(isinstance(reason, str) for reason in exchange.dropped)
    # What is repeated to the client and what goes on to the engine can be written.
    wire.encode([dict(exchange.chat.fields), list(exchange.chat.messages)])
    assert json.loads(exchange.writer.reply(answer("ok")).body)["id"] == exchange.writer.response_id


@given(st.binary(max_size=60) | VALUES.map(wire.encode))
def test_reading_any_bytes_fails_in_one_way(body: bytes) -> None:
    check_reading(body)


@given(TOP, st.sampled_from([frozenset({"user"}), frozenset({"user", "system"})]))
def test_reading_any_request_fails_in_one_way(body: Any, roles: frozenset[str]) -> None:
    check_reading(body, roles)


@given(TEXT)
def test_a_custom_tools_input_comes_back(text: str) -> None:
    assert custom_input(custom_arguments(text)) == text


@given(TEXT)
def test_any_arguments_give_a_custom_tool_some_input(text: str) -> None:
    assert custom_input(text) == text or json.loads(text) == {"input": custom_input(text)}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client has it that reads nothing but deltas and statuses."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                assert event["content_index"] == len(_at(items, event)["content"])
                _at(items, event)["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                _at(items, event)["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                _at(items, event)["arguments"] += event["delta"]
            case "custom_tool_call_input.delta":
                _at(items, event)["input"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert _at(items, event)["content"][event["content_index"]]["text"] == event["text"]
            case "content_part.done":
                assert _at(items, event)["content"][event["content_index"]] == event["part"]
            case "function_call_arguments.done":
                assert _at(items, event)["arguments"] == event["arguments"]
            case "custom_tool_call_input.done":
                assert _at(items, event)["input"] == event["input"]
            case "output_item.done":
                item = items[event["output_index"]]
                item |= {"status": event["item"]["status"]} if "status" in item else {}
                assert item == event["item"]
    return items


def _at(items: list[dict[str, Any]], event: Mapping[str, Any]) -> dict[str, Any]:
    item = items[event["output_index"]]
    assert item["id"] == event["item_id"]
    assert item.get("status", "in_progress") == "in_progress"
    return item


@given(ANSWERS, st.none() | st.integers(0, 3), st.booleans())
def test_a_stream_says_what_the_answer_says(sampled: Any, signs: int | None, encrypted: bool) -> None:
    include = {"include": ["reasoning.encrypted_content"]} if encrypted else {}
    exchange = read({"input": "hi", "tools": TOOLS, "model": "m", **include})
    whole = json.loads(exchange.writer.reply(sampled).body)
    Response.model_validate(whole)
    writer = exchange.writer.events()
    stream = b"" if signs is None else writer.opening() + b"".join(writer.keep_alive() for _ in range(signs))
    events = events_of(stream + writer.finish(sampled))
    for number, event in enumerate(events):
        assert EVENT.validate_python(event).type == event["type"]
        assert event["sequence_number"] == number
    assert all(event.get("delta") != "" for event in events)
    assert [event["type"] for event in events].count("response.created") == 1
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert events[-1]["response"] == whole
    assert accumulated(events) == whole["output"]


@given(ANSWERS)
def test_what_was_answered_is_read_as_what_was_sampled(sampled: Any) -> None:
    """As far as items can say it: calls without ids get some, and input that is not in arguments is put there."""
    asked = {"input": "hi", "tools": TOOLS}
    output = json.loads(read(asked).writer.reply(sampled).body)["output"]
    [_, again] = read({"input": [{"role": "user", "content": "hi"}, *output], "tools": TOOLS}).chat.messages
    said = json.loads(sampled.body)["choices"][0]["message"]
    assert again["role"] == "assistant"
    assert again["content"] == said["content"]
    assert again.get("reasoning_content") == (said.get("reasoning_content") or None)
    names = [one["function"]["name"] for one in said["tool_calls"] or ()]
    assert [one["function"]["name"] for one in again.get("tool_calls", ())] == names
    for one, other in zip(said["tool_calls"] or (), again.get("tool_calls", ()), strict=True):
        sampled_text, text = one["function"]["arguments"], other["function"]["arguments"]
        assert text == sampled_text or text == custom_arguments(custom_input(sampled_text))


@given(
    st.builds(
        Failure,
        status=st.sampled_from([400, 404, 408, 409, 429, 500, 502, 503]),
        text=TEXT,
        code=st.sampled_from(["invalid_request", "engine_refused"]),
        permanent=st.booleans(),
    )
)
def test_a_broken_stream_ends_with_an_event_of_the_sdk(failure: Failure) -> None:
    writer = read({"input": "hi"}).writer.events()
    events = events_of(writer.opening() + writer.broken(failure))
    assert [EVENT.validate_python(event).type for event in events][-1] == "response.failed"
    error = events[-1]["response"]["error"]
    assert error["message"] == failure.text
    # What agents try again.
    again = error["code"] in ("server_error", "rate_limit_exceeded")
    assert again == (failure.status == 429 or (failure.status in (408, 500, 502, 503) and not failure.permanent))
