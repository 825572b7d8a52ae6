"""Forests of turns: the leaves, who is picked, and that every sampled id is trained once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.core.samples.grown import Grown, Step, expected, forests, grown, line_of
from trio_sessions.core.samples import (
    PICKERS,
    POSTPROCESSORS,
    CollectedSamples,
    Forest,
    Sample,
    SampleHooks,
    assemble_leaves,
    collect_forest,
    train_once,
    tree_metadata,
)
from trio_sessions.errors import SampleAssemblyFailed

MORE = settings(PATIENT, max_examples=120)


def leaf_of(sample: Sample) -> int:
    return sample.metadata["leaf"]["node_id"]


def metadata_of(forest: Grown, active: int | None = None, **agent) -> dict[str, object]:
    metadata = {"accumulated_token_ids": [], "max_trim_tokens": 1, "tree": tree_metadata(forest.forest(active))}
    return {**metadata, "agent": agent} if agent else metadata


def collect(
    forest: Grown, *, picker="drop_retries", max_seq_len=None, active=None, mismatches=lambda leaf: None, **agent
) -> list[Sample]:
    collected = collect_forest(
        forest.forest(active),
        forest.rules(),
        session_metadata=metadata_of(forest, active, **agent),
        mismatches=mismatches,
        hooks=SampleHooks(picker=PICKERS[picker], picker_name=picker),
        max_seq_len=max_seq_len,
    )
    assert (collected.empty_reason is None) is bool(collected.samples)
    return list(collected.samples)


def leaves(forest: Grown, **kwargs) -> list[int]:
    return [leaf_of(sample) for sample in collect(forest, **kwargs)]


def retry() -> Grown:
    """A turn, an attempt at the next that was cut off, its retry, and one more turn."""
    return grown(
        Step(output=[1000, 1001], response_id="a"),
        Step(parent=0, output=[1002], finish="length", response_id="b"),
        Step(parent=0, output=[1003, 1004], response_id="c"),
        Step(parent=2, output=[1005], response_id="d"),
    )


# -- every id once ------------------------------------------------------------------------------------------------


def kept_by(picker: str, forest: Grown, there: list[int], active: int | None) -> list[int]:
    """Who is picked, told by the rule and nothing else; ``there`` are the leaves that have a sample."""
    steps = forest.steps

    def superseded(leaf: int) -> bool:
        mine = [step.caller.is_same_as(steps[leaf].caller) for step in steps]
        if steps[leaf].parent is not None:
            later = range(leaf + 1, len(steps))
            return any(mine[other] and steps[other].parent == steps[leaf].parent for other in later)
        others = {forest.path_nodes(other)[0] for other in there}
        return any(
            other > leaf and mine[other] and list(steps[other].suffix) == list(steps[leaf].suffix) for other in others
        )

    by_length = sorted(there, key=lambda leaf: (-len(forest.path_nodes(leaf)), -leaf))
    match picker:
        case "keep_all":
            return there
        case "longest":
            return by_length[:1]
        case "active_only":
            behind = [leaf for leaf in forest.leaves() if active in forest.path_nodes(leaf)]
            return [leaf for leaf in behind[-1:] if leaf in there]
        case "by_agent":
            agents = [(step.caller.agent, step.caller.thread) for step in steps]
            kept = [leaf for leaf in there if not superseded(leaf) and steps[leaf].caller.purpose is None]
            return sorted(kept, key=lambda leaf: (agents.index(agents[leaf]), forest.path_nodes(leaf)))
        case _:
            return [leaf for leaf in by_length if not superseded(leaf)]


@MORE
@given(forests() | forests(whole=True), st.sampled_from(sorted(PICKERS)), st.none() | st.integers(0, 30), st.data())
def test_every_sampled_id_of_a_kept_leaf_is_trained_exactly_once(forest, picker, max_seq_len, data):
    active = data.draw(st.none() | st.integers(0, len(forest.steps) - 1))
    samples = collect(forest, picker=picker, max_seq_len=max_seq_len, active=active)
    lines = {leaf: expected(forest, leaf, max_seq_len) for leaf in forest.leaves()}
    there = [leaf for leaf, line in lines.items() if line is not None]
    kept = [leaf_of(sample) for sample in samples]
    assert kept == kept_by(picker, forest, there, active)
    event(f"{len(kept)} kept")

    trained = {}
    for sample in samples:
        line = lines[leaf_of(sample)]
        assert sample.tokens.tolist() == [token.id for token in line.tokens]
        response = line.tokens[line.response_start :]
        trained[leaf_of(sample)] = [token for token, loss in zip(response, sample.loss_mask, strict=True) if loss]
        masked = sample.metadata["provenance"]["loss_masked"]
        assert sum(masked.values()) + int(sample.loss_mask.sum()) == len(sample.tokens)
        assert masked["shared"] == len(line.trained) - int(sample.loss_mask.sum())
        assert sample.rollout_log_probs.tolist() == [
            token.log_prob if token.origin == "sampled" else 0 for token in response
        ]
    counts = Counter(id(token) for tokens in trained.values() for token in tokens)
    assert set(counts.values()) <= {1}
    assert counts.keys() == {id(token) for leaf in kept for token in lines[leaf].trained}
    for leaf, tokens in trained.items():
        for token in tokens:
            assert leaf == min(other for other in kept if token in lines[other].tokens)


@PATIENT
@given(forests(whole=True))
def test_with_all_leaves_and_no_limit_everything_that_stands_is_trained(forest):
    samples = collect(forest, picker="keep_all")
    standing = {id(token) for leaf in forest.leaves() for token in forest.paths[leaf] if token.origin == "sampled"}
    assert sum(int(sample.loss_mask.sum()) for sample in samples) == len(standing)


def test_a_shared_completion_trains_in_the_leaf_that_was_committed_first():
    forest = grown(
        Step(suffix=[1], output=[1000, 1001]), Step(parent=0, output=[1002]), Step(parent=0, suffix=[2], output=[1003])
    )
    first, second = collect(forest, picker="keep_all")
    assert (first.loss_mask.tolist(), second.loss_mask.tolist()) == ([1, 1, 0, 1], [0, 0, 0, 1])
    assert second.rollout_log_probs.tolist() == [-0.5, -1.5, 0.0, -0.5]
    assert second.metadata["provenance"]["loss_masked"] == {"prompt": 2, "synthetic": 0, "shared": 2}
    # The order of the picker is the order of the reply, not of ownership.
    swapped = train_once([second, first], metadata_of(forest))
    assert [leaf_of(sample) for sample in swapped] == [2, 1]


def test_ownership_is_the_kept_leaves():
    forest = retry()
    (sample,) = collect(forest)
    assert sample.loss_mask.tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert leaf_of(sample) == 3


def test_a_stop_id_that_only_the_later_leaf_kept_is_trained_there():
    forest = grown(
        Step(suffix=[1], output=[1000, 1009]),
        Step(parent=0, suffix=[5], output=[1001], drop=1),
        Step(parent=0, suffix=[6], output=[1002]),
    )
    first, second = collect(forest, picker="keep_all")
    assert (first.tokens.tolist(), first.loss_mask.tolist()) == ([1, 1000, 5, 1001], [1, 0, 1])
    assert (second.tokens.tolist(), second.loss_mask.tolist()) == ([1, 1000, 1009, 6, 1002], [0, 1, 0, 1])


def test_a_leaf_between_that_gave_the_stop_id_up_does_not_free_it():
    forest = grown(
        Step(suffix=[1], output=[1000, 1009]),
        Step(parent=0, suffix=[4], output=[1001]),
        Step(parent=0, suffix=[5], output=[1002], drop=1),
        Step(parent=0, suffix=[6], output=[1003]),
    )
    masks = [sample.loss_mask.tolist() for sample in collect(forest, picker="keep_all")]
    assert masks == [[1, 1, 0, 1], [0, 0, 1], [0, 0, 0, 1]]


def test_samples_that_were_given_are_not_changed():
    forest = grown(Step(), Step(parent=0), Step(parent=0, suffix=[2]))
    raw = assemble_leaves(forest.forest(), forest.rules(), mismatches=lambda leaf: None)
    before = [(sample.loss_mask.tolist(), dict(sample.metadata)) for sample in raw]
    finished = train_once(raw, metadata_of(forest, note="x"))
    assert [(sample.loss_mask.tolist(), dict(sample.metadata)) for sample in raw] == before
    assert finished[1].loss_mask.tolist() != raw[1].loss_mask.tolist()


# -- leaves -------------------------------------------------------------------------------------------------------


def test_one_raw_sample_a_leaf_in_order_of_commits():
    forest = retry()
    findings = [{"type": "assistant_text"}]
    raw = assemble_leaves(
        forest.forest(),
        forest.rules(),
        mismatches=lambda leaf: findings if leaf is forest.checkpoints[3] else None,
    )
    assert [sample.metadata["leaf"] for sample in raw] == [
        {"node_id": 1, "parent": 0, "path_node_ids": [0, 1], "response_id": "b"},
        {"node_id": 3, "parent": 2, "path_node_ids": [0, 2, 3], "response_id": "d"},
    ]
    assert raw[1].metadata["accumulated_token_ids"] == [1, 1000, 1001, 1, 1003, 1004, 1, 1005]
    assert raw[1].metadata["tito_session_mismatch"] == findings
    assert "tito_session_mismatch" not in raw[0].metadata
    assert list(raw[1].metadata) == [
        "lifecycle",
        "provenance",
        "accumulated_token_ids",
        "leaf",
        "tito_session_mismatch",
    ]
    assert [sample.loss_mask.tolist() for sample in raw] == [[1, 1, 0, 1], [1, 1, 0, 1, 1, 0, 1]]


def test_a_leaf_without_output_has_no_sample():
    forest = grown(Step(suffix=[1]), Step(suffix=[1] * 9))
    assert leaves(forest, picker="keep_all", max_seq_len=5) == [0]
    assert leaves(forest, picker="keep_all", max_seq_len=1) == []
    assert leaves(grown(Step(suffix=[1] * 9), Step(suffix=[1])), picker="keep_all", max_seq_len=5) == [1]


def test_a_failing_leaf_fails_the_session():
    forest = grown(Step(), Step(meta={"routed_experts": "broken"}))
    with pytest.raises(SampleAssemblyFailed, match=r"^record 0 has routed_experts"):
        collect(forest, picker="longest")


def test_the_tree_of_the_metadata():
    forest = retry()
    assert tree_metadata(forest.forest(active=2)) == {
        "nodes": [
            _node(0, None, [1, 3], 3, "a"),
            _node(1, 0, [4, 5], 5, "b", truncated=True),
            _node(2, 0, [4, 6], 6, "c"),
            _node(3, 2, [7, 8], 8, "d"),
        ],
        "leaves": [{"node_id": 1, "path_node_ids": [0, 1]}, {"node_id": 3, "path_node_ids": [0, 2, 3]}],
        "active": 2,
    }


def _node(number, parent, span, num_tokens, response_id, *, truncated=False):
    return {
        "id": number,
        "parent": parent,
        "seq": number,
        "truncated": truncated,
        "committed_at": 100.0 + number,
        "completion_span": span,
        "num_tokens": num_tokens,
        "response_id": response_id,
    }


def test_a_session_without_turns():
    empty = Forest(())
    assert tree_metadata(empty) == {"nodes": [], "leaves": [], "active": None}
    assert Forest.of_line(None).nodes == ()
    collected = collect_forest(empty, grown().rules(), session_metadata={}, mismatches=lambda leaf: None)
    assert collected == CollectedSamples((), "no_records")


def test_nothing_left_is_all_truncated():
    forest = retry()
    collected = collect_forest(
        forest.forest(),
        forest.rules(),
        session_metadata=metadata_of(forest),
        mismatches=lambda leaf: None,
        max_seq_len=1,
    )
    assert collected == CollectedSamples((), "all_truncated")


def test_a_line_is_a_forest():
    forest = line_of(Step(response_id="a"), Step(finish="length"), Step(response_id="c"))
    line = Forest.of_line(forest.checkpoints[-1])
    assert tree_metadata(line) == tree_metadata(forest.forest(active=2))
    assert line.nodes[1].response_id == ""


@pytest.mark.parametrize(
    "changes",
    [
        {0: {"id": 1}},
        {1: {"seq": 0}},
        {1: {"parent": 1}},
        {1: {"parent": -1}},
        {2: {"parent": None}},
        {2: {"parent": 1}},
    ],
)
def test_nodes_that_are_no_forest_are_refused(changes):
    forest = grown(Step(), Step(parent=0), Step(parent=0)).forest()
    nodes = [replace(node, **changes.get(node.id, {})) for node in forest.nodes]
    with pytest.raises(ValueError, match=r"^node "):
        Forest(tuple(nodes))


@pytest.mark.parametrize("active", [-1, 3])
def test_an_active_node_that_is_not_there_is_refused(active):
    with pytest.raises(ValueError, match="active"):
        Forest(grown(Step(), Step(parent=0), Step(parent=0)).forest().nodes, active)


# -- pickers ------------------------------------------------------------------------------------------------------


def test_retries_are_dropped_by_default():
    assert SampleHooks().picker is PICKERS["drop_retries"]
    assert SampleHooks().postprocessor is POSTPROCESSORS["train_once"]
    assert leaves(retry()) == [3]


def test_a_later_sibling_supersedes_a_leaf_and_nothing_else():
    # 1 is extended, so that it is no leaf; 3 came before its sibling 4 and is one.
    forest = grown(Step(), Step(parent=0), Step(parent=1), Step(parent=0), Step(parent=0))
    assert leaves(forest) == [2, 4]


def test_survivors_are_ordered_by_length_then_commit():
    forest = grown(
        Step(suffix=[1]), Step(suffix=[2]), Step(suffix=[3]), Step(parent=1), Step(parent=0), Step(suffix=[4])
    )
    assert leaves(forest) == [4, 3, 5, 2]


def test_roots_are_retries_only_of_the_same_prompt():
    forest = grown(Step(suffix=[1, 2]), Step(suffix=[1, 3]), Step(suffix=[1, 2]), Step(parent=2))
    assert leaves(forest) == [3, 1]
    assert leaves(grown(Step(suffix=[1]), Step(suffix=[1], output=[1001]))) == [1]


def test_the_other_pickers():
    forest = grown(Step(suffix=[1]), Step(parent=0), Step(parent=0), Step(suffix=[2]))
    assert leaves(forest, picker="keep_all") == [1, 2, 3]
    assert leaves(forest, picker="longest") == [2]
    assert leaves(forest, picker="active_only", active=1) == [1]
    assert leaves(forest, picker="active_only", active=0) == [2]
    assert leaves(forest, picker="active_only", active=3) == [3]
    assert leaves(forest, picker="active_only", active=None) == []


# -- what the agent said ------------------------------------------------------------------------------------------


def test_a_reward_goes_to_every_sample():
    forest = grown(Step(suffix=[1]), Step(suffix=[2]))
    assert [sample.reward for sample in collect(forest, picker="keep_all", reward=0.5)] == [0.5, 0.5]
    assert [sample.reward for sample in collect(forest, picker="keep_all", reward={"a": 1})] == [{"a": 1}] * 2
    assert [sample.reward for sample in collect(forest, picker="keep_all", other=1)] == [None, None]
    assert [sample.reward for sample in collect(forest, picker="keep_all")] == [None, None]


def test_the_agents_metadata_never_replaces_the_servers():
    agent = dict.fromkeys(("accumulated_token_ids", "tito_session_mismatch", "leaf", "provenance"), "spoofed")
    forest = grown(Step(suffix=[1], output=[1000]))
    (told,) = collect(forest, mismatches=lambda leaf: [], **agent, note="x", lifecycle="mine", reward=1)
    (plain,) = collect(forest, mismatches=lambda leaf: [])
    assert told.metadata == {**plain.metadata, "note": "x", "lifecycle": "mine", "reward": 1}
    assert plain.metadata["tito_session_mismatch"] == []
    # Not even where the server has nothing to say.
    (silent,) = collect(forest, **agent)
    assert "tito_session_mismatch" not in silent.metadata


def test_rewards_of_branches_win():
    forest = grown(
        Step(suffix=[1], response_id="a"),
        Step(parent=0, response_id="b"),
        Step(parent=0, response_id="c"),
        Step(suffix=[2], response_id="d"),
    )
    samples = collect(forest, picker="keep_all", reward=9, rewards={"b": 0.5, "a": -1})
    assert [sample.reward for sample in samples] == [0.5, -1, 9]
    assert all("rewards" not in sample.metadata for sample in samples)
    # A reward for a leaf that was not kept is no mistake; the last turn of a path wins, not the last in the object.
    (kept,) = collect(forest, picker="active_only", active=2, rewards={"c": 0, "a": 1, "b": 2})
    assert kept.reward == 0


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        ({"x": 1}, "names 'x', which is no response of this session"),
        ({"": 1}, "names '', which is no response of this session"),
        ({"twice": 1}, r"names 'twice', which is the id of turns \[1, 2\]"),
        ({"a": True}, "must be a number, got True"),
        ({"a": "1"}, "must be a number, got '1'"),
        ({"a": None}, "must be a number, got None"),
        ({"a": float("nan")}, "must be a number, got nan"),
        ({"a": float("inf")}, "must be a number, got inf"),
        ([1.0], "metadata.rewards must be an object"),
        (0, "metadata.rewards must be an object"),
    ],
)
def test_rewards_that_cannot_be_given_are_refused(rewards, text):
    forest = grown(
        Step(response_id="a"), Step(parent=0, response_id="twice"), Step(parent=1, response_id="twice"), Step(parent=2)
    )
    with pytest.raises(SampleAssemblyFailed, match=text):
        collect(forest, rewards=rewards)
