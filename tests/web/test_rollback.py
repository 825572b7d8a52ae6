"""Linear mode: which stored history a request extends, and what it may discard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.support import (
    OPENER,
    Serve,
    Session,
    assert_error,
    assistant,
    error_text,
    spelled,
    user,
)
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import sampled_ids

U = [user(f"u{index}") for index in range(6)]
A = [assistant(f"a{index}") for index in range(6)]
SYSTEM = {"role": "system", "content": "s"}
FAILURES = [
    EngineUnreachable("ConnectError", "no"),
    EngineAnswer(500, (), b"{}"),
    EngineAnswer(200, (), b"not json"),
]


def conversation(turns: int, *, first: tuple[Any, ...] = ()) -> list[Any]:
    """``u0 a0 u1 a1 ...`` of so many turns."""
    return [*first, *(message for pair in zip(U[:turns], A[:turns], strict=True) for message in pair)]


async def with_turns(serve: Serve, turns: int, *then: Any) -> Session:
    """A session in which ``a0``, ``a1``, ... were sampled; ``then`` follows."""
    engine = ScriptedEngine(*(chat_answer(f"a{index}") for index in range(turns)), *then)
    session = await (await serve(engine)).session()
    for index in range(turns):
        assert await session.turn(*conversation(index), U[index]) == A[index]
    return session


async def texts(session: Session) -> list[str]:
    """The sampled text of every record."""
    return [record["response"]["choices"][0]["message"]["content"] for record in await session.records()]


class TestExtension:
    async def test_an_extension_reuses_every_id(self, serve: Serve) -> None:
        session = await with_turns(serve, 2)
        stored = (await session.metadata())["accumulated_token_ids"]
        await session.turn(*conversation(2), U[2])
        assert session.served.engine.body()["input_ids"] == stored + spelled(U[2]) + OPENER
        assert await texts(session) == ["a0", "a1", "ok"]

    async def test_several_messages_may_be_appended(self, serve: Serve) -> None:
        session = await with_turns(serve, 1)
        stored = (await session.metadata())["accumulated_token_ids"]
        appended = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, SYSTEM, U[1]]
        await session.turn(*conversation(1), *appended)
        assert session.served.engine.body()["input_ids"] == stored + spelled(*appended) + OPENER

    async def test_resending_exactly_the_stored_history_generates_again_on_top(self, serve: Serve) -> None:
        session = await with_turns(serve, 1, chat_answer("again"), chat_answer("more"))
        stored = (await session.metadata())["accumulated_token_ids"]
        await session.turn(*conversation(1))
        assert session.served.engine.body()["input_ids"] == stored + OPENER
        assert await texts(session) == ["a0", "again"]
        await session.turn(*conversation(1), assistant("again"), U[1])
        assert await texts(session) == ["a0", "again", "more"]

    async def test_the_stored_messages_stay_authoritative_for_the_prefix(self, serve: Serve) -> None:
        session = await with_turns(serve, 1)
        stored = (await session.metadata())["accumulated_token_ids"]
        respelled = {**A[0], "tool_calls": None, "reasoning_content": "", "note": "not compared"}
        await session.turn(U[0], respelled, U[1])
        assert session.served.engine.body()["input_ids"][: len(stored)] == stored
        assert (await session.metadata())["accumulated_token_ids"][: len(stored)] == stored
        # The record has what was sent; what is compared with the next request is what was sampled.
        await session.turn(U[0], A[0], U[1], assistant("ok"), U[2])
        assert len(await session.records()) == 3


class TestRollback:
    async def test_a_retry_of_the_last_turn_replaces_it(self, serve: Serve) -> None:
        session = await with_turns(serve, 2, chat_answer("new"))
        stored = [r["response"] for r in await session.records()][:1]
        first = spelled(U[0]) + OPENER + sampled_ids("a0")
        await session.turn(*conversation(1), user("other"))
        assert session.served.engine.body()["input_ids"] == first + spelled(user("other")) + OPENER
        assert await texts(session) == ["a0", "new"]
        assert [r["response"] for r in await session.records()][:1] == stored

    async def test_a_shorter_request_is_a_rollback_too(self, serve: Serve) -> None:
        session = await with_turns(serve, 2, chat_answer("new"))
        await session.turn(*conversation(1), U[1])
        assert await texts(session) == ["a0", "new"]

    async def test_a_session_of_one_turn_goes_back_to_empty(self, serve: Serve) -> None:
        session = await with_turns(serve, 1, chat_answer("new"))
        await session.turn(SYSTEM, user("quite different"))
        assert session.served.engine.body()["input_ids"] == spelled(SYSTEM, user("quite different")) + OPENER
        assert await texts(session) == ["new"]

    async def test_retries_may_follow_each_other(self, serve: Serve) -> None:
        session = await with_turns(serve, 2)
        for index in range(4):
            await session.turn(*conversation(1), user(f"try {index}"))
            assert await texts(session) == ["a0", "ok"]

    async def test_a_changed_assistant_rolls_back_to_the_one_before(self, serve: Serve) -> None:
        session = await with_turns(serve, 2, chat_answer("new"))
        async with session.unchanged():
            # The replayed assistant is not the stored one, so it would be an appended one.
            response = await session.chat(*conversation(1), U[1], A[1], user("x"), A[2])
        assert "does not support appending this role" in error_text(response, 400)

    @pytest.mark.parametrize(
        ("turns", "request_messages", "numbers"),
        [
            (
                2,
                [user("x")],
                "discard_count=2 exceeds max_assistant_rollback_steps=1 (stored has 4 messages, request has 1",
            ),
            (3, [U[0]], "discard_count=3 exceeds max_assistant_rollback_steps=1 (stored has 6 messages, request has 1"),
            (
                3,
                [*conversation(1), user("x")],
                "discard_count=2 exceeds max_assistant_rollback_steps=1 (stored has 6 messages, request has 3",
            ),
            (
                5,
                [user("x"), *conversation(5)[1:], U[5]],
                "discard_count=5 exceeds max_assistant_rollback_steps=1 (stored has 10 messages, request has 11",
            ),
        ],
    )
    async def test_more_than_one_checkpoint_is_400_with_its_numbers(
        self, serve: Serve, turns: int, request_messages: list[Any], numbers: str
    ) -> None:
        session = await with_turns(serve, turns)
        calls = len(session.served.engine.calls)
        async with session.unchanged():
            assert_error(await session.chat(*request_messages), 400, f"rollback failed: {numbers} messages)")
        assert len(session.served.engine.calls) == calls
        await session.turn(*conversation(turns), U[turns])
        assert len(await session.records()) == turns + 1


class TestFewShot:
    shots = (SYSTEM, user("q"), assistant("shot"), user("r"), assistant("shot too"))

    async def test_assistants_of_the_client_are_prompt(self, serve: Serve) -> None:
        session = await (await serve()).session()
        await session.turn(*self.shots, U[0])
        assert session.served.engine.body()["input_ids"] == spelled(*self.shots, U[0]) + OPENER
        assert await texts(session) == ["ok"]

    async def test_they_are_never_checkpoints(self, serve: Serve) -> None:
        session = await (await serve()).session()
        await session.turn(*self.shots, U[0])
        # Diverging after the shots discards the one generated turn, and all of the prompt is rendered anew.
        await session.turn(*self.shots, user("other"))
        assert session.served.engine.body()["input_ids"] == spelled(*self.shots, user("other")) + OPENER
        assert await texts(session) == ["ok"]
        await session.turn(*self.shots[:3], user("third"))
        assert await texts(session) == ["ok"]

    async def test_they_do_not_count_as_discarded(self, serve: Serve) -> None:
        session = await (await serve()).session()
        await session.turn(*self.shots, U[0])
        await session.turn(*self.shots, U[0], assistant("ok"), U[1])
        async with session.unchanged():
            text = error_text(await session.chat(*self.shots[:2]), 400)
        assert text.startswith("rollback failed: discard_count=2 exceeds max_assistant_rollback_steps=1 (stored has 9 ")


class TestAppendedRoles:
    TEXT = "; the selected TITO fixed template does not support appending this role"

    @pytest.mark.parametrize("role", ["assistant", "developer", "function", "", "User"])
    async def test_an_unsupported_role_after_an_assistant_is_400(self, serve: Serve, role: str) -> None:
        session = await with_turns(serve, 1)
        async with session.unchanged():
            text = error_text(await session.chat(*conversation(1), U[1], {"role": role, "content": "x"}), 400)
        assert text.endswith(self.TEXT)
        assert repr(role) in text
        assert len(session.served.engine.calls) == 1

    async def test_the_first_prompt_may_have_any_role(self, serve: Serve) -> None:
        session = await (await serve()).session()
        await session.turn({"role": "developer", "content": "d"}, assistant("shot"), U[0])
        assert len(await session.records()) == 1

    async def test_the_rollback_that_came_before_it_stays_done(self, serve: Serve) -> None:
        session = await with_turns(serve, 2)
        response = await session.chat(*conversation(1), user("x"), assistant("mine"))
        assert error_text(response, 400).endswith(self.TEXT)
        assert len(session.served.engine.calls) == 2
        assert await texts(session) == ["a0"]
        assert (await session.metadata())["accumulated_token_ids"] == spelled(U[0]) + OPENER + sampled_ids("a0")
        # What was rolled back is gone: the old history is now one that appends an assistant.
        async with session.unchanged():
            assert error_text(await session.chat(*conversation(2), U[2]), 400).endswith(self.TEXT)
        await session.turn(*conversation(1), U[1])
        assert await texts(session) == ["a0", "ok"]

    async def test_after_a_rollback_to_empty_every_role_is_prompt(self, serve: Serve) -> None:
        session = await with_turns(serve, 1)
        await session.turn(user("x"), assistant("mine"), user("y"))
        assert await texts(session) == ["ok"]


class TestDeferredRollback:
    @pytest.mark.parametrize("failure", FAILURES, ids=["unreachable", "status", "unusable"])
    @pytest.mark.parametrize("turns", [1, 2])
    async def test_a_retry_whose_engine_call_fails_loses_nothing(self, serve: Serve, turns: int, failure: Any) -> None:
        session = await with_turns(serve, turns, failure)
        retry = [*conversation(turns - 1), user("other")]
        async with session.unchanged():
            assert (await session.chat(*retry)).status_code >= 500
        # Both the old line and the retry can still be taken up.
        await session.turn(*conversation(turns), U[turns])
        assert len(await session.records()) == turns + 1

    async def test_a_retry_may_be_retried(self, serve: Serve) -> None:
        session = await with_turns(serve, 2, *FAILURES)
        retry = [*conversation(1), user("other")]
        for _ in FAILURES:
            async with session.unchanged():
                assert (await session.chat(*retry)).status_code >= 500
        await session.turn(*retry)
        assert await texts(session) == ["a0", "ok"]

    async def test_a_retry_with_a_refused_kwarg_loses_nothing(self, serve: Serve) -> None:
        session = await with_turns(serve, 2)
        async with session.unchanged():
            retry = await session.chat(*conversation(1), user("x"), chat_template_kwargs={"pinned": False})
        assert retry.status_code == 400


async def test_the_metadata_say_how_many_turns_were_replaced(session: Session) -> None:
    """An agent that drops what it got replaces turn after turn, and would not know."""
    assert "replaced_turns" not in await session.metadata()
    await session.turn(user("a"))
    for number in (1, 2):
        await session.turn(user("a"), assistant(f"not what was said {number}"), user("b"))
        assert (await session.metadata())["replaced_turns"] == number
    assert len(await session.records()) == 1
