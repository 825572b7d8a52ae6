"""Whatever ends a turn, and whenever, its place is given on: none is ever lost, and none given twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from tests.service.places import Member, Turns, queued, taken
from trio_sessions.errors import SessionNotFound, TooManySessionTurns, TurnQueueFull, TurnQueueTimeout
from trio_sessions.service.admission import Admission, AdmissionLimits

LIMITS = AdmissionLimits(turns=2, session_turns=3, waiting=2, patience=10.0)
MEMBERS = 3


@dataclass(frozen=True)
class Step:
    """What happens, to whom, and whether everybody else runs before what happens next."""

    what: str
    whom: int = 0
    settles: bool = True


STEPS = st.builds(
    Step,
    what=st.sampled_from(["arrive"] * 4 + ["end", "end", "cancel", "cancel", "close", "time"]),
    whom=st.integers(0, 11),
    settles=st.booleans(),
)


@given(st.lists(STEPS, max_size=40))
@example([Step("arrive", n) for n in range(4)] + [Step("end", 0, settles=False), Step("cancel", 2, settles=False)])
@example([Step("arrive", n) for n in range(4)] + [Step("cancel", 2, settles=False), Step("end", 0, settles=False)])
@example([Step("arrive", n) for n in range(4)] + [Step("time", settles=False), Step("end", 0, settles=False)])
@example([Step("arrive", n) for n in range(4)] + [Step("end", 0, settles=False), Step("close", 2, settles=False)])
def test_places_are_neither_lost_nor_given_twice(steps: list[Step]) -> None:
    clock = trio.testing.MockClock()
    trio.run(_play, steps, clock, clock=clock)


async def _play(steps: list[Step], clock: trio.testing.MockClock) -> None:
    members = [Member(str(index)) for index in range(MEMBERS)]
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery)
        admission = Admission(LIMITS, show_waiting=turns.show)
        for step in steps:
            match step.what:
                case "arrive":
                    turns.arrive(admission, members[step.whom % MEMBERS])
                case "close":
                    members[step.whom % MEMBERS].close()
                    members[step.whom % MEMBERS] = Member(f"after {members[step.whom % MEMBERS].id}")
                case "time":
                    clock.jump(6.0)
                case what if turns.all:
                    turn = turns.all[step.whom % len(turns.all)]
                    if what == "end":
                        turn.done.set()
                    else:
                        turn.scope.cancel()
            if step.settles:
                await trio.testing.wait_all_tasks_blocked()
                _check(admission, turns)
        await trio.testing.wait_all_tasks_blocked()
        _check(admission, turns)
        # With no one left there is room for as many as in the beginning.
        for turn in turns.all:
            turn.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (taken(admission), queued(admission), turns.shown) == (0, 0, 0)
        assert admission._of_session == {}
        new = [turns.arrive(admission, Member(f"new {index}")) for index in range(LIMITS.turns)]
        await trio.testing.wait_all_tasks_blocked()
        assert all(turn.started for turn in new)
        nursery.cancel_scope.cancel()


def _check(admission: Admission, turns: Turns) -> None:
    at_work, waiting = turns.at_work(), turns.waiting()
    assert (taken(admission), queued(admission), turns.shown) == (len(at_work), len(waiting), len(waiting))
    assert len(at_work) <= LIMITS.turns
    assert len(waiting) <= LIMITS.waiting
    # Nobody waits while there is a place, or behind one who came later.
    assert not waiting or len(at_work) == LIMITS.turns
    assert all(
        late.arrived > early.arrived
        for late in waiting
        for early in at_work
        if late.arrived is not None and early.arrived is not None
    )
    alive = (*at_work, *waiting)
    for turn in alive:
        own = sum(other.member is turn.member for other in alive)
        assert admission.of_session(turn.member.id) == own <= LIMITS.session_turns
    assert {type(turn.error) for turn in turns.all} <= {
        type(None),
        TooManySessionTurns,
        TurnQueueFull,
        TurnQueueTimeout,
        SessionNotFound,
    }
    for member in {turn.member for turn in turns.all}:
        assert len(member.waits) == sum(turn.member is member for turn in waiting) * (not member.closed)


@pytest.mark.parametrize("ending", ["end", "cancel"])
async def test_one_that_is_cancelled_with_its_place_in_hand_gives_it_on(ending: str) -> None:
    """Between the end of the one before it and its own next step."""
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery)
        admission = Admission(
            AdmissionLimits(turns=1, session_turns=1, waiting=2, patience=60), show_waiting=turns.show
        )
        first, second, third = [turns.arrive(admission, Member(str(index))) for index in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        [first, second, third] = sorted((first, second, third), key=lambda turn: turn.arrived or 0)
        if ending == "end":
            first.done.set()
        else:
            first.scope.cancel()
        second.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (second.ended, third.started) == (True, True)
        third.done.set()
    assert (taken(admission), queued(admission)) == (0, 0)
