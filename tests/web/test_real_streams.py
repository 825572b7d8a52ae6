"""``--stream real``: what the engine samples reaches the client at once, and the turn is as exact as any other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from structlog.testing import capture_logs

from tests.web.dialects.anthropic_sdk import asked, sdk
from tests.web.dialects.responses_support import agent_in, assert_one_line
from tests.web.reading import BODY, COMMENT, opened
from tests.web.stream_engine import StreamedCall, StreamEngine, stream_engine
from tests.web.support import (
    CHAT,
    LIMIT_SECONDS,
    RawConnection,
    Serve,
    Served,
    Session,
    assistant,
    gather,
    settle,
    until,
    user,
)
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.embedded import EmbeddedEngine, serve_engine
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer

CALL = {"id": "c0", "index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TEXT_IDS = [101, 102, 103]


@pytest.fixture
async def engine() -> AsyncIterator[StreamEngine]:
    async with stream_engine() as made:
        yield made


@pytest.fixture
async def served(serve: Serve, engine: StreamEngine) -> AsyncIterator[Served]:
    async with SGLangEngine(engine.url, timeout=LIMIT_SECONDS) as client:
        yield await serve(client, stream="real", stream_grace=0)


@pytest.fixture
async def session(served: Served) -> Session:
    """Its streams are opened at once."""
    return await served.session()


@pytest.fixture
async def patient(serve: Serve, engine: StreamEngine) -> AsyncIterator[Session]:
    """Its streams are opened by the first delta."""
    async with SGLangEngine(engine.url, timeout=LIMIT_SECONDS) as client:
        yield await (await serve(client, stream="real", stream_grace=LIMIT_SECONDS)).session()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    structlog.reset_defaults()
    with capture_logs() as captured:
        yield captured


def sampled(record: dict[str, Any]) -> list[int]:
    return [entry[1] for entry in record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]]


def accumulated(stream: bytes) -> Any:
    """The message that OpenAI's SDK makes of a stream."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    events = [event for event in stream.split(b"\n\n") if event.startswith(b"data: {")]
    for event in events:
        state.handle_chunk(ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: ")))
    return state.get_final_completion().choices[0].message


class TestDeltasReachTheClientBeforeTheEngineIsDone:
    """The engine says the next only after the client has read the last."""

    async def test_in_chat(self, session: Session, engine: StreamEngine) -> None:
        async with opened(session) as reading:
            call = await engine.call()
            for text, ids in (("hm", [7]), ("ok", [8, 9]), (" there", [10])):
                await call.say(**{"reasoning" if text == "hm" else "content": text}, ids=ids)
                await reading.until(text.encode())
            await call.finish(calls=[CALL], routed_experts="AAAA")
            message = accumulated(await reading.rest())
        assert (message.content, message.reasoning_content) == ("ok there", "hm")
        assert [tool_call.function.arguments for tool_call in message.tool_calls] == ['{"a": 1}']
        await self._check(session, engine)

    async def test_in_messages(self, patient: Session, engine: StreamEngine) -> None:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        client = sdk(patient)
        async with client, trio.open_nursery() as nursery:
            seen: list[str] = []
            final: list[Any] = []

            async def read() -> None:
                async with client.messages.stream(**asked(thinking=thinking)) as stream:
                    async for event in stream:
                        if event.type in ("text", "thinking"):
                            seen.append(getattr(event, event.type))
                    final.append(await stream.get_final_message())

            nursery.start_soon(read)
            await self._talk(engine, seen)
        [message] = final
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert [message.content[0].thinking, message.content[1].text] == ["hm", "ok there"]
        assert message.content[0].signature == message.id
        assert (message.content[2].input, message.stop_reason) == ({"a": 1}, "tool_use")
        assert message.usage.output_tokens == len(engine.calls[0].ids)
        await self._check(patient, engine)

    async def test_in_responses(self, patient: Session, engine: StreamEngine) -> None:
        async with agent_in(patient) as talking, trio.open_nursery() as nursery:
            seen: list[str] = []
            final: list[Any] = []

            async def read() -> None:
                async with talking.client.responses.stream(model="m", input="hi") as stream:
                    async for event in stream:
                        if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
                            seen.append(event.delta)
                    final.append(await stream.get_final_response())

            nursery.start_soon(read)
            await self._talk(engine, seen)
        [response] = final
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert (response.output[0].content[0].text, response.output_text) == ("hm", "ok there")
        assert response.output[2].arguments == '{"a": 1}'
        assert response.usage.output_tokens == len(engine.calls[0].ids)
        await self._check(patient, engine)

    async def _talk(self, engine: StreamEngine, seen: list[str]) -> None:
        call = await engine.call()
        for text, ids in (("hm", [7]), ("ok", [8, 9]), (" there", [10])):
            await call.say(**{"reasoning" if text == "hm" else "content": text}, ids=ids)
            await until(lambda text=text: text in seen)
        await call.finish(calls=[CALL], routed_experts="AAAA")

    async def _check(self, session: Session, engine: StreamEngine) -> None:
        asked_for = engine.calls[0].request.json()
        assert (asked_for["stream"], asked_for["stream_options"]) == (True, {"include_usage": True})
        assert (asked_for["logprobs"], asked_for["return_meta_info"]) == (True, True)
        [record] = await session.records()
        [choice] = record["response"]["choices"]
        assert sampled(record) == engine.calls[0].ids == [7, 8, 9, 10]
        assert choice["message"] == {
            "role": "assistant",
            "content": "ok there",
            "reasoning_content": "hm",
            "tool_calls": [CALL],
        }
        assert (choice["finish_reason"], choice["meta_info"]["routed_experts"]) == ("tool_calls", "AAAA")
        assert record["response"]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 9}
        assert record["request"] == asked_for


async def say_all(call: StreamedCall) -> None:
    await call.say("ok", ids=TEXT_IDS[:2])
    await call.say(" there", ids=TEXT_IDS[2:])


async def test_the_turn_behind_it_extends_it_exactly(session: Session, engine: StreamEngine) -> None:
    async with opened(session) as reading:
        await say_all(await engine.call())
        await engine.calls[0].finish()
        await reading.rest()
    async with opened(session, messages=[user("hi"), assistant("ok there"), user("go on")]) as reading:
        call = await engine.call(count=2)
        await call.say("yes", ids=[5])
        await call.finish()
        await reading.rest()
    first, second = engine.calls
    assert second.request.json()["input_ids"][: len(first.request.json()["input_ids"]) + 3] == [
        *first.request.json()["input_ids"],
        *TEXT_IDS,
    ]
    await assert_one_line(session, 2)


class TestWhatBreaks:
    """It is an error event in the stream that has begun, and nothing is recorded."""

    async def _broken(self, session: Session, engine: StreamEngine, how: Any) -> str:
        async with session.unchanged(), opened(session) as reading:
            call = await engine.call()
            await call.say("ok", ids=[5])
            await reading.until(b'"content":"ok"')
            await how(call)
            body = await reading.rest()
        *_, error, done, rest = body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        text: str = json.loads(error.removeprefix(b"data: "))["error"]["message"]
        metrics = session.served.gateway.metrics
        assert metrics.registry.get_sample_value("trio_sessions_turns_total", {"outcome": "engine_error"}) == 1
        assert metrics.registry.get_sample_value("trio_sessions_turns_in_flight") == 0
        return text

    async def test_the_connection(self, session: Session, engine: StreamEngine) -> None:
        async def how(call: StreamedCall) -> None:
            call.break_off()

        assert "backend transport error: RemoteProtocolError" in await self._broken(session, engine, how)

    async def test_counts(self, session: Session, engine: StreamEngine) -> None:
        text = await self._broken(session, engine, lambda call: call.finish(counted=2))
        assert text == ("invalid chat completion stream: len(output_token_logprobs)=1 != usage.completion_tokens=2")

    async def test_ids_that_are_said_again(self, session: Session, engine: StreamEngine) -> None:
        async def how(call: StreamedCall) -> None:
            await call.say(" there", ids=[5, 6])
            await call.finish(counted=2, completion_tokens=2)

        assert "len(output_token_logprobs)=3 != usage.completion_tokens=2" in await self._broken(session, engine, how)

    async def test_the_engine_itself(self, session: Session, engine: StreamEngine) -> None:
        async def how(call: StreamedCall) -> None:
            await call.event({"error": {"message": "out of memory"}})
            await until(lambda: call.gone)

        assert "the engine broke it off with an error" in await self._broken(session, engine, how)

    async def test_what_is_no_json(self, session: Session, engine: StreamEngine) -> None:
        async def how(call: StreamedCall) -> None:
            await call.event(b"{")
            # There is nothing more to be learned from it.
            await until(lambda: call.gone)

        assert "invalid chat completion stream: " in await self._broken(session, engine, how)

    async def test_its_end(self, session: Session, engine: StreamEngine) -> None:
        async def how(call: StreamedCall) -> None:
            await call.event({"choices": [], "usage": {"completion_tokens": 1}})
            await call.send(b"")
            call.break_off()

        assert "it ended before [DONE]" in await self._broken(session, engine, how)


@pytest.mark.parametrize("path", [CHAT, "v1/messages", "v1/responses"])
async def test_a_break_is_an_error_event_in_every_dialect(session: Session, engine: StreamEngine, path: str) -> None:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [user("hi")], "input": "hi"}
    url = f"{session.path}/{path}"
    async with session.unchanged(), session.served.client.stream("POST", url, json=body) as response:
        call = await engine.call()
        await call.say("ok", ids=[5])
        await call.finish(counted=2)
        text = (await response.aread()).decode()
    assert (response.status_code, text.count("completion_tokens=2")) == (200, 1)
    last = text.removesuffix("data: [DONE]\n\n").split("\n\n")[-2]
    assert "completion_tokens=2" in last


async def test_more_than_an_answer_may_be(serve: Serve, engine: StreamEngine) -> None:
    async with SGLangEngine(engine.url, timeout=LIMIT_SECONDS, max_answer_bytes=2000) as client:
        session = await (await serve(client, stream="real", stream_grace=0)).session()
        async with session.unchanged(), opened(session) as reading:
            call = await engine.call()
            await call.say("ok", ids=[5])
            await reading.until(b'"content":"ok"')
            await call.say("x" * 2000)
            assert b"AnswerTooLarge" in await reading.rest()
        await until(lambda: call.gone)


async def test_an_engine_that_takes_too_long_in_the_middle(serve: Serve, engine: StreamEngine) -> None:
    async with SGLangEngine(engine.url, timeout=0.5) as client:
        session = await (await serve(client, stream="real", stream_grace=0)).session()
        async with session.unchanged(), opened(session) as reading:
            call = await engine.call()
            await call.say("ok", ids=[5])
            assert b"the engine did not answer within 0.5 s" in await reading.rest()
        await until(lambda: call.gone)


@asynccontextmanager
async def asked_by_hand(session: Session, **headers: str) -> AsyncIterator[RawConnection]:
    """A streamed turn over a connection from which nothing is read."""
    body = json.dumps(BODY).encode()
    lines = [f"POST {session.path}/{CHAT} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    async with await session.served.connect() as connection:
        await connection.send("\r\n".join([*lines, "", ""]).encode() + body)
        yield connection


async def test_a_client_that_leaves_in_the_middle_cancels_the_request(patient: Session, engine: StreamEngine) -> None:
    async with patient.unchanged():
        async with asked_by_hand(patient) as connection:
            call = await engine.call()
            await call.say("ok", ids=[5])
            # The head is there with the first delta, not before.
            assert await connection.interim() == b"HTTP/1.1 200 "
        await until(lambda: call.gone)
        metrics = patient.served.gateway.metrics.registry
        await until(lambda: metrics.get_sample_value("trio_sessions_turns_total", {"outcome": "cancelled"}) == 1)


async def test_a_silent_engine_is_bridged_also_behind_a_delta(serve: Serve, engine: StreamEngine) -> None:
    """Arguments of a call may take long, and are sent when they are whole."""
    async with SGLangEngine(engine.url, timeout=LIMIT_SECONDS) as client:
        session = await (await serve(client, stream="real", stream_grace=0, stream_keep_alive=0.01)).session()
        async with opened(session) as reading:
            call = await engine.call()
            await call.say("ok", ids=[5])
            await reading.until(b'"content":"ok"')
            before = len(reading.received)
            await reading.until(COMMENT, after=before)
            await call.finish()
            await reading.rest()
    assert len(await session.records()) == 1


class TestASlowReader:
    """It keeps neither the engine nor its turn waiting."""

    PIECE = "x" * 64 * 1024
    PIECES = 128

    async def _fill(self, session: Session, call: StreamedCall) -> None:
        for number in range(self.PIECES):
            await call.say(self.PIECE, ids=[number])
        await call.finish()
        await until(lambda: bool(session.served.gateway.registry.in_memory(session.id).history.nodes))

    async def test_gets_it_all_long_after_the_turn(self, session: Session, engine: StreamEngine) -> None:
        async with asked_by_hand(session) as connection:
            await self._fill(session, await engine.call())
            await settle()
            # The turn is over, and it takes another.
            assert session.served.gateway.metrics.registry.get_sample_value("trio_sessions_turns_in_flight") == 0
            response = await connection.response()
        assert response.status == 200
        *events, done, rest = response.body.replace(COMMENT, b"").split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        deltas = [json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content", "") for delta in deltas) == self.PIECE * self.PIECES
        # What waited was put together.
        assert len(deltas) < self.PIECES

    async def test_does_not_hold_up_a_shutdown(self, session: Session, engine: StreamEngine) -> None:
        async with asked_by_hand(session):
            call = await engine.call()
            for number in range(self.PIECES):
                await call.say(self.PIECE, ids=[number])
            await settle()
            with trio.fail_after(LIMIT_SECONDS / 2):
                await session.served.gateway.registry.drain(grace=0)
            await until(lambda: call.gone)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_retry_joins_a_turn_that_streams(session: Session, engine: StreamEngine, streams: bool) -> None:
    again = {"x-stainless-retry-count": "1"}
    whole: list[Any] = []

    async def retry() -> None:
        whole.append(await session.chat(user("hi"), headers=again, stream=streams))

    async with trio.open_nursery() as nursery:
        async with asked_by_hand(session, x_stainless_retry_count="0") as connection:
            call = await engine.call()
            await call.say("ok", ids=TEXT_IDS[:2])
            await connection.interim()
            nursery.start_soon(retry)
            await settle()
        # Its own client is gone, but another waits for it.
        await settle()
        await call.say(" there", ids=TEXT_IDS[2:])
        await call.finish()
    assert '"content":"ok there"' in whole[0].text
    assert len(engine.calls) == 1
    [record] = await session.records()
    assert sampled(record) == TEXT_IDS


async def test_it_is_logged_and_counted_as_any_turn(session: Session, engine: StreamEngine, logs: list[Any]) -> None:
    async with opened(session) as reading:
        await say_all(await engine.call())
        await engine.calls[0].finish()
        await reading.rest()
    [told] = [line for line in logs if line["event"] == "turn answered"]
    assert (told["outcome"], told["sampled_tokens"], told["finish_reason"]) == ("committed", 3, "stop")
    assert "there" not in repr([line for line in logs if line["log_level"] != "debug"])
    metrics = session.served.gateway.metrics.registry
    assert metrics.get_sample_value("trio_sessions_turns_total", {"outcome": "committed"}) == 1
    assert metrics.get_sample_value("trio_sessions_sampled_tokens_total") == 3
    assert metrics.get_sample_value("trio_sessions_engine_seconds_count") == 1


async def test_the_remaining_budget_is_in_the_head(serve: Serve, engine: StreamEngine) -> None:
    async with SGLangEngine(engine.url, timeout=LIMIT_SECONDS) as client:
        session = await (await serve(client, stream="real", max_seq_len=1000)).session()
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                call = await engine.call()
                await say_all(call)
                await call.finish()

            nursery.start_soon(answer)
            async with opened(session) as reading:
                prompt = engine.calls[0].request.json()["input_ids"]
                assert reading.response.headers["x-trio-sessions-remaining-tokens"] == str(1000 - len(prompt))
                await reading.rest()


@pytest.mark.parametrize(("stream", "wanted"), [("buffered", True), ("real", False)])
async def test_without_the_option_or_the_clients_wish_the_engine_answers_whole(
    serve: Serve, stream: str, wanted: bool
) -> None:
    served = await serve(ScriptedEngine(), stream=stream)
    response = await (await served.session()).chat(user("hi"), stream=wanted)
    assert response.status_code == 200
    assert not {"stream", "stream_options"} & served.engine.body().keys()


class RefusingEngine(ScriptedEngine):
    """Refuses streams, as SGLang does that are to have ids."""

    REFUSAL = EngineAnswer(400, (), b'{"message":"return_meta_info is not supported with streaming."}')

    async def stream(self, request: EngineCall, take: Any) -> EngineAnswer:
        """A 400."""
        await self.call(request)
        return self.REFUSAL


class TestAnEngineThatGivesNoStreams:
    async def test_answers_whole_and_is_asked_no_more(self, serve: Serve, logs: list[Any]) -> None:
        session = await (await serve(RefusingEngine(), stream="real", mode="tree")).session()
        for _ in range(2):
            response = await session.chat(user("hi"), stream=True)
            assert (response.status_code, response.text.count('"content":"ok"')) == (200, 1)
        engine = session.served.engine
        assert [("stream" in engine.body(index)) for index in range(len(engine.calls))] == [True, False, False]
        warnings = [line for line in logs if line["log_level"] == "warning"]
        assert [line["event"].partition(":")[0] for line in warnings] == ["the engine gives no ids in streams"]
        assert all("stream" not in record["request"] for record in await session.records())
        assert len(await session.records()) == 1

    async def test_is_found_out_once_by_several_turns(self, serve: Serve, logs: list[Any]) -> None:
        held = HeldCalls()
        served = await serve(RefusingEngine(otherwise=held), stream="real", mode="tree")
        sessions = [await served.session() for _ in range(3)]
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                for asked_so_far in (3, 6):
                    await until(lambda: (len(served.engine.calls), len(held.waiting)) == (asked_so_far, 3))  # noqa: B023
                    for call in held.waiting:
                        call.answer(chat_answer())

            nursery.start_soon(answer)
            responses = await gather(*(lambda each=each: each.chat(user("hi"), stream=True) for each in sessions))
        assert [response.status_code for response in responses] == [200] * 3
        assert len([line for line in logs if line["log_level"] == "warning"]) == 1

    async def test_what_it_refuses_in_any_form_says_nothing_of_streams(self, serve: Serve, logs: list[Any]) -> None:
        refusal = EngineAnswer(400, (), b'{"message":"too hot"}')
        engine = RefusingEngine(chat_answer(), refusal)
        session = await (await serve(engine, stream="real")).session()
        response = await session.chat(user("hi"), stream=True)
        assert (response.status_code, response.content) == (400, b'{"message":"too hot"}')
        assert not [line for line in logs if "gives no ids" in line["event"]]
        # The next is asked for as a stream again.
        await session.chat(user("hi"), stream=True)
        assert [("stream" in engine.body(index)) for index in range(4)] == [True, False, True, False]

    async def test_another_refusal_is_passed_on(self, serve: Serve) -> None:
        engine = ScriptedEngine(EngineAnswer(429, (("retry-after", "7"),), b'{"message":"later"}'))
        session = await (await serve(engine, stream="real")).session()
        response = await session.chat(user("hi"), stream=True)
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert len(engine.calls) == 1


async def test_with_the_embedded_engine_a_whole_loop_is_one_line(serve: Serve) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_engine, EmbeddedEngine(seed=3))
        async with SGLangEngine(url, timeout=LIMIT_SECONDS) as client:
            session = await (await serve(client, stream="real", stream_grace=0)).session()
            messages: list[Any] = [user("hi")]
            for _ in range(3):
                response = await session.chat(*messages, stream=True)
                assert response.status_code == 200, response.text
                message = accumulated(response.content)
                reasoning = getattr(message, "reasoning_content", None)
                messages += [assistant(message.content, reasoning_content=reasoning), user("go on")]
            await assert_one_line(session, 3)
        nursery.cancel_scope.cancel()
