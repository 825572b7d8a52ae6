"""A session that is made of its events is the session: in all that can be seen of it, and in all it goes on to do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.growing import HISTORIES, Grown, grown, seen, with_sampled
from trio_sessions.core import json
from trio_sessions.core.history import LinearHistory
from trio_sessions.core.matchers import MATCHERS
from trio_sessions.store import AnswerNoted, Restored, TurnCommitted, TurnsDiscarded
from trio_sessions.store.events import InvalidEvent, decode_event, encode_event
from trio_sessions.testing.strategies import replays

modes = pytest.mark.parametrize("mode", sorted(HISTORIES))


def restored(session: Grown, mode: str) -> Restored:
    """As from a file."""
    return Restored.of([decode_event(encode_event(event)) for event in session.events], HISTORIES[mode]())


@modes
@settings(max_examples=30)
@given(data=st.data())
def test_nothing_of_a_session_is_lost(mode, data):
    session = data.draw(grown(mode))
    again = restored(session, mode)
    assert seen(again.history) == seen(session.history)
    assert len(again.turns) == len(session.turns)
    assert again.replaced_turns == session.replaced
    noted = [(event.turn, event.received) for event in session.events if isinstance(event, AnswerNoted)]
    assert [(again.turns.index(turn), received) for turn, received in again.answers] == noted


@modes
@settings(max_examples=20)
@given(data=st.data())
def test_it_goes_on_as_the_session_would_have(mode, data):
    session = data.draw(grown(mode, most=4))
    again = restored(session, mode)
    # What was committed before and what comes next mix: both take the same requests.
    for _ in range(data.draw(st.integers(1, 3))):
        node = data.draw(st.sampled_from([None, *session.history.nodes]))
        request = data.draw(replays([] if node is None else node.path_messages()))
        places = []
        for history in (session.history, again.history):
            try:
                found = history.attach(request, MATCHERS["strict"])
            except Exception as error:  # noqa: BLE001 - the same of both
                places.append((type(error), str(error)))
                continue
            base = None if found.base is None else list(history.nodes).index(found.base)
            places.append(
                (
                    base,
                    json.encode(list(found.stored)),
                    json.encode(list(found.request)),
                    found.respelled,
                    found.discards,
                )
            )
        assert places[0] == places[1]
    went_on = Grown(again.history, list(session.events), again.turns, again.replaced_turns)
    turns = len(went_on.turns)
    went_on.take(data.draw)
    # The newest request is the one that is shown.
    assert len(went_on.turns) == turns or went_on.history.active is went_on.turns[-1]
    assert seen(restored(went_on, mode).history) == seen(went_on.history)


def test_what_a_parent_has_is_not_written_down_again():
    # The tools of an agent are most of a request, and the same on every turn.
    first, *others = [event for event in with_sampled(4).events if isinstance(event, TurnCommitted)]
    assert (first.tools, first.template_kwargs, first.request_fields) == (b"null", b"{}", b'{"logprobs":true}')
    assert {(event.tools, event.template_kwargs, event.request_fields) for event in others} == {(None, None, None)}


@pytest.mark.parametrize(
    "event",
    [
        AnswerNoted(turn=0, received=True),
        TurnsDiscarded(base=3, ticket=0, discards=1),
        TurnCommitted(
            parent=1,
            ticket=0,
            keep=0,
            suffix=b"",
            sampled=b"",
            messages=b"[{}]",
            method="POST",
            request_timestamp=0.0,
            timestamp=0.0,
            response=b"{}",
        ),
        TurnCommitted(
            parent=None,
            ticket=0,
            keep=0,
            suffix=b"",
            sampled=b"",
            messages=b"[{}]",
            method="POST",
            request_timestamp=0.0,
            timestamp=0.0,
            response=b"{}",
        ),
    ],
    ids=["an answer of no turn", "back to no turn", "a child of no turn", "a root that takes from a parent"],
)
def test_events_that_contradict_each_other_make_no_session(event):
    with pytest.raises(InvalidEvent):
        Restored.of([event], LinearHistory())


@given(st.binary(max_size=40))
def test_bytes_that_are_no_event_are_said_to_be_none(payload):
    try:
        event = decode_event(payload)
    except InvalidEvent:
        return
    assert decode_event(encode_event(event)) == event
