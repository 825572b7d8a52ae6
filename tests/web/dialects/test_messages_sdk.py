"""The official SDK against the gateway: answers, streams and what is recorded of them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.web.dialects.anthropic_sdk import TOOLS, asked, counted, plain, sdk
from tests.web.support import Serve, Served, compact, until
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer

THINKING = {"type": "enabled", "budget_tokens": 1024}


def answer(content: str, reasoning: str | None, *arguments: str, **fields: Any) -> EngineAnswer:
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": "get_weather", "arguments": text}}
        for index, text in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls or None}
    return chat_answer(message=message, finish_reason="tool_calls" if calls else "stop", **fields)


ANSWERS = {
    "text": answer("hello", None),
    "nothing": answer("", None),
    "reasoning alone": answer("", "hm"),
    "reasoning": answer("hello\n\nworld", "hm\n\nyes"),
    "calls": answer("", None, '{"city": "Zürich"}', '{"city": "Łódź", "days": 2}'),
    "everything": answer("ok", "hm", '{"city": "a"}', "{}"),
    "arguments that are none": answer("", None, '{"city": '),
    "arguments of white space": answer("", None, " ", "\n", "\u00a0"),
}


async def give(held: HeldCalls, step: Any) -> None:
    """Answer the one call that waits, or is about to."""
    await until(lambda: bool(held.waiting))
    [call] = held.waiting
    call.answer(step)


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_stream_comes_to_the_whole_answer(serve: Serve, name: str) -> None:
    served = await serve(ScriptedEngine(otherwise=ANSWERS[name]))
    request = asked(tools=TOOLS, thinking=THINKING)
    async with sdk(await served.session()) as client:
        whole = await client.messages.create(**request)
    async with sdk(await served.session()) as client, client.messages.stream(**request) as stream:
        accumulated = await stream.get_final_message()
    assert plain(accumulated) == plain(whole)


@pytest.mark.parametrize("name", ANSWERS)
async def test_so_does_one_that_began_before_the_answer(serve: Serve, name: str) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(ANSWERS[name], otherwise=held), stream_grace=0)
    request = asked(tools=TOOLS, thinking=THINKING)
    async with sdk(await served.session()) as client:
        whole = plain(await client.messages.create(**request))
    async with sdk(await served.session()) as client, client.messages.stream(**request) as stream:
        # Its first event is there while the engine still works.
        first = await anext(stream)
        assert first.type == "message_start"
        await give(held, ANSWERS[name])
        accumulated = plain(await stream.get_final_message())
        assert first.message.id == stream.current_message_snapshot.id
    if whole["content"][0]["type"] != "text":
        assert accumulated["content"].pop(0)["text"] == ""
    assert accumulated == whole


async def test_the_client_is_kept_waiting_with_empty_deltas(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), stream_grace=0, stream_keep_alive=0.01)
    seen: list[Any] = []
    async with sdk(await served.session()) as client:
        async for event in await client.messages.create(**asked(), stream=True):
            seen.append(event)
            if len(seen) == 5:
                await give(held, chat_answer("hello"))
    empty = [event for event in seen if event.type == "content_block_delta" and event.delta.text == ""]
    assert len(empty) >= 3
    assert all(event.index == 0 for event in empty)
    assert [event.type for event in seen if event not in empty] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("path", ["", "/v1"])
async def test_a_base_url_may_have_the_version(served: Served, path: str) -> None:
    session = await served.session()
    async with sdk(session, path) as client:
        await client.messages.create(**asked())
        assert (await client.messages.count_tokens(**counted("hi"))).input_tokens
    assert len(await session.records()) == 1


async def test_the_engine_is_asked_by_chat(served: Served) -> None:
    session = await served.session()
    async with sdk(session) as client:
        message = await client.beta.messages.create(
            **asked(system="be brief", stop_sequences=["END"], metadata={"user_id": "u"}),
            betas=["x"],
            extra_body={"top_k": 3},
            # As Claude Code and older clients of the beta API do.
            extra_query={"beta": "true"},
        )
    [call] = served.engine.calls
    assert (call.path, call.query) == ("v1/chat/completions", "")
    [record] = await session.records()
    request = record["request"]
    del request["input_ids"]
    assert request == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "model": "m",
        "max_tokens": 100,
        "top_k": 3,
        "stop": ["END"],
        "logprobs": True,
        "return_meta_info": True,
        "no_stop_trim": False,
    }
    # The record is the engine's; what the client saw is found by its id.
    assert record["response"]["id"] == "chatcmpl-scripted"
    assert message.id != "chatcmpl-scripted"


async def test_a_system_message_further_on_is_the_users_where_the_template_has_none(serve: Serve) -> None:
    class NoSystem(ToyRenderer):
        def appendable_roles(self, kwargs: Any) -> frozenset[str]:
            return frozenset({"user", "tool"})

    messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "note"}]
    for renderer, role in ((ToyRenderer(), "system"), (NoSystem(), "user")):
        session = await (await serve(renderer=renderer)).session()
        async with sdk(session) as client:
            await client.messages.create(**asked(messages=messages))
        [record] = await session.records()
        assert record["request"]["messages"][1] == {"role": role, "content": "note"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_node_has_the_id_that_the_client_saw(serve: Serve, stream: bool) -> None:
    session = await (await serve(mode="tree")).session()
    async with sdk(session) as client:
        if stream:
            async with client.messages.stream(**asked()) as events:
                message: Any = await events.get_final_message()
        else:
            message = await client.messages.create(**asked())
    [node] = (await session.metadata())["tree"]["nodes"]
    assert node["response_id"] == message.id


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("opened", [False, True])
async def test_what_the_sdk_sends_back_is_the_turn_that_was_answered(serve: Serve, name: str, opened: bool) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held if opened else ANSWERS[name]), stream_grace=0)
    session = await served.session()
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    stored: list[int] = []
    async with sdk(session) as client:
        for turn in range(1, 4):
            async with client.messages.stream(**asked(tools=TOOLS, thinking=THINKING, messages=messages)) as stream:
                await anext(stream)
                if opened:
                    await give(held, ANSWERS[name])
                message = await stream.get_final_message()
            records = await session.records()
            assert len(records) == turn
            assert records[-1]["request"]["input_ids"][: len(stored)] == stored
            stored = (await session.metadata())["accumulated_token_ids"]
            calls = [block.id for block in message.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id_, "content": "fine"} for id_ in calls]
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": "more"}]})
    assert served.gateway.metrics.registry.get_sample_value("trio_sessions_rollbacks_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_gets_the_answer_of_the_turn_it_repeats(served: Served, stream: bool) -> None:
    session = await served.session()
    async with sdk(session) as client:
        first, again = [
            await client.messages.create(**asked(), extra_headers={"x-stainless-retry-count": count})
            for count in ("0", "1")
        ]
        assert again == first
        if stream:
            async with client.messages.stream(**asked(), extra_headers={"x-stainless-retry-count": "2"}) as events:
                assert (await events.get_final_message()).id == first.id
    assert len(served.engine.calls) == 1


async def test_an_agent_of_a_session_is_named_by_its_path(served: Served) -> None:
    session = await served.session()
    async with sdk(session, "/agents/critic") as client:
        found = await client.messages.count_tokens(**counted("hi"))
        await client.messages.create(**asked())
    [record] = await session.records()
    assert found.input_tokens == len(record["request"]["input_ids"])


async def test_reasoning_is_for_those_who_ask(serve: Serve) -> None:
    served = await serve(ScriptedEngine(otherwise=ANSWERS["reasoning"]))
    for thinking, types in (({"type": "disabled"}, ["text"]), ({"type": "adaptive"}, ["thinking", "text"])):
        async with sdk(await served.session()) as client:
            message = await client.messages.create(**asked(thinking=thinking))
        assert [block.type for block in message.content] == types


async def test_the_engines_headers_come_with_a_whole_answer(serve: Serve) -> None:
    engine_answer = chat_answer()
    headers = (("content-type", "text/plain"), ("x-engine", "yes"))
    served = await serve(ScriptedEngine(EngineAnswer(200, headers, engine_answer.body)))
    async with sdk(await served.session()) as client:
        response = await client.messages.with_raw_response.create(**asked())
        message = await response.parse()
    assert response.headers["x-engine"] == "yes"
    assert response.headers.get_list("content-type") == ["application/json"]
    assert response.headers["request-id"] == message.id


def refusal(status: int, text: str, *headers: tuple[str, str]) -> EngineAnswer:
    body = b'{"object":"error","message":"%b","code":%d}' % (text.encode(), status)
    return EngineAnswer(status, (("content-type", "application/json"), *headers), body)


TOO_LONG = refusal(400, "The input (9 tokens) is longer than the model's context length (5 tokens).")


async def collected(stream: Any) -> list[Any]:
    return [event async for event in stream]


class TestErrors:
    @pytest.mark.parametrize(
        ("step", "error", "status", "kind", "text"),
        [
            (refusal(400, "no"), anthropic.BadRequestError, 400, "invalid_request_error", "no"),
            (refusal(401, "no"), anthropic.AuthenticationError, 401, "authentication_error", "no"),
            (refusal(429, "no", ("retry-after", "7")), anthropic.RateLimitError, 429, "rate_limit_error", "no"),
            (refusal(500, "no"), anthropic.InternalServerError, 500, "api_error", "no"),
            (refusal(503, "no"), anthropic.APIStatusError, 503, "overloaded_error", "no"),
            (TOO_LONG, anthropic.BadRequestError, 400, "invalid_request_error", "prompt is too long: 9 tokens > 5 max"),
            (
                EngineUnreachable("ConnectError", "refused"),
                anthropic.InternalServerError,
                502,
                "api_error",
                "backend transport error: ConnectError: refused",
            ),
            (
                EngineAnswer(200, (), b"{}"),
                anthropic.InternalServerError,
                502,
                "api_error",
                "invalid chat completion response",
            ),
            (RuntimeError("secret"), anthropic.InternalServerError, 500, "api_error", "internal error"),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_of_the_engine(
        self, serve: Serve, step: Any, error: Any, status: int, kind: str, text: str, stream: bool
    ) -> None:
        session = await (await serve(ScriptedEngine(step))).session()
        async with session.unchanged(), sdk(session) as client:
            with pytest.raises(error) as raised:
                await client.messages.create(**asked(), stream=stream)
        assert raised.value.status_code == status
        assert raised.value.body["type"] == "error"
        assert raised.value.body["error"]["type"] == kind
        assert raised.value.body["error"]["message"].startswith(text)
        assert raised.value.response.headers["content-type"] == "application/json"
        assert raised.value.response.headers.get("retry-after") == ("7" if status == 429 else None)

    async def test_of_the_request(self, served: Served) -> None:
        async with sdk(await served.session()) as client:
            with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]: object missing"):
                await client.messages.create(**asked(messages=[{"role": "user", "content": [{"text": "a"}]}]))
        assert not served.engine.calls

    async def test_of_a_session_that_is_gone(self, served: Served) -> None:
        session = await served.session()
        await session.delete()
        async with sdk(session) as client:
            for ask in (client.messages.create(**asked()), client.messages.count_tokens(**counted("hi"))):
                with pytest.raises(anthropic.NotFoundError) as raised:
                    await ask
                error = {"type": "not_found_error", "message": f"session not found: session_id={session.id}"}
                assert raised.value.body == {"type": "error", "error": error}

    async def test_what_cannot_be_extended_is_not_to_be_tried_again(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(chat_answer("cut", finish_reason="length")), on_truncated="refuse")
        session = await served.session()
        async with sdk(session) as client:
            message = await client.messages.create(**asked())
            assert message.stop_reason == "max_tokens"
            said = {"role": "assistant", "content": message.content}
            messages = [*asked()["messages"], said, {"role": "user", "content": "go on"}]
            with pytest.raises(anthropic.BadRequestError, match="truncated generation cannot be extended") as raised:
                await client.messages.create(**asked(messages=messages))
        assert raised.value.response.headers["x-should-retry"] == "false"

    async def test_while_the_server_stops(self, served: Served) -> None:
        session = await served.session()
        await served.gateway.registry.drain(grace=0)
        async with sdk(session) as client:
            with pytest.raises(anthropic.APIStatusError, match="shutting down") as raised:
                await client.messages.create(**asked())
        assert raised.value.status_code == 503
        assert raised.value.body["error"]["type"] == "overloaded_error"
        assert raised.value.response.headers["retry-after"] == "1"

    @pytest.mark.parametrize(
        ("step", "text"),
        [
            (refusal(500, "the engine broke"), "the engine broke"),
            (TOO_LONG, "prompt is too long: 9 tokens"),
            (EngineUnreachable("ReadError", "gone"), "backend transport error: ReadError: gone"),
            (EngineAnswer(200, (), b"{}"), "invalid chat completion response"),
        ],
    )
    async def test_in_a_stream_that_has_begun(self, serve: Serve, step: Any, text: str) -> None:
        held = HeldCalls()
        session = await (await serve(ScriptedEngine(otherwise=held), stream_grace=0)).session()
        async with session.unchanged(), sdk(session) as client:
            stream = await client.messages.create(**asked(), stream=True)
            assert (await anext(stream)).type == "message_start"
            await give(held, step)
            with pytest.raises(anthropic.APIStatusError) as raised:
                await collected(stream)
        assert raised.value.body["type"] == "error"
        assert raised.value.body["error"]["message"].startswith(text)


async def test_a_client_that_goes_away_takes_its_turn_with_it(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held), stream_grace=0)
    session = await served.session()
    async with session.unchanged():
        async with sdk(session) as client, client.messages.stream(**asked()) as stream:
            await anext(stream)
        await until(lambda: served.engine.cancelled == 1)


class TestCounting:
    async def test_is_what_the_turn_then_has(self, served: Served) -> None:
        session = await served.session()
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        async with sdk(session) as client:
            for _ in range(3):
                request: Any = {"model": "m", "system": "be brief", "messages": messages, "tools": TOOLS}
                async with session.unchanged():
                    counted = await client.messages.count_tokens(**request)
                message = await client.messages.create(**request, max_tokens=5)
                prompt = (await session.records())[-1]["request"]["input_ids"]
                assert counted.input_tokens == len(prompt)
                messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "more"}]
        assert len(served.engine.calls) == 3

    async def test_rolls_nothing_back(self, serve: Serve) -> None:
        """A turn whose appended role is refused keeps the rollback that came before it."""
        served = await serve(ScriptedEngine(chat_answer("one"), chat_answer("two")))
        session = await served.session()
        first: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"}]
        other: Any = [*first, {"role": "user", "content": "c"}, {"role": "assistant", "content": "mine"}]
        async with sdk(session) as client:
            await client.messages.create(**asked("a"))
            await client.messages.create(**asked(messages=[*first, {"role": "user", "content": "b"}]))
            async with session.unchanged():
                with pytest.raises(anthropic.BadRequestError, match="does not support appending this role"):
                    await client.messages.count_tokens(**counted(other))
            with pytest.raises(anthropic.BadRequestError, match="does not support appending this role"):
                await client.messages.create(**asked(messages=other))
        assert len(await session.records()) == 1

    async def test_makes_no_node(self, serve: Serve) -> None:
        session = await (await serve(mode="tree")).session()
        async with sdk(session) as client:
            await client.messages.create(**asked())
            async with session.unchanged():
                await client.messages.count_tokens(**counted("other"))

    async def test_tells_the_length_of_a_prompt_that_does_not_fit(self, serve: Serve) -> None:
        session = await (await serve(max_seq_len=5)).session()
        async with session.unchanged(), sdk(session) as client:
            found = (await client.messages.count_tokens(**counted("hi"))).input_tokens
            with pytest.raises(anthropic.BadRequestError) as raised:
                await client.messages.create(**asked())
        assert raised.value.body["error"]["message"].startswith(f"prompt is too long: {found} tokens > 5 maximum; ")

    @pytest.mark.parametrize("messages", [[], [{"role": "user", "content": 5}]])
    async def test_refuses_what_a_turn_would(self, served: Served, messages: Any) -> None:
        async with sdk(await served.session()) as client:
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await client.messages.count_tokens(**counted(messages))


def listed(*cards: dict[str, Any]) -> EngineAnswer:
    return EngineAnswer(200, (("content-type", "application/json"),), models_body(*cards))


def models_body(*cards: dict[str, Any]) -> bytes:
    return compact({"object": "list", "data": [{"object": "model", "owned_by": "sglang", **card} for card in cards]})


CARDS = ({"id": "org/a", "created": 1700000000}, {"id": "b"})


class TestModels:
    async def test_all(self, serve: Serve) -> None:
        served = await serve(ScriptedEngine(otherwise=listed(*CARDS)))
        async with sdk(await served.session()) as client:
            page = await client.models.list(limit=1)
            found = [(model.type, model.id, model.display_name, model.created_at.isoformat()) async for model in page]
        assert found == [
            ("model", "org/a", "org/a", "2023-11-14T22:13:20+00:00"),
            ("model", "b", "b", "1970-01-01T00:00:00+00:00"),
        ]
        assert (page.has_more, page.first_id, page.last_id) == (False, "org/a", "b")
        [call] = served.engine.calls
        assert (call.method, call.path, call.query, call.body) == ("GET", "v1/models", "", b"")

    @pytest.mark.parametrize("name", ["org/a", "b"])
    async def test_one(self, serve: Serve, name: str) -> None:
        async with sdk(await (await serve(ScriptedEngine(otherwise=listed(*CARDS)))).session()) as client:
            assert (await client.models.retrieve(name)).id == name

    async def test_none(self, serve: Serve) -> None:
        async with sdk(await (await serve(ScriptedEngine(otherwise=listed()))).session()) as client:
            page = await client.models.list()
            assert (page.data, page.first_id, page.last_id) == ([], None, None)
            with pytest.raises(anthropic.NotFoundError) as raised:
                await client.models.retrieve("c")
        assert raised.value.body["error"] == {"type": "not_found_error", "message": "the engine has no such model"}

    @pytest.mark.parametrize("created", [10**30, -(10**30), float(10**300)])
    async def test_a_time_that_there_is_not(self, serve: Serve, created: float) -> None:
        async with sdk(
            await (await serve(ScriptedEngine(listed({"id": "a", "created": created})))).session()
        ) as client:
            [model] = (await client.models.list()).data
        assert model.created_at.year == 1970

    @pytest.mark.parametrize(
        ("step", "error", "text"),
        [
            (refusal(429, "no"), anthropic.RateLimitError, "no"),
            (EngineAnswer(200, (), b"[]"), anthropic.InternalServerError, "the engine answered no list of models"),
            (EngineAnswer(200, (), b"\xff"), anthropic.InternalServerError, "the engine answered no list of models"),
        ],
    )
    async def test_what_goes_wrong(self, serve: Serve, step: Any, error: Any, text: str) -> None:
        async with sdk(await (await serve(ScriptedEngine(step))).session()) as client:
            with pytest.raises(error, match=text):
                await client.models.list()

    @pytest.mark.parametrize("path", ["v1/models", "v1/models/b"])
    async def test_other_clients_get_what_the_engine_said(self, serve: Serve, path: str) -> None:
        served = await serve(ScriptedEngine(otherwise=listed(*CARDS)))
        session = await served.session()
        response = await served.client.get(f"{session.path}/{path}?a=b")
        assert response.content == models_body(*CARDS)
        assert (served.engine.calls[-1].path, served.engine.calls[-1].query) == (path, "a=b")
