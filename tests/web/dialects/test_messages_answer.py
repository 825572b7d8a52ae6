"""Messages answers: whole, and as events that come to the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core import json as core_json
from trio_sessions.errors import ContextOverflow
from trio_sessions.service.failure import CONTEXT_OVERFLOW, Failure
from trio_sessions.testing.engine import chat_answer
from trio_sessions.testing.strategies import json_values
from trio_sessions.web.dialects.messages.answer import Frame
from trio_sessions.web.dialects.messages.errors import error_object, error_status
from trio_sessions.web.dialects.messages.events import MessagesEvents

FRAME = Frame(response_id="msg_1", model="m", thinking=True)
QUIET = Frame(response_id="msg_1", model="m", thinking=False)


def call(id_: str, arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(content: str = "ok", reasoning: str | None = None, *calls: Any, **fields: Any) -> Any:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": list(calls)}
    return chat_answer(message=message, **fields)


def whole(frame: Frame, *args: Any, **fields: Any) -> dict[str, Any]:
    """As a client decodes it."""
    decoded: dict[str, Any] = json.loads(core_json.encode(frame.whole(answer(*args, **fields))))
    return decoded


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Events, each with its name said twice."""
    assert stream.endswith(b"\n\n")
    events = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        [name, data] = event.split("\n")
        decoded = json.loads(data.removeprefix("data: "))
        assert name == f"event: {decoded['type']}"
        events.append(decoded)
    return events


def accumulated(stream: bytes) -> dict[str, Any]:
    """The message that a client makes of a stream, which must be in order."""
    first, *events = events_of(stream)
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    texts: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                assert len(texts) == 0
                message["content"].append(event["content_block"])
                texts[event["index"]] = ""
            case "content_block_delta":
                assert event["index"] in texts
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"], block["type"]:
                    case "text_delta", "text":
                        block["text"] += delta["text"]
                    case "thinking_delta", "thinking":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta", "thinking":
                        block["signature"] = delta["signature"]
                    case "input_json_delta", "tool_use":
                        texts[event["index"]] += delta["partial_json"]
                    case other:
                        raise AssertionError(other)
            case "content_block_stop":
                if spelled := texts.pop(event["index"]):
                    assert message["content"][event["index"]]["input"] == {}
                    message["content"][event["index"]]["input"] = json.loads(spelled)
            case "message_delta":
                assert not texts
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case other:
                assert (other, event) == ("message_stop", events[-1])
    assert events[-1]["type"] == "message_stop"
    return message


def streamed(frame: Frame, given_answer: Any, *, keep_alives: int | None) -> dict[str, Any]:
    """What comes of a stream; one that was opened and kept alive so many times, unless that is None."""
    writer = MessagesEvents(frame)
    stream = b""
    if keep_alives is not None:
        stream += writer.opening()
        for _ in range(keep_alives):
            stream += writer.keep_alive()
    return accumulated(stream + writer.finish(given_answer))


def test_a_whole_answer() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    calls = (call("c0", '{"a": 1}'), call("c1", "{}", "g"))
    assert whole(FRAME, "ok", "hm", *calls, finish_reason="tool_calls", usage=usage) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "msg_1"},
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "c1", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 3,
        },
    }


@pytest.mark.parametrize(
    ("said", "types"),
    [
        (("", None), ["text"]),
        (("ok", None), ["text"]),
        (("ok", ""), ["text"]),
        (("", "hm"), ["thinking"]),
        (("", None, call("1", "{}")), ["tool_use"]),
        (("ok", "hm", call("1", "{}"), call("2", "{}")), ["thinking", "text", "tool_use", "tool_use"]),
    ],
)
def test_blocks_that_are_empty_are_left_out_unless_there_is_nothing_else(said: Any, types: list[str]) -> None:
    assert [block["type"] for block in whole(FRAME, *said)["content"]] == types
    quiet = [kind for kind in types if kind != "thinking"] or ["text"]
    assert [block["type"] for block in whole(QUIET, *said)["content"]] == quiet


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1, "a": [2.50]}', {"b": 1, "a": [2.5]}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("{", {"arguments": "{"}),
        ("[1]", {"arguments": "[1]"}),
        ("1],[2", {"arguments": "1],[2"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": "\\ud800"}', {"arguments": '{"a": "\\ud800"}'}),
        ('{"a":' * 125 + "1" + "}" * 125, {"arguments": '{"a":' * 125 + "1" + "}" * 125}),
    ],
)
def test_input_is_an_object(arguments: Any, expected: Any) -> None:
    [block] = whole(FRAME, "", None, call("1", arguments))["content"]
    assert block["input"] == expected
    # It can be sent again, and comes to the same.
    sent = {"messages": [{"role": "assistant", "content": [block]}]}
    assert core_json.decode(core_json.encode(sent))["messages"][0]["content"][0]["input"] == expected


def test_numbers_keep_their_spelling() -> None:
    frame = FRAME.whole(answer("", None, call("1", '{"a": 1.50, "b": 12345678901234567890123}')))
    assert b'"input":{"a":1.50,"b":12345678901234567890123}' in core_json.encode(frame)


def test_a_call_always_has_an_id() -> None:
    content = whole(FRAME, "", None, call("", "{}"), call("", "{}"))["content"]
    assert [block["id"] for block in content] == ["toolmsg_1_0", "toolmsg_1_1"]


@pytest.mark.parametrize(
    ("reason", "matched", "calls", "expected"),
    [
        ("stop", None, (), ("end_turn", None)),
        ("stop", 151645, (), ("end_turn", None)),
        ("stop", "END", (), ("stop_sequence", "END")),
        ("length", None, (), ("max_tokens", None)),
        ("length", None, (call("1", "{}"),), ("max_tokens", None)),
        ("abort", None, (), ("max_tokens", None)),
        ("tool_calls", None, (call("1", "{}"),), ("tool_use", None)),
        ("stop", None, (call("1", "{}"),), ("tool_use", None)),
        ("content_filter", None, (), ("refusal", None)),
        ("something", None, (), ("end_turn", None)),
    ],
)
def test_why_it_ended(reason: str, matched: Any, calls: Any, expected: Any) -> None:
    made = json.loads(answer("ok", None, *calls, finish_reason=reason).body)
    made["choices"][0]["matched_stop"] = matched
    given_answer = chat_answer(choices=made["choices"])
    message = FRAME.whole(given_answer)
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    last = streamed(FRAME, given_answer, keep_alives=0)
    assert (last["stop_reason"], last["stop_sequence"]) == expected


def test_a_stream_to_the_byte() -> None:
    writer = MessagesEvents(FRAME)
    assert writer.opening() == (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        b'"role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,'
        b'"usage":{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n'
    )
    assert writer.keep_alive() == (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":""}}\n\n'
    )
    assert writer.finish(answer("ok")) == (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"ok"}}\n\n'
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta",'
        b'"delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null},'
        b'"usage":{"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


CALLS = st.lists(
    st.builds(
        call,
        st.sampled_from(["", "c0", "c1"]),
        st.text(max_size=5) | json_values().map(json.dumps) | json_values(),
        st.text(max_size=3),
    ),
    max_size=3,
)


@PATIENT
@given(
    content=st.text(max_size=5),
    reasoning=st.none() | st.text(max_size=5),
    calls=CALLS,
    thinking=st.booleans(),
    keep_alives=st.none() | st.integers(0, 2),
    reason=st.sampled_from(["stop", "length", "tool_calls"]),
)
@example(content="a\n\nb\r\u2028", reasoning=None, calls=[], thinking=True, keep_alives=1, reason="stop")
def test_a_stream_comes_to_the_whole_answer(
    content: str, reasoning: str | None, calls: Any, thinking: bool, keep_alives: int | None, reason: str
) -> None:
    frame = FRAME if thinking else QUIET
    expected = whole(frame, content, reasoning, *calls, finish_reason=reason)
    message = streamed(frame, answer(content, reasoning, *calls, finish_reason=reason), keep_alives=keep_alives)
    if keep_alives is not None and expected["content"][0]["type"] != "text":
        # What kept it alive stays there, empty.
        assert message["content"].pop(0) == {"type": "text", "text": ""}
    assert message == expected


@pytest.mark.parametrize(
    ("status", "permanent", "sent", "kind"),
    [
        (400, False, 400, "invalid_request_error"),
        (401, False, 401, "authentication_error"),
        (403, False, 403, "permission_error"),
        (404, False, 404, "not_found_error"),
        (408, False, 408, "invalid_request_error"),
        (409, False, 409, "invalid_request_error"),
        (409, True, 400, "invalid_request_error"),
        (413, False, 413, "request_too_large"),
        (429, False, 429, "rate_limit_error"),
        (500, True, 500, "api_error"),
        (502, False, 502, "api_error"),
        (503, False, 503, "overloaded_error"),
        (504, False, 504, "timeout_error"),
        (529, False, 529, "overloaded_error"),
    ],
)
def test_errors_by_status(status: int, permanent: bool, sent: int, kind: str) -> None:
    failure = Failure(status, "no", "x", permanent=permanent)
    assert error_status(failure) == sent
    assert error_object(failure) == {"type": "error", "error": {"type": kind, "message": "no"}}
    assert events_of(MessagesEvents(FRAME).broken(failure)) == [error_object(failure)]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("context_length_exceeded", "context_length_exceeded"),
        (str(ContextOverflow(9, 5)), str(ContextOverflow(9, 5)).removeprefix("prompt is too long: ")),
        (
            "The input (41000 tokens) is longer than the model's context length (40960 tokens).",
            "41000 tokens > 40960 maximum",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total "
            "of 64123 tokens: 123 tokens from the input messages and 64000 tokens for the completion. Please reduce",
            "input length and `max_tokens` exceed context limit: 123 + 64000 > 40960",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total "
            "of 105000 tokens: 41000 tokens from the input messages and 64000 tokens for the completion.",
            "41000 tokens > 40960 maximum",
        ),
    ],
)
@pytest.mark.parametrize("status", [400, 413])
def test_a_prompt_that_does_not_fit(said: str, read: str, status: int) -> None:
    failure = Failure(status, said, CONTEXT_OVERFLOW)
    assert error_status(failure) == 400
    assert error_object(failure)["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {read}",
    }
