"""``--message-matcher``, as far as it is seen over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web import matchers_for_tests
from tests.web.support import Serve, Session, assert_error, assistant, error_text, serving, user
from trio_sessions.errors import ConfigurationError
from trio_sessions.testing.engine import ScriptedEngine, chat_answer

HERE = matchers_for_tests.__name__


def calling(arguments: Any, **fields: Any) -> dict[str, Any]:
    """An assistant that calls a tool with these arguments."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}
    return assistant("", tool_calls=[call])


async def extends(serve: Serve, matcher: str, sampled: dict[str, Any], replayed: dict[str, Any]) -> bool:
    """Whether the replayed message counts as the sampled one."""
    served = await serve(ScriptedEngine(chat_answer(message=sampled)), message_matcher=matcher)
    session = await served.session()
    await session.turn(user("hi"))
    response = await session.chat(user("hi"), replayed, user("more"))
    assert response.status_code == 200, response.text
    count = len(await session.records())
    # A message that is not the stored one rolls the only turn back, and is prompt.
    assert count in (1, 2)
    return count == 2


STRICT = [
    (assistant("a"), assistant("a"), True),
    (assistant("a"), assistant("a "), False),
    (assistant("a\n"), assistant("a"), False),
    (assistant(""), {"role": "assistant"}, True),
    (assistant(""), {"role": "assistant", "content": None}, True),
    (assistant(""), {"role": "assistant", "content": []}, True),
    (assistant("a"), {"role": "user", "content": "a"}, False),
    (assistant("a", reasoning_content="r"), assistant("a"), False),
    (assistant("a", reasoning_content=""), assistant("a"), True),
    (assistant("a"), assistant("a", reasoning_content=None, tool_calls=[]), True),
    (assistant("a"), assistant("a", name="n", refusal="x", audio={}), True),
    (calling("{}"), calling("{}", index=3), True),
    (calling("{}", index=0), calling("{}"), True),
    (calling('{"a":1}'), calling('{"a": 1}'), False),
    (calling("{}"), calling("{}", id="d"), False),
    (calling("{}"), assistant(""), False),
]


@pytest.mark.parametrize(("sampled", "replayed", "same"), STRICT)
async def test_strict_is_the_default(serve: Serve, sampled: Any, replayed: Any, same: bool) -> None:
    assert await extends(serve, "strict", sampled, replayed) is same


async def test_the_default_matcher_is_strict(serve: Serve) -> None:
    session = await (await serve(ScriptedEngine(chat_answer(message=calling("{}"))))).session()
    await session.turn(user("hi"))
    await session.turn(user("hi"), calling("{ }"), user("more"))
    assert len(await session.records()) == 1


LOOSE = [
    (calling('{"a":1,"b":2}'), calling('{ "b": 2, "a": 1 }'), True),
    (calling('{"a":1}'), calling({"a": 1}), True),
    (calling("{}"), calling(""), True),
    (calling("{}"), calling(None), True),
    (calling('{"a":true}'), calling('{"a":1}'), False),
    (calling('{"a":"1"}'), calling('{"a":1}'), False),
    (calling('{"a":[1,2]}'), calling('{"a":[2,1]}'), False),
    (calling('{"a":1.0}'), calling('{"a":1}'), True),
    (calling('{"a":0.1}'), calling({"a": 0.1}), True),
    (calling('{"a":10000000000000000000000.1}'), calling('{"a":10000000000000000000000.2}'), False),
    (calling('{"a":1,"a":1}'), calling('{"a":1}'), False),
    (calling('{"a":1,"a":1}'), calling('{"a":1,"a":1}'), True),
    (calling('{"a":NaN}'), calling('{"a": NaN}'), False),
    (calling("[1]"), calling("[ 1 ]"), False),
    (calling("{}"), calling("{ }", id="d"), False),
    (calling("{}"), calling("{ }", type="other"), False),
    (calling("{}"), calling("{ }", extra=1), False),
    (assistant("a"), assistant("a "), False),
]


@pytest.mark.parametrize(("sampled", "replayed", "same"), LOOSE)
async def test_loose_tool_call(serve: Serve, sampled: Any, replayed: Any, same: bool) -> None:
    assert await extends(serve, "loose_tool_call", sampled, replayed) is same


@pytest.mark.parametrize(
    ("sampled", "replayed", "same"),
    [
        (calling("{}"), assistant(""), True),
        (assistant("a", reasoning_content="r"), assistant("a"), True),
        (assistant("a"), assistant("b"), False),
        (assistant("a"), user("a"), False),
    ],
)
async def test_role_content_only(serve: Serve, sampled: Any, replayed: Any, same: bool) -> None:
    assert await extends(serve, "role_content_only", sampled, replayed) is same


@pytest.mark.parametrize(
    ("sampled", "replayed", "same"),
    [
        (assistant("a", reasoning_content="r"), assistant("a"), True),
        (assistant("a", reasoning_content="r"), assistant("<think>\nr\n</think>\n\na"), True),
        (assistant("a", reasoning_content="r"), assistant("a", reasoning_content="s"), False),
        (assistant("a"), assistant([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]), True),
        (calling('{"n":12345678901234567890}'), calling('{"n": 12345678901234567000}', status="completed"), True),
        (calling('{"n":1}'), calling('{"n":true}'), False),
        (calling("{}"), assistant(""), False),
    ],
)
async def test_agent(serve: Serve, sampled: Any, replayed: Any, same: bool) -> None:
    assert await extends(serve, "agent", sampled, replayed) is same


@pytest.mark.parametrize(("replayed", "same"), [("HELLO", True), ("hello!", False)])
async def test_a_dotted_path(serve: Serve, replayed: str, same: bool) -> None:
    assert await extends(serve, f"{HERE}.ignoring_case", assistant("hello"), assistant(replayed)) is same


async def with_a_turn(serve: Serve, matcher: str) -> Session:
    session = await (await serve(message_matcher=f"{HERE}.{matcher}")).session()
    await session.turn(user("hi"))
    return session


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_raises_is_500_and_never_a_match(serve: Serve, stream: bool) -> None:
    session = await with_a_turn(serve, "raising")
    async with session.unchanged():
        response = await session.chat(user("hi"), assistant("ok"), user("more"), stream=stream)
    assert_error(response, 500, f"message matcher {HERE}.raising raised LookupError: no é here")
    assert len(session.served.engine.calls) == 1


@pytest.mark.parametrize(("matcher", "kind"), [("answering_one", "int"), ("answering_none", "NoneType")])
async def test_an_answer_that_is_no_bool_is_500(serve: Serve, matcher: str, kind: str) -> None:
    session = await with_a_turn(serve, matcher)
    async with session.unchanged():
        text = error_text(await session.chat(user("hi"), assistant("ok"), user("more")), 500)
    assert text == f"message matcher {HERE}.{matcher} must return a bool, got {kind}"


@pytest.mark.parametrize(
    "name", ["nope", "no.such.module", f"{HERE}.missing", f"{HERE}.NOT_CALLABLE", f"{HERE}.asynchronous"]
)
async def test_a_matcher_that_cannot_be_used_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        async with serving(message_matcher=name):
            pytest.fail("it started")
