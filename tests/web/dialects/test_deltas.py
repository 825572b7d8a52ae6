"""An answer that comes in deltas is the answer that comes whole, in every dialect and however it is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response

from tests.core import PATIENT
from tests.web.dialects import test_messages_answer as messages
from tests.web.dialects import test_responses_properties as responses
from tests.web.dialects.responses_support import EVENT, TOOLS
from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.dialect import EventWriter
from trio_sessions.service.failure import Failure
from trio_sessions.testing.engine import chat_answer
from trio_sessions.web.dialects.chat import ChatEvents
from trio_sessions.web.dialects.messages.events import MessagesEvents

HEAD = {"id": "chatcmpl-scripted", "created": 1700000000, "model": "scripted"}


@dataclass(frozen=True)
class Course:
    """How a stream goes, until the whole answer is there.

    Attributes:
        answer: the whole answer.
        keep_alives: before the first delta, in a stream that was opened; None where it was not.
        steps: deltas, and None for a keep-alive.
    """

    answer: EngineAnswer
    keep_alives: int | None
    steps: Sequence[Delta | None]

    @property
    def reasoning(self) -> str:
        return "".join(step.reasoning for step in self.steps if step is not None)

    @property
    def content(self) -> str:
        return "".join(step.content for step in self.steps if step is not None)

    def begin(self, writer: EventWriter) -> bytes:
        """All that is written before the whole answer is there."""
        stream = b""
        if self.keep_alives is not None:
            stream = writer.opening() + b"".join(writer.keep_alive() for _ in range(self.keep_alives))
        for step in self.steps:
            if step is not None:
                stream += writer.delta(step)
            elif stream:
                stream += writer.keep_alive()
        return stream


@st.composite
def courses(draw: st.DrawFn) -> Course:
    content, calls = draw(responses.TEXT), draw(responses.CALLS)
    reasoning = draw(st.none() | responses.TEXT | st.just("hm"))
    reason = draw(st.sampled_from(["stop", "tool_calls", "length", "abort", "content_filter"]))
    fields = {} if reasoning is None else {"reasoning_content": reasoning}
    message = {"role": "assistant", "content": content, "tool_calls": calls or None, **fields}
    # What the client was not sent yet when the whole answer is there comes with its end.
    said = (reasoning or "") + content
    until = draw(st.just(len(said)) | st.integers(0, len(said)))
    places = sorted(draw(st.lists(st.integers(0, until), max_size=6)))
    steps: list[Delta | None] = []
    border = len(reasoning or "")
    for start, end in zip([0, *places], [*places, until], strict=True):
        steps.append(Delta(said[start : min(end, border)], said[max(start, border) : end], HEAD))
        steps += [None] * draw(st.integers(0, 1))
    return Course(
        chat_answer(message=message, finish_reason=reason), draw(st.none() | st.integers(0, 2)), draw(st.just(steps))
    )


def chat_message(stream: bytes) -> dict[str, Any]:
    """What a chat client makes of a stream, which must be in order: the message and what describes the answer."""
    *events, done = [event for event in stream.decode().split("\n\n")[:-1] if not event.startswith(":")]
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for index, chunk in enumerate(chunks):
        # Not a reason that OpenAI knows, but the engine's own.
        if chunk["choices"][0]["finish_reason"] != "abort":
            ChatCompletionChunk.model_validate(chunk)
        assert {name: chunk[name] for name in HEAD} == HEAD
        [choice] = chunk["choices"]
        delta = choice["delta"]
        assert ("role" in delta) == (index == 0)
        assert (choice["finish_reason"] is None) == (index < len(chunks) - 1)
        assert ("usage" in chunk) == (index == len(chunks) - 1)
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        message["tool_calls"] += delta.get("tool_calls", [])
    return {**message, "finish_reason": chunks[-1]["choices"][0]["finish_reason"], "usage": chunks[-1]["usage"]}


@PATIENT
@given(courses())
def test_chat(course: Course) -> None:
    writer = ChatEvents()
    stream = course.begin(writer) + writer.finish(course.answer)
    assert chat_message(stream) == chat_message(ChatEvents().finish(course.answer))


@PATIENT
@given(courses(), st.booleans())
def test_messages(course: Course, thinking: bool) -> None:
    frame = messages.FRAME if thinking else messages.QUIET
    writer = MessagesEvents(frame)
    message = messages.accumulated(course.begin(writer) + writer.finish(course.answer))
    expected = json.loads(messages.core_json.encode(frame.whole(course.answer)))
    if course.keep_alives is not None and expected["content"][0]["type"] != "text":
        # What kept it alive stays there, empty.
        assert message["content"].pop(0) == {"type": "text", "text": ""}
    assert message == expected


@PATIENT
@given(courses(), st.booleans())
def test_responses(course: Course, encrypted: bool) -> None:
    include = {"include": ["reasoning.encrypted_content"]} if encrypted else {}
    exchange = responses.read({"input": "hi", "tools": TOOLS, "model": "m", **include})
    whole = json.loads(exchange.writer.reply(course.answer).body)
    Response.model_validate(whole)
    writer = exchange.writer.events()
    events = responses.events_of(course.begin(writer) + writer.finish(course.answer))
    for number, event in enumerate(events):
        assert EVENT.validate_python(event).type == event["type"]
        assert event["sequence_number"] == number
    types = [event["type"] for event in events]
    assert types.count("response.created") == 1
    assert types.count("response.output_item.added") == types.count("response.output_item.done") == len(whole["output"])
    assert types.count("response.content_part.done") == types.count("response.content_part.added")
    assert events[-1]["response"] == whole
    assert responses.accumulated(events) == whole["output"]


WRITERS = {
    "chat": ChatEvents,
    "messages": lambda: MessagesEvents(messages.FRAME),
    "quiet messages": lambda: MessagesEvents(messages.QUIET),
    "responses": lambda: responses.read({"input": "hi"}).writer.events(),
}


@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
class TestAllOfThem:
    def test_nothing_new_is_nothing(self, make: Any) -> None:
        assert make().delta(Delta()) == b""
        writer = make()
        assert writer.opening()
        assert writer.delta(Delta()) == b""

    @PATIENT
    @given(course=courses())
    def test_a_delta_is_written_at_once_and_never_again(self, make: Any, course: Course) -> None:
        writer = make()
        begun = course.begin(writer)
        message = json.loads(course.answer.body)["choices"][0]["message"]
        reasoning = message.get("reasoning_content") or ""
        shown = course.reasoning + course.content, reasoning + message["content"]
        quiet = course.content, message["content"]
        assert (_deltas(begun), _deltas(begun + writer.finish(course.answer))) in (shown, quiet)

    def test_a_stream_that_breaks_after_a_delta_ends_with_the_error(self, make: Any) -> None:
        writer = make()
        stream = writer.delta(Delta("hm", "ok", HEAD)) + writer.broken(Failure(502, "it broke", "bad_engine_answer"))
        assert b"it broke" in stream
        assert stream.count(b"it broke") == 1
        assert stream.endswith(b"\n\n")


def test_reasoning_that_is_not_to_be_seen_opens_no_stream() -> None:
    writer = MessagesEvents(messages.QUIET)
    assert writer.delta(Delta("secret")) == b""
    assert b"message_start" in writer.delta(Delta("", "ok"))


def _deltas(stream: bytes) -> str:
    """The texts of all deltas, but for arguments."""
    text = ""
    for event in stream.decode().split("\n\n")[:-1]:
        *_, data = event.split("\n")
        if not data.startswith("data: {"):
            continue
        decoded = json.loads(data.removeprefix("data: "))
        if "choices" in decoded:
            delta = decoded["choices"][0]["delta"]
            text += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        elif decoded["type"] == "content_block_delta":
            text += decoded["delta"].get("thinking", "") + decoded["delta"].get("text", "")
        elif decoded["type"] in ("response.output_text.delta", "response.reasoning_text.delta"):
            text += decoded["delta"]
    return text


def test_each_part_begins_and_ends_once() -> None:
    """Reasoning, content and a call, all but the call in deltas."""
    message = {
        "role": "assistant",
        "content": "ok",
        "reasoning_content": "hm",
        "tool_calls": [responses.call("f", "{}")],
    }
    course = Course(
        chat_answer(message=message), None, [Delta("h"), Delta("m"), Delta("", "o"), None, Delta("", "k"), Delta()]
    )
    writer = responses.read({"input": "hi"}).writer.events()
    events = responses.events_of(course.begin(writer) + writer.finish(course.answer))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "in_progress", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    messages_writer = MessagesEvents(messages.FRAME)
    events = messages.events_of(course.begin(messages_writer) + messages_writer.finish(course.answer))
    assert [event.get("delta", event).get("type", "") for event in events if event["type"] != "message_delta"] == [
        "message_start",
        *("content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "text_delta", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop"),
        "message_stop",
    ]
