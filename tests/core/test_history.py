"""The linear history: a state machine against a model made of lists, and a pin for every sentence of the contract."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core import PATIENT
from trio_sessions.core.completion import Completion
from trio_sessions.core.history import (
    MAX_ASSISTANT_ROLLBACK_STEPS,
    Attachment,
    Checkpoint,
    LinearHistory,
    RenderedWith,
    TurnRecord,
    flat_path,
    path_of,
)
from trio_sessions.core.matchers import identical, loose_tool_call, strict
from trio_sessions.core.records import encode_records
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import InvalidRequest, MatcherFailed, RollbackRefused
from trio_sessions.testing.strategies import conversations, messages, replays, respelled, token_ids


def user(content="u"):
    return {"role": "user", "content": content}


def assistant(content="a"):
    return {"role": "assistant", "content": content}


def tool(content="t"):
    return {"role": "tool", "content": content}


def sent_by(checkpoint):
    """The messages of the turn's request as its client spelled them."""
    return flat_path(checkpoint).spelled[:-1]


def checkpoint_of(
    attachment: Attachment,
    said: dict[str, object],
    *,
    keep=None,
    suffix=(1,),
    sampled=(2,),
    synthetic=0,
    rendered_with=RenderedWith.of(None, {}),  # noqa: B008 - immutable
    finish_reason="stop",
) -> Checkpoint:
    """What the pipeline commits for a turn."""
    return attachment.checkpoint(
        keep=len(attachment.tokens) if keep is None else keep,
        suffix=as_token_ids(suffix),
        synthetic=synthetic,
        rendered_with=rendered_with,
        events=(),
        completion=Completion(
            token_ids=as_token_ids(sampled),
            log_probs=np.zeros(len(sampled)),
            message=said,
            finish_reason=finish_reason,
            response_id=None,
        ),
        record=TurnRecord(
            timestamp=2.0,
            request_timestamp=1.0,
            method="POST",
            request_fields=b'{"logprobs":true}',
            routed_experts_start=None,
            respelled=attachment.respelled,
            response=b"{}",
            status_code=200,
        ),
    )


def take_turn(history: LinearHistory, request, said=None, **kwargs) -> Checkpoint:
    attachment = history.attach(request, strict)
    checkpoint = checkpoint_of(attachment, said or assistant(), **kwargs)
    history.commit(attachment, checkpoint)
    return checkpoint


def state_of(history: LinearHistory) -> list[Checkpoint]:
    return path_of(history.active)


# -- the machine --------------------------------------------------------------------------------------------------

# Few words, so that what a client brings often equals what was sampled.
words = st.sampled_from(["", "x", "y"])
client_messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "user", "tool", "system", "assistant"]),
    words,
)


def _key(message) -> tuple[object, object]:
    return message["role"], message.get("content") or ""


@st.composite
def _spelled(draw: st.DrawFn, message) -> dict[str, object]:
    new = {"role": message["role"], "content": message.get("content") or ""}
    if not new["content"]:
        match draw(st.sampled_from(["absent", "null", "empty"])):
            case "absent":
                del new["content"]
            case "null":
                new["content"] = None
    if draw(st.integers(0, 3)) == 0:
        new["name"] = draw(words)
    return new


@dataclass
class _Turn:
    """One committed turn of the model, everything spelled out."""

    stored: list[dict[str, object]]  # all messages so far, the sampled one last
    ids: list[int]
    origins: list[int]
    prompt: list[int]
    request: list[dict[str, object]]


@dataclass
class _Pending:
    attachment: Attachment
    line: list[_Turn]  # the model's line that this turn extends
    version: int
    request: list[dict[str, object]]


class LinearMachine(RuleBasedStateMachine):
    """Several turns of one session at once, each attached, then committed, dropped or refused in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.history = LinearHistory()
        self.line: list[_Turn] = []
        self.version = 0
        self.pending: list[_Pending] = []

    @initialize(request=st.lists(client_messages, min_size=1, max_size=3), said=words)
    def first_turn(self, request, said):
        attachment = self.history.attach(request, strict)
        self.pending.append(_Pending(attachment, [], 0, request))
        self._commit(self.pending.pop(), said, [1, 2], [3, 4], dropped=0, closers=0)

    def _stored(self) -> list[dict[str, object]]:
        return self.line[-1].stored if self.line else []

    def _draw_request(self, data) -> list[dict[str, object]]:
        stored = self._stored()
        ends = [len(turn.stored) for turn in self.line[-3:]]
        kept = data.draw(st.sampled_from([len(stored), *ends]) | st.integers(0, len(stored)), label="kept")
        request = [data.draw(_spelled(message)) for message in stored[:kept]]
        request += data.draw(st.lists(client_messages, max_size=2), label="tail")
        return request or [user("x")]

    def _expected(self, request) -> list[_Turn]:
        """The line that ``request`` extends: the longest whose messages it repeats from the start."""
        for depth in range(len(self.line), 0, -1):
            stored = self.line[depth - 1].stored
            if len(request) >= len(stored) and all(_key(a) == _key(b) for a, b in zip(stored, request, strict=False)):
                return self.line[:depth]
        return []

    def _attach(self, data) -> _Pending | None:
        request = self._draw_request(data)
        line = self._expected(request)
        discards = len(self.line) - len(line)
        before = self.history.active
        if discards > 1:
            with pytest.raises(RollbackRefused) as caught:
                self.history.attach(request, strict)
            assert str(caught.value) == (
                f"rollback failed: discard_count={discards} exceeds max_assistant_rollback_steps=1 "
                f"(stored has {len(self._stored())} messages, request has {len(request)} messages)"
            )
            attachment = None
        else:
            attachment = self.history.attach(request, strict)
            assert attachment.discards == discards
        assert self.history.active is before
        if attachment is None:
            return None
        stored = line[-1].stored if line else []
        assert list(attachment.stored) == stored
        assert list(attachment.appended) == request[len(stored) :]
        assert attachment.tokens.materialize().tolist() == (line[-1].ids if line else [])
        assert (attachment.base is None) == (not line)
        return _Pending(attachment, line, self.version, request)

    @rule(data=st.data())
    def attach(self, data):
        pending = self._attach(data)
        if pending is not None:
            self.pending.append(pending)

    @rule(
        data=st.data(),
        said=words,
        suffix=token_ids(max_size=3),
        sampled=token_ids(max_size=3),
        dropped=st.integers(0, 1),
        closers=st.integers(0, 2),
    )
    def whole_turn(self, data, said, suffix, sampled, dropped, closers):
        pending = self._attach(data)
        if pending is not None:
            self._commit(pending, said, suffix, sampled, dropped, closers)

    @precondition(lambda self: self.pending)
    @rule(
        data=st.data(),
        said=words,
        suffix=token_ids(max_size=3),
        sampled=token_ids(max_size=3),
        dropped=st.integers(0, 1),
        closers=st.integers(0, 2),
    )
    def engine_answers(self, data, said, suffix, sampled, dropped, closers):
        pending = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1), label="which"))
        stale = pending.version != self.version
        assert self.history.is_stale(pending.attachment) is stale
        if stale:
            before = self.history.active
            with pytest.raises(ValueError, match="stale"):
                self.history.commit(pending.attachment, checkpoint_of(pending.attachment, assistant(said)))
            assert self.history.active is before
        else:
            self._commit(pending, said, suffix, sampled, dropped, closers)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def engine_fails(self, data):
        self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1), label="which"))

    @rule(data=st.data())
    def appended_role_is_refused(self, data):
        pending = self._attach(data)
        if pending is None:
            return
        self.history.settle_refused_role(pending.attachment)
        if len(pending.line) < len(self.line):
            self.line = pending.line
            self.version += 1

    def _commit(self, pending, said, suffix, sampled, dropped, closers):
        closers = min(closers, len(suffix)) if pending.line else 0
        last = pending.line[-1] if pending.line else _Turn([], [], [], [], [])
        keep = max(len(last.ids) - dropped, 0)
        message = assistant(said)
        checkpoint = checkpoint_of(
            pending.attachment, message, keep=keep, suffix=suffix, sampled=sampled, synthetic=closers
        )
        discarded = len(self.line) - len(pending.line)
        assert discarded <= 1
        self.history.commit(pending.attachment, checkpoint)
        prompt = last.ids[:keep] + suffix
        appended = pending.request[len(last.stored) :]
        turn = _Turn(
            stored=[*last.stored, *appended, message],
            ids=prompt + sampled,
            origins=last.origins[:keep] + [2] * closers + [0] * (len(suffix) - closers) + [1] * len(sampled),
            prompt=prompt,
            request=pending.request,
        )
        self.line = [*pending.line, turn]
        self.version += 1
        assert self.history.active is checkpoint

    @invariant()
    def the_line_is_the_models(self):
        path = path_of(self.history.active)
        assert len(path) == len(self.line)
        for depth, (checkpoint, turn) in enumerate(zip(path, self.line, strict=True), start=1):
            assert checkpoint.depth == depth
            assert checkpoint.path_messages() == turn.stored
            assert checkpoint.message_count == len(turn.stored)
            assert checkpoint.tokens.materialize().tolist() == turn.ids
            assert checkpoint.prompt_length == len(turn.prompt)

    @invariant()
    def every_prompt_starts_with_what_was_stored(self):
        for before, after in zip(self.line, self.line[1:], strict=False):
            kept = len(before.ids) - 1
            assert after.prompt[:kept] == before.ids[:kept] if kept > 0 else True

    @invariant()
    def every_request_is_kept_as_it_was_sent(self):
        for checkpoint, turn in zip(path_of(self.history.active), self.line, strict=True):
            assert identical(sent_by(checkpoint), turn.request)

    @invariant()
    def every_record_is_of_the_request_as_it_was_sent(self):
        records = encode_records(path_of(self.history.active))
        for record, turn in zip(map(json.loads, records), self.line, strict=True):
            sent = record["request"]
            assert identical(sent.pop("messages"), turn.request)
            assert sent.pop("input_ids") == turn.prompt
            assert sent == {"logprobs": True}

    @invariant()
    def every_id_has_its_origin(self):
        for checkpoint, turn in zip(path_of(self.history.active), self.line, strict=True):
            origins, mask = checkpoint.origins(), checkpoint.sampled_mask()
            assert (origins.dtype, mask.dtype) == (np.uint8, np.bool_)
            assert origins.tolist() == turn.origins
            assert mask.tolist() == [origin == 1 for origin in turn.origins]


TestLinearMachine = LinearMachine.TestCase
TestLinearMachine.settings = settings(PATIENT, max_examples=80, stateful_step_count=20)


# -- whole conversations ------------------------------------------------------------------------------------------


@settings(PATIENT, max_examples=25)
@given(st.data(), conversations(max_exchanges=1))
def test_a_client_that_spells_history_anew_never_forks(data, request):
    history = LinearHistory()
    sent = []
    for turn in range(3):
        attachment = history.attach(request, loose_tool_call)
        assert attachment.discards == 0
        checkpoint = checkpoint_of(attachment, data.draw(messages()), suffix=[turn], sampled=[10 + turn])
        history.commit(attachment, checkpoint)
        sent.append(json.loads(json.dumps(request)))
        stored = checkpoint.path_messages()
        request = [data.draw(respelled(message)) for message in stored]
        request += data.draw(st.lists(messages(), max_size=2))
    path = state_of(history)
    assert len(path) == 3
    for checkpoint, wanted in zip(path, sent, strict=True):
        assert identical(sent_by(checkpoint), wanted)
    assert path[-1].tokens.materialize().tolist() == [0, 10, 1, 11, 2, 12]
    assert path[-1].sampled_mask().tolist() == [False, True] * 3


@settings(PATIENT, max_examples=40)
@given(st.data(), conversations(max_exchanges=1))
def test_any_replay_is_an_extension_one_step_back_or_refused(data, request):
    history = LinearHistory()
    for turn in range(3):
        take_turn(history, request, data.draw(messages()), sampled=[turn])
        request = [*history.active.path_messages(), data.draw(messages())]
    before = state_of(history)
    stored = before[-1].path_messages()
    request = data.draw(replays(stored))
    try:
        attachment = history.attach(request, loose_tool_call)
    except RollbackRefused:
        # It differs before the end of the turn before last.
        assert (
            not all(map(loose_tool_call, before[1].path_messages(), request)) or len(request) < before[1].message_count
        )
    else:
        assert attachment.base in before[1:]
        assert identical(attachment.stored, stored[: len(attachment.stored)])
        assert [*attachment.stored, *attachment.appended][len(attachment.stored) :] == request[len(attachment.stored) :]
    assert state_of(history) == before


# -- the sentences of the contract --------------------------------------------------------------------------------


@pytest.fixture
def three_turns():
    """u1 a1 u2 a2 u3 a3, with ids 1 2, 1 2, 1 2."""
    history = LinearHistory()
    request = []
    for number in "123":
        request = [*request, user(f"u{number}")]
        take_turn(history, request, assistant(f"a{number}"))
        request.append(assistant(f"a{number}"))
    return history, request


def test_an_extension_goes_on(three_turns):
    history, stored = three_turns
    attachment = history.attach([*stored, tool(), user()], strict)
    assert attachment.base is history.active
    assert attachment.discards == 0
    assert list(attachment.appended) == [tool(), user()]
    assert attachment.tokens.materialize().tolist() == [1, 2] * 3


@pytest.mark.parametrize(
    "tail",
    [[user("u3")], [user("other")], [], [user("u3"), assistant("other")], [user("u3"), assistant("a3 ")], [tool()]],
    ids=["same question", "other question", "cut off", "other answer", "one space", "tool"],
)
def test_divergence_rolls_back_to_the_last_generated_checkpoint_inside_the_match(three_turns, tail):
    history, stored = three_turns
    attachment = history.attach([*stored[:4], *tail], strict)
    assert attachment.base is state_of(history)[1]
    assert attachment.discards == 1
    assert list(attachment.appended) == tail
    checkpoint = checkpoint_of(attachment, assistant("new"))
    history.commit(attachment, checkpoint)
    assert [c.depth for c in state_of(history)] == [1, 2, 3]
    assert history.active.path_messages() == [*stored[:4], *tail, assistant("new")]


@pytest.mark.parametrize(
    "request_", [[user("u1")], [user("other")], [user("u1"), user("u2")], [user("u1"), assistant("z")]]
)
def test_without_a_checkpoint_inside_the_match_the_session_is_empty_again(request_):
    history = LinearHistory()
    take_turn(history, [user("u1")], assistant("a1"))
    attachment = history.attach(request_, strict)
    assert attachment.base is None
    assert attachment.discards == 1
    assert list(attachment.stored) == []
    assert list(attachment.appended) == request_
    assert len(attachment.tokens) == 0
    take_turn(history, request_, assistant("a2"))
    assert history.active.depth == 1
    assert history.active.path_messages() == [*request_, assistant("a2")]


def test_assistants_that_the_client_brought_are_prompt_and_no_checkpoints():
    history = LinearHistory()
    shots = [user("q1"), assistant("s1"), user("q2"), assistant("s2"), user("q3")]
    take_turn(history, shots, assistant("a"))
    assert history.active.depth == 1
    # The match ends behind a client's assistant; there is nothing generated inside it.
    attachment = history.attach([*shots[:4], user("other")], strict)
    assert (attachment.base, attachment.discards) == (None, 1)
    take_turn(history, [*shots, assistant("a"), assistant("s3"), user("q4")], assistant("b"))
    assert history.active.depth == 2
    # Between the two generated ones lies a brought one; only the generated one is a place to go back to.
    attachment = history.attach([*shots, assistant("a"), assistant("s3"), user("other")], strict)
    assert attachment.base is state_of(history)[0]
    assert list(attachment.appended) == [assistant("s3"), user("other")]
    assert attachment.discards == 1


@pytest.mark.parametrize(
    ("kept", "tail", "discards"),
    [
        (2, [], 2),
        (2, [user("x")], 2),
        (3, [], 2),
        (0, [user("x")], 3),
        (1, [], 3),
        (3, [assistant("x"), user("u3")], 2),
    ],
)
def test_more_than_one_discard_is_refused_and_nothing_changes(three_turns, kept, tail, discards):
    history, stored = three_turns
    before = state_of(history)
    earlier = history.attach([*stored, user()], strict)
    request = [*stored[:kept], *tail]
    with pytest.raises(InvalidRequest) as caught:
        history.attach(request, strict)
    assert str(caught.value) == (
        f"rollback failed: discard_count={discards} exceeds max_assistant_rollback_steps=1 "
        f"(stored has 6 messages, request has {len(request)} messages)"
    )
    assert type(caught.value) is RollbackRefused
    assert state_of(history) == before
    assert not history.is_stale(earlier)


def test_the_limit_is_one():
    assert MAX_ASSISTANT_ROLLBACK_STEPS == 1


def test_sending_exactly_the_stored_history_generates_on_top(three_turns):
    history, stored = three_turns
    attachment = history.attach(stored, strict)
    assert attachment.base is history.active
    assert attachment.discards == 0
    assert list(attachment.appended) == []
    take_turn(history, stored, assistant("more"), suffix=[8], sampled=[9])
    assert history.active.path_messages() == [*stored, assistant("more")]
    assert history.active.tokens.materialize().tolist() == [1, 2] * 3 + [8, 9]
    assert sent_by(history.active) == stored


def test_a_refused_role_leaves_the_rollback_done(three_turns):
    history, stored = three_turns
    second = state_of(history)[1]
    outstanding = history.attach([*stored, user()], strict)
    attachment = history.attach([*stored[:4], {"role": "critic", "content": "x"}], strict)
    assert history.active.depth == 3
    history.settle_refused_role(attachment)
    assert history.active is second
    assert history.is_stale(outstanding)


def test_a_refused_role_without_rollback_changes_nothing(three_turns):
    history, stored = three_turns
    active = history.active
    outstanding = history.attach([*stored, user()], strict)
    history.settle_refused_role(history.attach([*stored, {"role": "critic"}], strict))
    assert history.active is active
    assert not history.is_stale(outstanding)


def test_a_refused_role_can_empty_the_session():
    history = LinearHistory()
    take_turn(history, [user()])
    history.settle_refused_role(history.attach([user("other")], strict))
    assert history.active is None


def test_the_stored_messages_stay_authoritative_and_only_the_tail_is_the_clients():
    history = LinearHistory()
    stored_user = {"role": "user", "content": "", "name": "alice"}
    take_turn(history, [stored_user], {"role": "assistant", "content": "", "x": 1})
    spelled = [{"role": "user", "content": None}, {"role": "assistant"}, {"role": "user", "name": "bob"}]
    attachment = history.attach(spelled, strict)
    assert list(attachment.stored) == [stored_user, {"role": "assistant", "content": "", "x": 1}]
    assert dict(attachment.respelled) == {0: spelled[0], 1: spelled[1]}
    take_turn(history, spelled, assistant("b"))
    assert history.active.path_messages() == [*attachment.stored, spelled[2], assistant("b")]
    assert sent_by(history.active) == spelled
    assert sent_by(state_of(history)[0]) == [stored_user]


@pytest.mark.parametrize("other", [True, 1.0, "1"])
def test_values_that_python_calls_equal_are_kept_as_they_were_sent(other):
    history = LinearHistory()
    take_turn(history, [{**user(), "x": 1}])
    request = [{**user(), "x": other}, assistant()]
    take_turn(history, request)
    assert identical(sent_by(history.active), request)


def test_the_matcher_decides(three_turns):
    history, _ = three_turns
    anything = [user("p"), tool("q"), user("r"), tool("s"), user("t"), tool("v"), user("w")]
    attachment = history.attach(anything, lambda stored, replayed: True)
    assert attachment.base is history.active
    assert list(attachment.appended) == [user("w")]
    with pytest.raises(RollbackRefused, match="discard_count=3"):
        history.attach(anything, lambda stored, replayed: False)


def test_a_broken_matcher_changes_nothing(three_turns):
    history, stored = three_turns
    before = state_of(history)

    def broken(kept, replayed):
        raise MatcherFailed("broken")

    with pytest.raises(MatcherFailed):
        history.attach(stored, broken)
    assert state_of(history) == before


# -- concurrency --------------------------------------------------------------------------------------------------


def test_a_retry_that_never_commits_loses_nothing(three_turns):
    history, stored = three_turns
    before = state_of(history)
    outstanding = history.attach([*stored, user()], strict)
    history.attach(stored[:5], strict)
    assert state_of(history) == before
    assert not history.is_stale(outstanding)


def test_the_first_to_commit_wins(three_turns):
    history, stored = three_turns
    first, second = (history.attach([*stored, user(name)], strict) for name in "xy")
    history.commit(second, checkpoint_of(second, assistant("second")))
    assert history.is_stale(first)
    with pytest.raises(ValueError, match="stale"):
        history.commit(first, checkpoint_of(first, assistant("first")))
    assert history.active.path_messages() == [*stored, user("y"), assistant("second")]


def test_a_line_as_long_as_before_is_not_the_line_of_before(three_turns):
    history, stored = three_turns
    outstanding = history.attach([*stored, user()], strict)
    take_turn(history, stored[:5], assistant("a3"))
    assert history.active.depth == 3
    assert history.active.path_messages() == stored
    assert history.is_stale(outstanding)


def test_two_first_turns_at_once():
    history = LinearHistory()
    first, second = history.attach([user("x")], strict), history.attach([user("y")], strict)
    history.commit(first, checkpoint_of(first, assistant()))
    assert history.is_stale(second)


# -- checkpoints --------------------------------------------------------------------------------------------------


def test_an_id_that_replaced_a_sampled_one_was_not_sampled():
    """GLM: the stop id that was sampled becomes the opener of the next role, which is rendered by us."""
    history = LinearHistory()
    take_turn(history, [user()], suffix=[1, 2], sampled=[3, 4])
    take_turn(history, [user(), assistant(), user()], keep=3, suffix=[5, 6], sampled=[7])
    assert history.active.tokens.materialize().tolist() == [1, 2, 3, 5, 6, 7]
    assert history.active.sampled_mask().tolist() == [False, False, True, False, False, True]


def test_a_prompt_shorter_than_what_was_stored_still_has_a_mask():
    history = LinearHistory()
    take_turn(history, [user()], suffix=[1], sampled=[2])
    take_turn(history, [user(), assistant()], keep=1, suffix=[], sampled=[])
    assert history.active.tokens.materialize().tolist() == [1]
    assert history.active.sampled_mask().tolist() == [False]


def test_siblings_share_what_they_extend():
    history = LinearHistory()
    root = take_turn(history, [user()])
    left = take_turn(history, [user(), assistant(), user("x")])
    right = take_turn(history, [user(), assistant(), user("y")])
    assert left.parent is right.parent is root
    assert left.prompt.parent is right.prompt.parent is root.tokens
    assert len(right.tokens.tail) == len(right.prompt.tail) == 1
    assert list(right.messages) == [user("y"), assistant()]


def test_the_recorded_request_encodes_to_what_was_sent():
    history = LinearHistory()
    take_turn(history, [user()], suffix=[1, 2], sampled=[3])
    take_turn(history, [user(), assistant(), user("é")], suffix=[4], sampled=[5], synthetic=1)
    assert history.active.synthetic == 1
    *_, last = encode_records(path_of(history.active))
    assert last.decode() == (
        '{"timestamp":2.0,"request_timestamp":1.0,"method":"POST","path":"/v1/chat/completions","request":'
        '{"logprobs":true,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"},'
        '{"role":"user","content":"é"}],"input_ids":[1,2,3,4]},"response":{},"status_code":200}'
    )


def test_no_path():
    assert path_of(None) == []
    assert LinearHistory().active is None
