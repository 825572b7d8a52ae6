"""What a trainer reads of a session."""

from __future__ import annotations

import functools
import json
import threading

import pytest
import trio

from trio_sessions.errors import AppendRoleNotSupported, InvalidRequest, TokenizationFailed
from trio_sessions.testing.engine import chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids

SAID = {"role": "assistant", "content": "ok"}


async def _read(made, session):
    return json.loads(await made.described(session))


def _different(text="ok"):
    """An answer whose ids spell another text than its message has."""
    return chat_answer(text, token_ids=sampled_ids("not what the message says"))


async def test_an_empty_session_has_no_mismatch_list(bench):
    made = bench()
    session = await made.registry.create()
    assert await _read(made, session) == {
        "session_id": session.id,
        "records": [],
        "metadata": {"accumulated_token_ids": [], "max_trim_tokens": 0},
    }


async def test_another_spelling_of_the_same_text_is_no_mismatch(bench):
    made = bench()
    session = await made.registry.create()
    await made.turn(session, "a")
    answer = await _read(made, session)
    assert answer["metadata"]["tito_session_mismatch"] == []
    assert answer["metadata"]["accumulated_token_ids"] == session.history.active.tokens.materialize().tolist()


async def test_another_text_is_told(bench):
    made = bench(_different())
    session = await made.registry.create()
    await made.turn(session, "a")
    [finding] = (await _read(made, session))["metadata"]["tito_session_mismatch"]
    assert (finding["type"], finding["segment_index"]) == ("assistant_text", 0)
    assert "not what the message says" in finding["actual_text"]


class _Canonical(ToyRenderer):
    """Keeps what it was asked for; raises what it was given."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error
        self.asked = []

    def canonical(self, messages, *, tools, kwargs, now=None):
        self.asked.append((list(messages), tools, kwargs, now))
        if self.error is not None:
            raise self.error
        return super().canonical(messages, tools=tools, kwargs=kwargs)


@pytest.mark.parametrize("error", [InvalidRequest("no"), TokenizationFailed("no")])
async def test_what_cannot_be_compared_has_no_mismatch_list(bench, error):
    made = bench(_different(), renderer=_Canonical(error))
    session = await made.registry.create()
    await made.turn(session, "a")
    answer = await _read(made, session)
    assert sorted(answer["metadata"]) == ["accumulated_token_ids", "max_trim_tokens"]
    assert len(answer["records"]) == 1
    assert made.metric("mismatches_total", type="assistant_text") == 0


async def test_a_defect_of_the_comparison_is_not_hidden(bench):
    made = bench(renderer=_Canonical(ZeroDivisionError()))
    session = await made.registry.create()
    await made.turn(session, "a")
    with pytest.raises(ZeroDivisionError):
        await _read(made, session)


async def test_the_comparison_is_asked_with_the_first_tools_the_last_kwargs_and_the_sessions_date(bench):
    renderer = _Canonical()
    made = bench(renderer=renderer)
    session = await made.registry.create()
    tools = [{"type": "function", "function": {"name": "f"}}]
    await made.turn(session, "a", tools=tools, chat_template_kwargs={"x": 1})
    await made.turn(session, "a", SAID, "b", tools=[], chat_template_kwargs={"x": 2})
    await _read(made, session)
    [(messages, asked_tools, kwargs, now)] = renderer.asked
    assert [message["content"] for message in messages] == ["a", "ok", "b", "ok"]
    assert (asked_tools, kwargs, now) == (tools, {"x": 2}, session.created)


async def test_mismatches_are_counted_once_for_each_checkpoint(bench):
    made = bench(_different(), _different())
    session = await made.registry.create()
    counted = functools.partial(made.metric, "mismatches_total", type="assistant_text")
    await made.turn(session, "a")
    for _ in range(3):
        await _read(made, session)
    assert counted() == 1
    await made.turn(session, "a", SAID, "b")
    for _ in range(3):
        await _read(made, session)
    assert counted() == 2


async def test_readers_at_the_same_time_count_once(bench):
    made = bench(_different())
    session = await made.registry.create()
    await made.turn(session, "a")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_read, made, session)
    assert made.metric("mismatches_total", type="assistant_text") == 1


async def test_a_checkpoint_that_is_newest_again_is_not_counted_again(bench):
    made = bench(_different(), _different())
    session = await made.registry.create()
    await made.turn(session, "a")
    await _read(made, session)
    await made.turn(session, "a", SAID, "b")
    await _read(made, session)
    # The pinned case: the role is refused, and the rollback before it stays done.
    with pytest.raises(AppendRoleNotSupported):
        await made.turn(session, "a", SAID, {"role": "developer", "content": "c"})
    await _read(made, session)
    assert made.metric("mismatches_total", type="assistant_text") == 2


class _SlowComparison(ToyRenderer):
    """Compares when told to."""

    def __init__(self):
        super().__init__()
        self.began, self.gate = trio.Event(), threading.Event()

    def canonical(self, messages, *, tools, kwargs, now=None):
        trio.from_thread.run_sync(self.began.set)
        assert self.gate.wait(10)
        return super().canonical(messages, tools=tools, kwargs=kwargs)


async def test_a_reader_sees_one_state_although_turns_commit_meanwhile(bench):
    renderer = _SlowComparison()
    made = bench(renderer=renderer)
    session = await made.registry.create()
    await made.turn(session, "a")
    before = session.history.active
    answers = []

    async def read():
        answers.append(await _read(made, session))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await renderer.began.wait()
            assert not session.lock.locked()
            await made.turn(session, "a", SAID, "b")
            assert session.history.active is not before
            renderer.gate.set()
    [answer] = answers
    assert len(answer["records"]) == 1
    assert answer["metadata"]["accumulated_token_ids"] == before.tokens.materialize().tolist()
