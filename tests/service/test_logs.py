"""Logs tell which turn of which session, and above debug level never what was said."""

from __future__ import annotations

import json

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable, InvalidRequest, SessionError, TokenizationFailed
from trio_sessions.render.base import Extension
from trio_sessions.testing.engine import chat_answer
from trio_sessions.testing.toy import ToyRenderer

CANARY = "canary-Xk29"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"secret": CANARY})}}
SAID = {"role": "assistant", "content": CANARY, "reasoning_content": CANARY, "tool_calls": [CALL]}
TOOLS = [{"type": "function", "function": {"name": "f", "description": CANARY}}]


@pytest.fixture
def logs():
    structlog.reset_defaults()
    with capture_logs() as captured:
        yield captured


def _assert_quiet(logs):
    loud = [line for line in logs if line["log_level"] != "debug"]
    assert loud
    assert CANARY not in repr(loud)


async def test_a_turn_tells_its_session_its_number_and_its_outcome(bench, logs):
    made = bench(chat_answer(), EngineUnreachable("ConnectError", "refused"))
    first, second = await made.registry.create(), await made.registry.create()
    await made.turn(first, "a")
    with pytest.raises(EngineUnreachable):
        await made.turn(first, "a", {"role": "assistant", "content": "ok"}, "b")
    with pytest.raises(InvalidRequest):
        await made.raw_turn(second, b"[]")
    told = [line for line in logs if line["log_level"] != "debug"]
    assert [(line["session"], line["turn"]) for line in told] == [(first.id, 1), (first.id, 2), (second.id, 1)]
    assert told[0]["event"] == "turn answered"
    assert told[0]["outcome"] == "committed"
    assert told[0]["prompt_tokens"] == made.metric("prompt_tokens_total")
    assert told[1]["code"] == "engine_unreachable"
    assert told[1]["kind"] == "ConnectError"
    assert "error" not in told[1]
    assert told[2]["code"] == "invalid_request"
    assert "error" not in told[2]
    # Debug tells all.
    assert any(line["log_level"] == "debug" and "must be a JSON object" in line.get("error", "") for line in logs)


async def test_a_turn_that_goes_well_says_nothing_of_what_was_said(bench, logs):
    made = bench(*[chat_answer(CANARY, message=SAID)] * 2)
    session = await made.registry.create()
    user = {"role": "user", "content": CANARY}
    await made.turn(session, user, tools=TOOLS, stop=[CANARY])
    await made.turn(session, user, SAID, {"role": "tool", "content": CANARY, "tool_call_id": "c"}, tools=TOOLS)
    await made.described(session)
    _assert_quiet(logs)


@pytest.mark.parametrize(
    "body",
    [
        f'{{"messages":"{CANARY}"}}',
        f'{{"messages":[{{"{CANARY}":1}}]}}',
        f'{{"messages":[{{"role":["{CANARY}"]}}]}}',
        f'{CANARY}{{"messages":[]}}',
        json.dumps({"messages": [{"role": "user"}], "chat_template_kwargs": CANARY}),
        json.dumps({"messages": [{"role": "user"}], "chat_template_kwargs": {"pinned": CANARY}}),
        json.dumps({"messages": [{"role": "user", "content": "a"}, SAID, {"role": CANARY, "content": CANARY}]}),
    ],
)
async def test_a_refused_request_is_not_quoted(bench, logs, body):
    made = bench(chat_answer(CANARY, message=SAID))
    session = await made.registry.create()
    await made.turn(session, "a")
    with pytest.raises(InvalidRequest):
        await made.raw_turn(session, body.encode())
    _assert_quiet(logs)


async def test_a_refused_rollback_is_not_quoted(bench, logs):
    made = bench(*[chat_answer(CANARY, message=SAID)] * 2)
    session = await made.registry.create()
    await made.turn(session, CANARY)
    await made.turn(session, CANARY, SAID, CANARY)
    with pytest.raises(InvalidRequest):
        await made.turn(session, CANARY + "!")
    _assert_quiet(logs)


@pytest.mark.parametrize("matcher", ["raising", "answering_text"])
async def test_a_broken_matcher_does_not_tell_what_it_saw(bench, logs, matcher):
    made = bench(message_matcher=f"tests.service.matchers.{matcher}")
    session = await made.registry.create()
    await made.turn(session, CANARY)
    with pytest.raises(SessionError) as caught:
        await made.turn(session, CANARY)
    assert caught.value.code == "matcher_failed"
    assert (CANARY in str(caught.value)) == (matcher == "raising")
    _assert_quiet(logs)


def _broken(**choice):
    answer = json.loads(chat_answer(CANARY, message=SAID).body)
    answer["choices"][0].update(choice)
    return EngineAnswer(200, (), json.dumps(answer).encode())


@pytest.mark.parametrize(
    "answer",
    [
        EngineAnswer(400, (("x-why", CANARY),), json.dumps({"error": f"cannot handle {CANARY}"}).encode()),
        EngineAnswer(500, (), CANARY.encode()),
        EngineAnswer(200, (), CANARY.encode()),
        EngineAnswer(200, (), f'"{CANARY}"'.encode()),
        EngineAnswer(200, (), f'{{"choices":["{CANARY}"]}}'.encode()),
        EngineAnswer(200, (), chat_answer(CANARY).body + CANARY.encode()),
        _broken(message=CANARY),
        _broken(message={"role": "assistant", "content": None, "reasoning_content": CANARY}),
        _broken(meta_info=CANARY),
        _broken(meta_info={"output_token_logprobs": CANARY, "completion_tokens": 1}),
        _broken(meta_info={"output_token_logprobs": [[CANARY, 1]], "completion_tokens": 1}),
        _broken(meta_info={"output_token_logprobs": [[-1, 1]], "completion_tokens": CANARY}),
        _broken(meta_info={"output_token_logprobs": [[-1, -1, CANARY]], "completion_tokens": 1}),
        _broken(meta_info={"output_token_logprobs": [[-1, 1, CANARY]], "completion_tokens": 2}),
        _broken(prompt_token_ids=CANARY),
        _broken(message={"role": "assistant", "content": CANARY, "x": 10**400}),
    ],
)
async def test_what_the_engine_answered_is_not_quoted(bench, logs, answer):
    made = bench(answer)
    session = await made.registry.create()
    try:
        await made.turn(session, CANARY)
    except SessionError as error:
        assert error.code == "bad_engine_answer"  # noqa: PT017 - some answers are passed on
    _assert_quiet(logs)


class _Failing(ToyRenderer):
    """Fails in one of its methods and quotes the conversation as it does."""

    def __init__(self, method, kind):
        super().__init__()
        self._method, self._kind = method, kind

    def _fail(self, method, messages):
        if method == self._method:
            raise self._kind(f"cannot render {messages}")

    def render(self, messages, *, tools, kwargs, now=None):
        self._fail("render", messages)
        return super().render(messages, tools=tools, kwargs=kwargs)

    def extend(self, stored_ids, *, stored_messages, appended, tools, kwargs, now=None):
        self._fail("extend", stored_messages)
        return super().extend(
            stored_ids, stored_messages=stored_messages, appended=appended, tools=tools, kwargs=kwargs
        )

    def canonical(self, messages, *, tools, kwargs, now=None):
        self._fail("canonical", messages)
        return super().canonical(messages, tools=tools, kwargs=kwargs)


@pytest.mark.parametrize("kind", [InvalidRequest, TokenizationFailed, ZeroDivisionError])
@pytest.mark.parametrize("method", ["render", "extend"])
async def test_a_conversation_that_cannot_be_rendered_is_not_quoted(bench, logs, method, kind):
    made = bench(renderer=_Failing(method, kind))
    session = await made.registry.create()
    said = []
    if method == "extend":
        await made.turn(session, CANARY)
        said = [{"role": "assistant", "content": "ok"}]
    with pytest.raises(kind, match=CANARY):
        await made.turn(session, CANARY, *said)
    assert CANARY not in repr([line for line in logs if line["log_level"] != "debug"])


@pytest.mark.parametrize("kind", [InvalidRequest, TokenizationFailed])
async def test_a_conversation_that_cannot_be_compared_is_not_quoted(bench, logs, kind):
    made = bench(renderer=_Failing("canonical", kind))
    session = await made.registry.create()
    await made.turn(session, CANARY)
    await made.described(session)
    [warning] = [line for line in logs if line["log_level"] == "warning"]
    assert warning["session"] == session.id
    _assert_quiet(logs)


class _Forgetful(ToyRenderer):
    """Breaks the promise to keep the stored ids."""

    def extend(self, stored_ids, *, stored_messages, appended, tools, kwargs, now=None):
        return Extension(keep=len(stored_ids) - 1, token_ids=np.array([1, 2], dtype=np.int32))


async def test_a_broken_prefix_is_refused_and_not_quoted(bench, logs):
    made = bench(chat_answer(CANARY), chat_answer(CANARY), renderer=_Forgetful())
    session = await made.registry.create()
    await made.turn(session, CANARY)
    before = session.history.active
    with pytest.raises(TokenizationFailed, match="pretokenized prefix mismatch") as caught:
        await made.turn(session, CANARY, {"role": "assistant", "content": CANARY}, CANARY)
    assert CANARY in str(caught.value)
    assert session.history.active is before
    assert made.outcomes() == {"committed": 1, "failed": 1}
    _assert_quiet(logs)
