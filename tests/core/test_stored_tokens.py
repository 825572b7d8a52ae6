"""How many ids a session stores, against adding up what each of its turns brought."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_history import assistant, checkpoint_of, user
from trio_sessions.core.history import LinearHistory, TreeHistory
from trio_sessions.core.matchers import strict
from trio_sessions.errors import NodeCapReached

# Which turn is extended, how many of its ids are replaced, and how many are rendered and sampled.
TURNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(1, 9), st.integers(1, 9)), max_size=9)


@given(TURNS)
def test_a_tree_stores_what_all_of_its_nodes_added(turns: list[tuple[int, int, int, int]]) -> None:
    tree = TreeHistory()
    paths: list[list[dict[str, object]]] = [[]]
    stored = 0
    for number, (base, cut, rendered, sampled) in enumerate(turns):
        history = paths[base % len(paths)]
        request = [*history, user(f"q{number}")]
        attachment = tree.attach(request, strict)
        assert tree.stored_tokens(attachment) == stored
        replaced = cut if history else 0
        said = assistant(f"a{number}")
        keep = len(attachment.tokens) - replaced
        tree.commit(
            attachment, checkpoint_of(attachment, said, keep=keep, suffix=[1] * rendered, sampled=[2] * sampled)
        )
        paths.append([*request, said])
        # What a child replaces, its parent still has.
        stored += rendered + sampled
    assert tree.stored_tokens(tree.attach([user("q")], strict)) == stored


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_a_line_stores_what_stands_of_it(turns: list[tuple[int, int, int]]) -> None:
    line = LinearHistory()
    history: list[dict[str, object]] = []
    stored = [0]
    for cut, rendered, sampled in turns:
        request = [*history, user("q")]
        attachment = line.attach(request, strict)
        assert line.stored_tokens(attachment) == stored[-1]
        keep = len(attachment.tokens) - (cut if history else 0)
        said = assistant("a")
        line.commit(
            attachment, checkpoint_of(attachment, said, keep=keep, suffix=[1] * rendered, sampled=[2] * sampled)
        )
        history = [*request, said]
        stored.append(stored[-1] + rendered + sampled)
    assert all(before < after for before, after in pairwise(stored))
    # One that takes the place of the last leaves what is before it.
    assert line.stored_tokens(line.attach([*history[:-2], user("other")], strict)) == stored[-2]


def test_the_cap_on_nodes_may_be_another() -> None:
    tree = TreeHistory(2)
    for _ in range(2):
        attachment = tree.attach([user("q")], strict)
        tree.commit(attachment, checkpoint_of(attachment, assistant("a")))
    with pytest.raises(NodeCapReached, match=r"^node cap reached \(2\): "):
        tree.attach([user("q")], strict)
