"""What goes wrong, as the official SDK raises it; and streams that have to wait."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from tests.web.dialects.responses_support import (
    EVENT,
    TOOLS,
    Agent,
    agent,
    agent_in,
    answer,
    assert_one_line,
    comparable,
    plain,
)
from tests.web.support import Serve, Session, compact, user
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine

OVERFLOW = "The input is longer than the model's context length (8192 tokens)."


def refusal(status: int, text: str, *headers: tuple[str, str]) -> EngineAnswer:
    """As SGLang words it."""
    return EngineAnswer(status, headers, compact({"object": "error", "message": text, "code": status}))


async def raised(talking: Agent, given: Any = "hi", **fields: Any) -> openai.APIStatusError:
    """The error that the SDK raises, which is the same for a stream that was not opened."""
    with pytest.raises(openai.APIStatusError) as whole:
        await talking.create(given, **fields)
    return whole.value


def shape(error: openai.APIStatusError) -> dict[str, Any]:
    """The error object."""
    body: dict[str, Any] = json.loads(error.response.content)
    assert list(body) == ["error"]
    assert error.response.headers["content-type"] == "application/json"
    return dict(body["error"])


async def test_a_request_that_is_wrong(serve: Serve) -> None:
    async with agent(serve) as talking:
        for stream in (False, True):
            error = await raised(talking, [{"role": "user", "content": [{"type": "input_text"}]}], stream=stream)
            assert isinstance(error, openai.BadRequestError)
            assert shape(error) == {
                "message": "input[0].content[0]: object missing required field `text`",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request",
            }
        assert await talking.session.records() == []


async def test_a_response_that_is_not_there(serve: Serve) -> None:
    async with agent(serve) as talking:
        error = await raised(talking, previous_response_id="resp_1")
    assert isinstance(error, openai.BadRequestError)
    assert shape(error) == {
        "message": "Previous response with id 'resp_1' not found. The session does not have it, or no longer: send "
        "the whole conversation as input",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


async def test_a_session_that_is_not_there(serve: Serve) -> None:
    async with agent_in(Session(await serve(), "0" * 32)) as talking:
        error = await raised(talking)
    assert isinstance(error, openai.NotFoundError)
    assert shape(error)["code"] == error.code == "session_not_found"


@pytest.mark.parametrize(
    ("step", "kind", "status", "code"),
    [
        (refusal(400, "wrong"), openai.BadRequestError, 400, "engine_refused"),
        (refusal(400, OVERFLOW), openai.BadRequestError, 400, "context_length_exceeded"),
        (refusal(422, "wrong"), openai.UnprocessableEntityError, 422, "engine_refused"),
        # Codex never tries a 429 again.
        (refusal(429, "busy"), openai.InternalServerError, 503, "engine_refused"),
        (refusal(500, "broken"), openai.InternalServerError, 500, "engine_refused"),
        (EngineUnreachable("ConnectError", "refused"), openai.InternalServerError, 502, "engine_unreachable"),
        (answer("ok", choices=[]), openai.InternalServerError, 502, "bad_engine_answer"),
    ],
    ids=str,
)
async def test_what_the_engine_does(serve: Serve, step: Any, kind: type[Exception], status: int, code: str) -> None:
    async with agent(serve, step, step) as talking:
        for stream in (False, True):
            error = await raised(talking, stream=stream)
            assert isinstance(error, kind)
            assert (error.status_code, error.code) == (status, code)
            assert error.type == ("invalid_request_error" if status < 500 else "server_error")
        assert await talking.session.records() == []


async def test_when_to_try_again_is_the_engines_to_say(serve: Serve) -> None:
    headers = (("Retry-After", "7"), ("x-engine", "a"), ("content-type", "text/plain"), ("server", "engine"))
    async with agent(serve, refusal(429, "busy", *headers)) as talking:
        error = await raised(talking)
    assert shape(error)["message"] == "busy"
    assert error.response.headers["retry-after"] == "7"
    assert error.response.headers["x-engine"] == "a"
    assert error.response.headers.get("server") != "engine"
    assert error.response.headers.get_list("content-type") == ["application/json"]


async def test_what_comes_again_is_no_conflict(serve: Serve) -> None:
    # Codex tries a 409 again and again.
    async with agent(serve, answer("cut", finish_reason="length"), on_truncated="refuse") as talking:
        first = await talking.create("q")
        error = await raised(talking, "more", previous_response_id=first.id)
    assert isinstance(error, openai.BadRequestError)
    assert error.code == "truncated_generation"
    assert error.response.headers["x-should-retry"] == "false"


async def test_the_chat_route_keeps_its_errors(serve: Serve) -> None:
    async with agent(serve) as talking:
        reply = await talking.session.post(b'{"messages": []}')
    assert reply.json() == {"error": "messages must be a list with at least one message"}


class Waiting:
    """A stream whose engine takes its time."""

    def __init__(self, talking: Agent, held: HeldCalls) -> None:
        self.talking = talking
        self._held = held

    async def events(self, result: EngineAnswer | Exception, *, signs: int = 3) -> list[Any]:
        """All events; the engine answers ``result`` once the stream has shown that often that it is alive."""
        events = []
        stream = await self.talking.client.responses.create(model="m", input="hi", tools=TOOLS, stream=True)
        async for event in stream:
            events.append(event)
            if len(events) == 2 + signs:
                self._held.waiting[0].answer(result)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return events


async def waiting(serve: Serve, talk: Any, **settings: Any) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), stream_grace=0, stream_keep_alive=0.01, **settings)
    async with agent_in(await served.session()) as talking:
        await talk(Waiting(talking, held))


async def test_a_stream_that_waits_shows_that_it_is_alive(serve: Serve) -> None:
    async def talk(stream: Waiting) -> None:
        events = await stream.events(answer("ok", reasoning="hm"))
        kinds = [event.type for event in events]
        signs = kinds.index("response.output_item.added")
        assert kinds[:signs] == ["response.created", *["response.in_progress"] * (signs - 1)]
        assert signs >= 5
        for event in events:
            EVENT.validate_json(event.to_json())
        # What the client said need not be said to it again and again.
        assert [len(event.response.tools) for event in events[:3]] == [len(TOOLS), len(TOOLS), 0]
        assert kinds[-1] == "response.completed"
        assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
        await assert_one_line(stream.talking.session, 1)
        async with agent(serve, answer("ok", reasoning="hm")) as other:
            assert comparable(events[-1].response) == comparable(await other.create("hi", tools=TOOLS))

    await waiting(serve, talk)


async def test_the_streaming_helper_waits_too(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(held), stream_grace=0, stream_keep_alive=0.01)
    async with (
        agent_in(await served.session()) as talking,
        talking.client.responses.stream(model="m", input="hi") as stream,
    ):
        alive = 0
        async for event in stream:
            alive += event.type == "response.in_progress"
            if alive == 3 and held.waiting:
                held.waiting[0].answer(answer("ok"))
                await trio.lowlevel.checkpoint()
        assert (await stream.get_final_response()).output_text == "ok"


@pytest.mark.parametrize(
    ("step", "code", "kind"),
    [
        (refusal(400, "wrong"), "invalid_prompt", "engine_refused"),
        (refusal(400, OVERFLOW), "context_length_exceeded", "context_length_exceeded"),
        (refusal(429, "busy"), "rate_limit_exceeded", "engine_refused"),
        (refusal(500, "broken"), "server_error", "engine_refused"),
        (EngineUnreachable("ConnectError", "refused"), "server_error", "engine_unreachable"),
        (answer("ok", choices=[]), "server_error", "bad_engine_answer"),
        (RuntimeError("inside"), "server_error", "internal_error"),
    ],
    ids=str,
)
async def test_an_error_in_an_open_stream_is_its_last_event(serve: Serve, step: Any, code: str, kind: str) -> None:
    async def talk(stream: Waiting) -> None:
        events = await stream.events(step)
        assert [event.type for event in events].count("response.failed") == 1
        failed = events[-1]
        assert failed.type == "response.failed"
        assert failed.response.id == events[0].response.id
        assert failed.response.status == "failed"
        error = plain(failed.response.error)
        assert (error["code"], error["type"]) == (code, kind)
        assert error["message"]
        assert "inside" not in error["message"]
        # The SDK's types do not have the code that agents look for when a prompt is too long.
        if code != "context_length_exceeded":
            EVENT.validate_json(failed.to_json())
        assert await stream.talking.session.records() == []

    await waiting(serve, talk)


async def test_the_streaming_helper_delivers_the_failure(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(held), stream_grace=0, stream_keep_alive=0.01)
    async with (
        agent_in(await served.session()) as talking,
        talking.client.responses.stream(model="m", input="hi") as stream,
    ):
        kinds = []
        async for event in stream:
            kinds.append(event.type)
            if len(kinds) == 3:
                held.waiting[0].answer(refusal(500, "broken"))
        with pytest.raises(RuntimeError):
            await stream.get_final_response()
    assert kinds[-1] == "response.failed"


async def test_what_is_left_out_is_logged_and_what_was_said_is_not(serve: Serve) -> None:
    structlog.reset_defaults()
    secret = "what somebody said"
    items: list[Any] = [
        user(secret),
        {"type": secret, "status": secret},
        {"role": "user", "content": [{"type": "input_image", "image_url": secret}]},
    ]
    body = {"input": items, "tools": [{"type": secret}], "user": secret}
    session = await (await serve(ScriptedEngine(answer(secret)))).session()
    with capture_logs() as logs:
        reply = await session.served.client.post(f"{session.path}/v1/responses", json=body)
    assert reply.status_code == 200
    [left_out] = [line for line in logs if "dropped" in line]
    assert left_out["dropped"] == [
        "unknown tool",
        "unknown item",
        "input_image part",
    ]
    assert secret not in repr([line for line in logs if line["log_level"] != "debug"])
