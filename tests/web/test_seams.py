"""What a client and a trainer see of the seam between two turns."""

from __future__ import annotations

import pytest

from tests.web.support import Serve, assert_error, assistant, compact, user
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import sampled_ids

CUT = chat_answer(token_ids=sampled_ids("ok")[:-1], finish_reason="length")


async def test_declared_events_are_the_last_key_of_the_metadata(serve: Serve) -> None:
    session = await (await serve(ScriptedEngine(CUT))).session()
    said = await session.turn(user("a"))
    before = await session.metadata()
    assert "boundary_events" not in before
    await session.turn(user("a"), said, user("b"), tools=[{"function": {"name": "f"}}])
    state = await session.state()
    end = len(before["accumulated_token_ids"])
    events = [
        {
            "turn": 1,
            "kind": "turn_closed",
            "position": end,
            "detail": "the turn before it had no stop id and was closed",
        },
        {
            "turn": 1,
            "kind": "tools_changed",
            "position": end,
            "detail": "tools since the turn before it: added f",
        },
    ]
    assert state.endswith(b'"max_trim_tokens":0,"boundary_events":' + compact(events) + b"}}")
    metrics = (await session.served.client.get("/metrics")).text
    assert 'trio_sessions_boundary_events_total{kind="turn_closed"} 1.0' in metrics
    assert 'trio_sessions_boundary_events_total{kind="late_tool_result"} 0.0' in metrics


async def test_extending_a_truncated_turn_is_a_409_that_changes_nothing(serve: Serve) -> None:
    session = await (await serve(ScriptedEngine(CUT), on_truncated="refuse")).session()
    said = await session.turn(user("a"))
    async with session.unchanged():
        assert_error(
            await session.chat(user("a"), said, user("b")),
            409,
            "truncated generation cannot be extended: message 1 ended at the length limit; "
            "send the request before it again, with more room, or serve with --on-truncated close",
        )
    # By default the turn is closed.
    session = await (await serve(ScriptedEngine(CUT))).session()
    await session.turn(user("a"), await session.turn(user("a")), user("b"))


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_change_are_a_400_that_changes_nothing(serve: Serve, stream: bool) -> None:
    session = await (await serve(on_tools_change="reject")).session()
    await session.turn(user("a"))
    async with session.unchanged():
        assert_error(
            await session.chat(user("a"), assistant("ok"), user("b"), tools=[{"name": "f"}], stream=stream),
            400,
            "tools changed since the turn that this request extends (added f); "
            "send what that turn had, start another session, or serve with --on-tools-change report",
        )
