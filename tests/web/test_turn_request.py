"""What the engine is asked on a turn ("one chat turn", step 1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web.support import CHAT, OPENER, Serve, Session, assert_error, assistant, compact, error_text, spelled, user
from trio_sessions.errors import InvalidRequest
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids


async def asked(session: Session, **fields: Any) -> dict[str, Any]:
    """What the engine gets for a turn with these fields."""
    response = await session.chat(user("hi"), **fields)
    assert response.status_code == 200, response.text
    return session.served.engine.body()


async def test_the_engine_gets_the_fields_the_messages_and_the_exact_prompt(session: Session) -> None:
    messages = [{"role": "system", "content": "sé"}, user("hi")]
    await session.turn(*messages, model="m", temperature=0.5, stop=["x"])
    call = session.served.engine.calls[0]
    assert (call.method, call.path, call.query, call.session_id) == ("POST", CHAT, "", session.id)
    assert json.loads(call.body) == {
        "model": "m",
        "temperature": 0.5,
        "stop": ["x"],
        "logprobs": True,
        "return_meta_info": True,
        "no_stop_trim": False,
        "messages": messages,
        "input_ids": spelled(*messages) + OPENER,
    }
    assert call.body == compact(json.loads(call.body))


@pytest.mark.parametrize(
    ("name", "sent", "forced"),
    [
        ("logprobs", [False, None, 0, "no"], True),
        ("return_meta_info", [False, None, 1, {}], True),
        ("no_stop_trim", [True, None, 1], False),
    ],
)
async def test_forced_whatever_the_client_sent(session: Session, name: str, sent: list[Any], forced: bool) -> None:
    for value in sent:
        assert (await asked(session, **{name: value}))[name] is forced
        await session.delete()
        session = await session.served.session()
    assert (await asked(session))[name] is forced


@pytest.mark.parametrize("stream", [True, False, None])
async def test_stream_and_stream_options_never_reach_the_engine(session: Session, stream: bool | None) -> None:
    body = await asked(session, stream=stream, stream_options={"include_usage": True})
    assert "stream" not in body
    assert "stream_options" not in body
    record = (await session.records())[0]
    assert "stream" not in record["request"]
    assert "stream_options" not in record["request"]


async def test_input_ids_are_never_the_clients(session: Session) -> None:
    assert (await asked(session, input_ids=[1, 2, 3]))["input_ids"] == spelled(user("hi")) + OPENER


async def test_a_client_cannot_ask_for_log_probs_of_the_prompt(session: Session) -> None:
    assert "logprob_start_len" not in await asked(session, logprob_start_len=0)


async def test_unknown_fields_go_through_unchanged(session: Session) -> None:
    odd = {"ä": [1, 2.5, None, {"deep": "天"}], "max_tokens": 7, "rid": "r"}
    body = await asked(session, **odd)
    assert {key: body[key] for key in odd} == odd


async def test_the_second_prompt_is_what_stands_and_the_suffix(session: Session) -> None:
    answer = await session.turn(user("hi"))
    await session.turn(user("hi"), answer, user("more"))
    first = spelled(user("hi")) + OPENER + sampled_ids("ok")
    assert session.served.engine.body()["input_ids"] == first + spelled(user("more")) + OPENER
    assert session.served.engine.body()["messages"] == [user("hi"), answer, user("more")]


async def test_replay_flags_are_absent_unless_launched(session: Session) -> None:
    body = await asked(session)
    assert not {"return_routed_experts", "return_indexer_topk", "lora_path", "routed_experts_start_len"} & set(body)


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"routing_replay": True}, "return_routed_experts", True),
        ({"indexer_replay": True}, "return_indexer_topk", True),
        ({"lora": "miles_lora"}, "lora_path", "miles_lora"),
    ],
)
async def test_what_the_launch_adds_wins_over_the_client(
    serve: Serve, settings: dict[str, Any], name: str, value: Any
) -> None:
    served = await serve(**settings)
    assert (await asked(await served.session()))[name] == value
    assert (await asked(await served.session(), **{name: "other"}))[name] == value


async def test_replay_that_is_not_incremental_names_no_start(serve: Serve) -> None:
    served = await serve(routing_replay=True)
    session = await served.session()
    assert "routed_experts_start_len" not in await asked(session, routed_experts_start_len=3)


async def test_incremental_replay_starts_at_the_last_stored_token(serve: Serve) -> None:
    served = await serve(routing_replay=True, incremental_replay=True)
    session = await served.session()
    answer = await session.turn(user("hi"), routed_experts_start_len=99)
    assert served.engine.body()["routed_experts_start_len"] == 0
    stored = len((await session.metadata())["accumulated_token_ids"])
    messages = [user("hi"), answer, user("more")]
    await session.turn(*messages)
    assert served.engine.body()["routed_experts_start_len"] == stored - 1
    # A retry starts over from the checkpoint it goes back to.
    await session.turn(*messages[:2], user("other"))
    assert served.engine.body()["routed_experts_start_len"] == stored - 1
    assert (await session.records())[1]["request"]["routed_experts_start_len"] == stored - 1


@pytest.mark.parametrize("value", [[], "x", 1, True, [["a", 1]]])
async def test_chat_template_kwargs_that_are_not_an_object_are_400(session: Session, value: Any) -> None:
    async with session.unchanged():
        response = await session.chat(user("hi"), chat_template_kwargs=value)
    assert_error(response, 400, "chat_template_kwargs must be an object")
    assert session.served.engine.calls == []


@pytest.mark.parametrize("fields", [{}, {"chat_template_kwargs": {}}, {"chat_template_kwargs": None}])
async def test_without_effective_kwargs_the_key_is_absent(session: Session, fields: dict[str, Any]) -> None:
    assert "chat_template_kwargs" not in await asked(session, **fields)


async def test_the_engine_and_the_record_get_the_effective_kwargs(session: Session) -> None:
    body = await asked(session, chat_template_kwargs={"thinking": False})
    assert body["chat_template_kwargs"] == {"thinking": False}
    assert (await session.records())[0]["request"]["chat_template_kwargs"] == {"thinking": False}


async def test_a_value_that_contradicts_a_pinned_one_is_400(session: Session) -> None:
    async with session.unchanged():
        response = await session.chat(user("hi"), chat_template_kwargs={"pinned": False})
    assert "pinned" in error_text(response, 400)
    assert session.served.engine.calls == []
    assert (await asked(session, chat_template_kwargs={"pinned": True}))["chat_template_kwargs"] == {"pinned": True}


class WithDefaults(ToyRenderer):
    """Has launch defaults, and shows the kwargs it rendered with in the prompt."""

    defaults = {"thinking": True, "effort": "low"}  # noqa: RUF012

    def effective_kwargs(self, requested: Any) -> dict[str, Any]:
        return {**self.defaults, **requested}

    def render(self, messages: Any, *, tools: Any, kwargs: Any, now: Any = None) -> Any:
        shown = {"role": "system", "content": json.dumps(kwargs, sort_keys=True)}
        return super().render([shown, *messages], tools=tools, kwargs=kwargs)


async def test_kwargs_of_the_request_win_over_the_launch_defaults_for_that_turn(serve: Serve) -> None:
    served = await serve(renderer=WithDefaults())
    for requested, effective in [
        ({"effort": "high"}, {"thinking": True, "effort": "high"}),
        ({"extra": 1}, {"thinking": True, "effort": "low", "extra": 1}),
        (None, {"thinking": True, "effort": "low"}),
    ]:
        body = await asked(await served.session(), chat_template_kwargs=requested)
        assert body["chat_template_kwargs"] == effective
        shown = {"role": "system", "content": json.dumps(effective, sort_keys=True)}
        assert body["input_ids"] == spelled(shown, user("hi")) + OPENER


class Picky(ToyRenderer):
    """Refuses conversations as a template does."""

    def render(self, messages: Any, *, tools: Any, kwargs: Any, now: Any = None) -> Any:
        raise InvalidRequest("the chat template refused the messages: roles must alternate")


async def test_a_conversation_that_the_template_refuses_is_400(serve: Serve) -> None:
    session = await (await serve(renderer=Picky())).session()
    async with session.unchanged():
        response = await session.chat(user("hi"))
    assert_error(response, 400, "the chat template refused the messages: roles must alternate")


async def test_the_records_request_is_what_the_engine_got(serve: Serve) -> None:
    engine = ScriptedEngine(chat_answer("a"), chat_answer("b"))
    session = await (await serve(engine, routing_replay=True, lora="l")).session()
    fields = {"model": "m", "chat_template_kwargs": {"x": 1}, "tools": [{"type": "function"}], "stream": True}
    await session.chat(user("hi"), **fields)
    await session.chat(user("hi"), assistant("a"), user("more"), **fields)
    assert [record["request"] for record in await session.records()] == [engine.body(0), engine.body(1)]


async def test_the_query_goes_to_the_engine(session: Session) -> None:
    response = await session.post(compact({"messages": [user("hi")]}), query="?a=1&b=%20x")
    assert response.status_code == 200
    assert session.served.engine.calls[0].query == "a=1&b=%20x"
