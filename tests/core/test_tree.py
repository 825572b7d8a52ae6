"""The tree history: a state machine against a list of whole conversations, and a pin for every rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core import PATIENT, traced_memory
from tests.core.test_history import assistant, checkpoint_of, user
from trio_sessions.core.history import MAX_NODES, Preference, TreeHistory, path_of
from trio_sessions.core.matchers import role_content_only, strict
from trio_sessions.errors import MatcherFailed, NodeCapReached


def grow(tree, *request, said="a", matches=strict, **facts):
    """One turn: the request attaches, and the model says something."""
    attachment = tree.attach([user(item) if isinstance(item, str) else item for item in request], matches)
    tree.commit(attachment, checkpoint_of(attachment, assistant(said), **facts))
    return tree.nodes[-1]


class Forests(RuleBasedStateMachine):
    """The model keeps whole conversations, and looks through all of them."""

    @initialize()
    def start(self):
        self.tree = TreeHistory()
        self.paths: list[list[dict[str, object]]] = []
        self.ids: list[list[int]] = []
        self.parents: list[int | None] = []
        self.waiting: list[tuple[object, int | None, list[dict[str, object]]]] = []
        self.shown: tuple[int, int] | None = None
        self.next_id = 0

    @rule(
        data=st.data(),
        more=st.lists(st.sampled_from(["u", "v"]).map(user) | st.just(assistant("own")), min_size=0, max_size=2),
    )
    def attach(self, data, more):
        start = data.draw(st.sampled_from([[], *self.paths]))
        kept = data.draw(st.integers(0, len(start)))
        request = [*start[:kept], *more]
        if not request:
            return
        expected = max(
            (number for number, path in enumerate(self.paths) if request[: len(path)] == path),
            key=lambda number: (len(self.paths[number]), number),
            default=None,
        )
        attachment = self.tree.attach(request, strict)
        assert attachment.base is (None if expected is None else self.tree.nodes[expected])
        assert [*attachment.stored, *attachment.appended] == request
        assert attachment.discards == 0
        assert not self.tree.is_stale(attachment)
        self.waiting.append((attachment, expected, request))

    @rule(data=st.data(), said=st.sampled_from(["x", "y"]), cut=st.integers(0, 1))
    def commit(self, data, said, cut):
        if not self.waiting:
            return
        attachment, parent, request = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        before = [] if parent is None else self.ids[parent]
        keep = max(0, len(before) - cut)
        # Turns from one place with the same request are rendered to the same ids; what is sampled is always another.
        suffix = [len(request), keep]
        self.next_id += 1
        self.tree.commit(
            attachment,
            checkpoint_of(attachment, assistant(said), keep=keep, suffix=suffix, sampled=[1000 + self.next_id]),
        )
        self.paths.append([*request, assistant(said)])
        self.ids.append([*before[:keep], *suffix, 1000 + self.next_id])
        self.parents.append(parent)
        number = len(self.paths) - 1
        if self.shown is None or attachment.ticket > self.shown[0]:
            self.shown = (attachment.ticket, number)

    @rule(data=st.data())
    def give_up(self, data):
        """A turn whose engine failed leaves nothing."""
        if self.waiting:
            self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))

    @invariant()
    def every_path_is_what_it_was(self):
        if not hasattr(self, "tree"):
            return
        assert len(self.tree.nodes) == len(self.paths)
        for number, node in enumerate(self.tree.nodes):
            assert self.tree.number_of(node) == number
            assert node.path_messages() == self.paths[number]
            assert node.tokens.materialize().tolist() == self.ids[number]
            assert node.parent is (None if self.parents[number] is None else self.tree.nodes[self.parents[number]])
        leaves = [number for number in range(len(self.paths)) if number not in self.parents]
        assert [self.tree.number_of(leaf) for leaf in self.tree.leaves()] == leaves
        assert self.tree.active is (None if self.shown is None else self.tree.nodes[self.shown[1]])


TestForests = Forests.TestCase
TestForests.settings = settings(PATIENT, max_examples=60, stateful_step_count=30)


def test_the_deepest_of_several_and_of_those_the_latest():
    tree = TreeHistory()
    root = grow(tree, "q")
    twins = [grow(tree, "q", assistant("a"), "r") for _ in range(2)]
    assert [twin.parent for twin in twins] == [root, root]
    assert tree.attach([user("q"), assistant("a"), user("r"), assistant("a"), user("s")], strict).base is twins[1]
    # A node is entered only when all of its messages are repeated.
    assert tree.attach([user("q"), assistant("a"), user("r"), assistant("b")], strict).base is root
    assert tree.attach([user("other")], strict).base is None


def test_of_twins_the_one_that_is_named_or_is_behind_that():
    tree = TreeHistory()
    twins = [grow(tree, "q") for _ in range(2)]
    request = [user("q"), assistant("a"), user("r"), assistant("a"), user("s")]
    children = []
    for twin in twins:
        attachment = tree.attach(request[:3], strict, Preference(extends=twin))
        assert attachment.base is twin
        children.append(tree.commit(attachment, checkpoint_of(attachment, assistant("a"))))
    for twin, child in zip(twins, children, strict=True):
        assert tree.attach(request, strict, Preference(extends=child)).base is child
        # Not all that comes back is named.
        assert tree.attach(request, strict, Preference(extends=twin)).base is child
    # To be named is not to be repeated.
    assert tree.attach([user("other")], strict, Preference(extends=twins[0])).base is None


def test_a_shorter_twin_of_a_deeper_path_does_not_hide_it():
    tree = TreeHistory()
    # The same conversation came once turn by turn and once as a whole, and the whole was committed first.
    whole = grow(tree, "q", assistant("a"), "r")
    first = grow(tree, "q")
    assert tree.attach([user("q"), assistant("a"), user("r"), assistant("a"), user("s")], strict).base is whole
    assert tree.attach([user("q"), assistant("a"), user("t")], strict).base is first


def test_nothing_is_refused_and_nothing_taken_away():
    tree = TreeHistory()
    first = grow(tree, "q")
    attachment = tree.attach([user("q")], strict)
    tree.settle_refused_role(attachment)
    assert tree.nodes == [first]
    assert tree.active is first


def test_the_same_history_again_is_generated_on_top():
    tree = TreeHistory()
    root = grow(tree, "q")
    attachment = tree.attach([user("q"), assistant("a")], strict)
    assert (attachment.base, list(attachment.appended)) == (root, [])


def test_the_request_that_was_attached_last_is_shown_whatever_the_order_of_commits():
    tree = TreeHistory()
    early, late = (tree.attach([user("q")], strict) for _ in range(2))
    tree.commit(late, checkpoint_of(late, assistant("late")))
    tree.commit(early, checkpoint_of(early, assistant("early")))
    assert tree.active is not None
    assert tree.active.messages[-1] == assistant("late")
    assert [node.messages[-1]["content"] for node in tree.nodes] == ["late", "early"]


def test_the_cap_is_a_refusal_before_the_engine_and_at_the_commit():
    tree = TreeHistory()
    running = [tree.attach([user("q")], strict) for _ in range(MAX_NODES + 1)]
    for attachment in running[:-1]:
        tree.commit(attachment, checkpoint_of(attachment, assistant("a")))
    with pytest.raises(NodeCapReached, match=r"^node cap reached \(1024\): "):
        tree.attach([user("q")], strict)
    with pytest.raises(NodeCapReached, match=r"^node cap reached \(1024\): "):
        tree.require_room()
    assert len(tree.nodes) == MAX_NODES


def test_a_matcher_decides_and_a_broken_one_changes_nothing():
    tree = TreeHistory()
    root = grow(tree, "q", said="x")
    replay = [user("q"), assistant("x") | {"reasoning_content": "why"}, user("r")]
    assert tree.attach(replay, strict).base is None
    assert tree.attach(replay, role_content_only).base is root

    def broken(stored, replayed):
        raise MatcherFailed("no")

    with pytest.raises(MatcherFailed):
        tree.attach(replay, broken)
    assert tree.nodes == [root]


def test_every_message_is_compared_once_at_its_place():
    tree = TreeHistory()
    for number in range(20):
        grow(tree, "q", "r", said=str(number))
    asked = []

    def counting(stored, replayed):
        asked.append(stored["content"])
        return strict(stored, replayed)

    tree.attach([user("q"), user("r"), assistant("7"), user("s")], counting)
    assert asked.count("q") == asked.count("r") == 1
    assert len(asked) == 2 + 20


def test_siblings_hold_what_they_have_in_common_once():
    tree = TreeHistory()
    suffix = np.arange(1000, dtype=np.int32)
    nodes = [grow(tree, {"role": "user", "content": "q" * 50}, said=str(n), suffix=suffix.copy()) for n in range(3)]
    assert len({id(node.prompt) for node in nodes}) == 1
    assert len({id(node.messages[0]) for node in nodes}) == 1
    other = grow(tree, {"role": "user", "content": "q" * 50}, suffix=suffix + 1)
    assert other.prompt is not nodes[0].prompt
    assert other.tokens.materialize()[:1000].tolist() == (suffix + 1).tolist()


@pytest.mark.parametrize("shape", ["wide", "deep", "bushy"])
def test_a_thousand_nodes_of_long_paths_fit_in_fifty_megabytes(shape):
    """1,024 nodes whose paths have 100,000 ids; what the engine answered is not counted, and short here."""
    tree = TreeHistory()
    size = {"wide": 100_000, "deep": 97, "bushy": 100_000 // 32}[shape]
    suffix = np.arange(size, dtype=np.int32)
    history: list[dict[str, object]] = []
    with traced_memory() as held:
        for number in range(MAX_NODES):
            if shape == "wide" or (shape == "bushy" and number % 32 == 0):
                history = []
            said = assistant(str(number))
            request = [*history, user(f"question {len(history)}")]
            attachment = tree.attach(request, strict)
            tree.commit(attachment, checkpoint_of(attachment, said, suffix=suffix.copy(), sampled=[number]))
            history = [*request, said]
    assert max(len(node.tokens) for node in tree.nodes) > 99_000
    assert held() < 50 * 2**20
    assert [node.tokens.tail.tolist() for node in path_of(tree.nodes[-1])][-1] == [MAX_NODES - 1]
