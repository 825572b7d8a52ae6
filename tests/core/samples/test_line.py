"""One case for every rule by which a line of turns becomes a sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tests.core.samples.grown import Grown, Step, grown, line_of
from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.samples import CollectedSamples, Sample, assemble, collect_line
from trio_sessions.errors import SampleAssemblyFailed, SessionError


def sample_of(forest: Grown, max_seq_len: int | None = None, **rules) -> Sample:
    sample = assemble(forest.line(), forest.rules(**rules), max_seq_len=max_seq_len)
    assert sample is not None
    return sample


def failure_of(forest: Grown, **rules) -> str:
    with pytest.raises(SampleAssemblyFailed) as caught:
        assemble(forest.line(), forest.rules(**rules))
    return str(caught.value)


def two_turns() -> Grown:
    return line_of(
        Step(suffix=[1, 2], output=[1000, 1001], log_probs=[-0.1, -0.2], version="7", cached=1, prompt_tokens=2),
        Step(suffix=[3, 4], output=[1002], log_probs=[-0.3], version="8", cached=4, prompt_tokens=6, latency=2.5),
    )


def test_the_error_has_a_code_of_its_own():
    assert SampleAssemblyFailed.code == "sample_assembly_failed"
    assert issubclass(SampleAssemblyFailed, SessionError)


# -- one turn -----------------------------------------------------------------------------------------------------


def test_one_turn():
    sample = sample_of(line_of(Step(suffix=[1, 2], output=[1000, 1001], log_probs=[-0.1, -0.2])))
    assert sample.tokens.tolist() == [1, 2, 1000, 1001]
    assert sample.loss_mask.tolist() == [1, 1]
    assert sample.rollout_log_probs.tolist() == [-0.1, -0.2]
    assert (sample.tokens.dtype, sample.loss_mask.dtype, sample.rollout_log_probs.dtype) == (
        np.int64,
        np.uint8,
        np.float64,
    )
    assert (sample.response, sample.response_length, sample.response_start) == ("[1000 1001]", 2, 2)
    assert (sample.status, sample.weight_versions, sample.reward) == ("completed", (), None)
    assert (sample.rollout_routed_experts, sample.rollout_indexer_topk) == (None, None)


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        ("stop", "completed"),
        ("tool_calls", "completed"),
        ("length", "truncated"),
        ("abort", "aborted"),
        ("content_filter", "pending"),
        (None, "pending"),
    ],
)
def test_the_finish_reason_is_the_status(finish, status):
    assert sample_of(line_of(Step(finish=finish))).status == status


def test_a_turn_that_sampled_nothing():
    sample = sample_of(line_of(Step(suffix=[1, 2], output=[], finish="abort")))
    assert (sample.tokens.tolist(), sample.response, sample.response_length) == ([1, 2], "", 0)
    assert sample.status == "aborted"


# -- several turns ------------------------------------------------------------------------------------------------


def test_what_comes_between_outputs_is_observation():
    sample = sample_of(two_turns())
    assert sample.tokens.tolist() == [1, 2, 1000, 1001, 3, 4, 1002]
    assert sample.loss_mask.tolist() == [1, 1, 0, 0, 1]
    assert sample.rollout_log_probs.tolist() == [-0.1, -0.2, 0.0, 0.0, -0.3]
    assert sample.response == "[1000 1001][3 4][1002]"
    assert sample.response_length == 5


def test_versions_and_cache_counters_add_up():
    sample = sample_of(two_turns())
    assert sample.weight_versions == ("7", "8")
    assert sample.prefix_cache_info.cached_tokens == 5
    assert sample.prefix_cache_info.total_prompt_tokens == 8


def test_lifecycle():
    assert sample_of(two_turns()).metadata["lifecycle"] == [
        {"t0": None, "t1": 100.0, "turn": 1, "req_ts": 50.0},
        {"t0": 98.5, "t1": 101.0, "turn": 2, "req_ts": 51.0, "prev_t1": 100.0},
    ]
    assert list(sample_of(two_turns()).metadata["lifecycle"][1]) == ["t0", "t1", "turn", "req_ts", "prev_t1"]


def test_generating_again_on_the_same_history_needs_no_observation():
    sample = sample_of(line_of(Step(output=[1000]), Step(suffix=[], output=[1001])))
    assert (sample.loss_mask.tolist(), sample.response) == ([1, 1], "[1000][1001]")


@pytest.mark.parametrize(("finish", "status"), [("length", "truncated"), ("abort", "aborted"), (None, "pending")])
def test_only_a_completed_turn_is_extended(finish, status):
    sample = sample_of(line_of(Step(output=[1000]), Step(output=[1001], finish=finish), Step(output=[1002, 1003])))
    assert sample.tokens.tolist() == [1, 1000, 1, 1001]
    assert sample.status == status
    assert len(sample.metadata["lifecycle"]) == 2
    assert sample.metadata["provenance"]["not_in_sample"] == {
        "replaced": 0,
        "max_seq_len": 0,
        "after_unfinished_turn": 2,
        "after_replay_gap": 0,
    }


# -- tails that the next prompt did not keep ----------------------------------------------------------------------


def test_a_stop_id_that_became_another_roles_opener_is_not_trained():
    sample = sample_of(
        line_of(
            Step(suffix=[1], output=[1000, 1009], log_probs=[-1, -2], experts=True),
            Step(suffix=[5, 6], output=[1001, 1009], drop=1, experts=True),
        )
    )
    assert sample.tokens.tolist() == [1, 1000, 5, 6, 1001, 1009]
    assert sample.loss_mask.tolist() == [1, 0, 0, 1, 1]
    assert sample.rollout_log_probs.tolist()[:3] == [-1, 0, 0]
    assert sample.response == "[1000][5 6][1001 1009]"
    assert sample.metadata["provenance"]["not_in_sample"]["replaced"] == 1
    assert len(sample.rollout_routed_experts) == 5


def test_only_so_much_of_a_tail_may_be_replaced():
    forest = line_of(Step(suffix=[1, 2], output=[1000, 1001, 1002]), Step(suffix=[3, 4], output=[1003], drop=2))
    assert sample_of(forest, max_trim_tokens=2).tokens.tolist() == [1, 2, 1000, 3, 4, 1003]
    assert failure_of(forest, max_trim_tokens=1) == (
        "trim_count 2 exceeds allowed=1 (is_last=False, max_trim_tokens=1); "
        "output_ids[-3:]=[1000, 1001, 1002], accumulated[cursor:cursor+3]=[1000, 3, 4]"
    )


def test_a_turn_must_start_with_the_turn_before():
    forest = grown(Step(suffix=[1, 2], output=[1000]), Step(suffix=[1, 3], output=[1000, 1001]))
    with pytest.raises(SampleAssemblyFailed, match=r"^record 1 must start with the tokens of record 0"):
        assemble(forest.checkpoints, forest.rules())


def test_ids_that_are_the_same_need_not_be_the_same_object():
    forest = grown(Step(suffix=[1, 2], output=[1000]), Step(suffix=[1, 2, 1000, 3], output=[1001]))
    sample = assemble(forest.checkpoints, forest.rules())
    assert sample is not None
    assert sample.tokens.tolist() == [1, 2, 1000, 3, 1001]
    assert sample.loss_mask.tolist() == [1, 0, 1]


def test_a_prompt_that_ends_inside_the_output_before_is_refused():
    forest = grown(Step(suffix=[1], output=[1000, 1001]), Step(suffix=[1, 1000], output=[1001, 1002]))
    with pytest.raises(SampleAssemblyFailed, match=r"record 1 must start with the tokens of record 0"):
        assemble(forest.checkpoints, forest.rules())


def test_a_turn_between_must_start_with_the_turn_before_too():
    forest = line_of(
        Step(suffix=[1], output=[1000, 1001]),
        Step(suffix=[5], output=[], drop=1),
        Step(suffix=[1001, 6], output=[1002], drop=1),
    )
    assert forest.checkpoints[-1].tokens.materialize().tolist() == [1, 1000, 1001, 6, 1002]
    assert failure_of(forest).startswith("record 1 must start with the tokens of record 0")


def test_an_id_that_was_rendered_again_as_it_was_sampled_is_trained():
    sample = sample_of(
        line_of(Step(suffix=[1], output=[1000, 1001]), Step(suffix=[1001, 6], output=[1002], drop=1, synthetic=1))
    )
    assert sample.loss_mask.tolist() == [1, 1, 0, 1]
    assert [span["kind"] for span in sample.metadata["provenance"]["spans"]] == [
        "prompt",
        "sampled",
        "prompt",
        "sampled",
    ]


# -- max_seq_len --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_seq_len", "tokens", "status"),
    [
        (7, [1, 2, 1000, 1001, 3, 4, 1002], "completed"),
        (6, [1, 2, 1000, 1001], "completed"),
        (4, [1, 2, 1000, 1001], "completed"),
        (3, [1, 2, 1000], "truncated"),
    ],
)
def test_the_first_turn_that_is_too_long_is_cut(max_seq_len, tokens, status):
    sample = sample_of(two_turns(), max_seq_len)
    assert (sample.tokens.tolist(), sample.status) == (tokens, status)
    assert sample.metadata["provenance"]["not_in_sample"]["max_seq_len"] == 3 - int(sample.loss_mask.sum())


@pytest.mark.parametrize("max_seq_len", [2, 1, 0, -5])
def test_without_output_there_is_no_sample(max_seq_len):
    forest = two_turns()
    assert assemble(forest.line(), forest.rules(), max_seq_len=max_seq_len) is None
    assert collect_line(forest.line(), forest.rules(), max_seq_len=max_seq_len) == CollectedSamples((), "all_truncated")


def test_turns_behind_a_cut_one_are_dropped_even_where_they_would_fit_a_longer_sample():
    forest = line_of(Step(output=[1000] * 5), Step(suffix=[], output=[]), Step(output=[1001]))
    sample = sample_of(forest, 4)
    assert (sample.tokens.tolist(), sample.status) == ([1, 1000, 1000, 1000], "truncated")


def test_a_cut_output_loses_its_versions_and_replay_rows():
    forest = line_of(
        Step(suffix=[1], output=[1000, 1001, 1002], versions=["1", "1", "2"], version="2", experts=True, choices=True)
    )
    sample = sample_of(forest, 3)
    assert len(sample.rollout_routed_experts) == len(sample.rollout_indexer_topk) == 2
    assert [span.get("weight_version") for span in sample.metadata["provenance"]["spans"]] == [None, "1"]
    assert sample.weight_versions == ("2",)


def test_a_line_without_turns():
    assert collect_line([], grown().rules()) == CollectedSamples((), "no_records")


def test_a_line_with_a_sample():
    forest = two_turns()
    collected = collect_line(forest.line(), forest.rules())
    assert (len(collected.samples), collected.empty_reason) == (1, None)


# -- provenance ---------------------------------------------------------------------------------------------------


def test_provenance():
    closed = BoundaryEvent("turn_closed", 3, "closed")
    sample = sample_of(
        line_of(
            Step(suffix=[1], output=[1000, 1001], versions=["1", "2"]),
            Step(suffix=[8, 9, 3], output=[1002], synthetic=2, events=(closed,), version="3"),
        )
    )
    assert sample.metadata["provenance"] == {
        "spans": [
            {"turn": 0, "kind": "prompt", "start": 0, "end": 1},
            {"turn": 0, "kind": "sampled", "start": 1, "end": 2, "weight_version": "1"},
            {"turn": 0, "kind": "sampled", "start": 2, "end": 3, "weight_version": "2"},
            {"turn": 1, "kind": "synthetic", "start": 3, "end": 5},
            {"turn": 1, "kind": "prompt", "start": 5, "end": 6},
            {"turn": 1, "kind": "sampled", "start": 6, "end": 7, "weight_version": "3"},
        ],
        "boundary_events": [{"turn": 1, "kind": "turn_closed", "position": 3, "detail": "closed"}],
        "loss_masked": {"prompt": 2, "synthetic": 2},
        "not_in_sample": {"replaced": 0, "max_seq_len": 0, "after_unfinished_turn": 0, "after_replay_gap": 0},
    }


def test_versions_that_do_not_cover_the_output_leave_it_unnamed():
    versions = [{"version": 5, "start": 1, "end": 2}, {"version": 6, "start": 2, "end": 2}]
    sample = sample_of(line_of(Step(output=[1000, 1001, 1002], meta={"weight_versions": versions})))
    assert [span.get("weight_version", "-") for span in sample.metadata["provenance"]["spans"]] == [
        "-",
        None,
        "5",
        None,
    ]


def test_a_close_stands_behind_what_its_prompt_kept():
    # The last turn gives up a tail of the first, and is itself too long.
    forest = line_of(
        Step(suffix=[1], output=[1000, 1001]),
        Step(suffix=[8, 3], output=[], synthetic=1),
        Step(suffix=[5] * 9, output=[1002], drop=3),
    )
    spans = sample_of(forest, 5).metadata["provenance"]["spans"]
    assert [(span["kind"], span["start"], span["end"]) for span in spans] == [
        ("prompt", 0, 1),
        ("sampled", 1, 2),
        ("prompt", 2, 3),
        ("synthetic", 3, 4),
        ("prompt", 4, 5),
    ]


@pytest.mark.parametrize("spans", [[(0, 4)], [(2, 1)], [(-1, 1)], [(0, 2), (1, 3)]])
def test_versions_of_ids_that_are_not_there_are_refused(spans):
    versions = [{"version": "1", "start": start, "end": end} for start, end in spans]
    text = failure_of(line_of(Step(output=[1000, 1001, 1002], meta={"weight_versions": versions})))
    assert "record 0 has weight_versions [" in text
    assert "3 output tokens" in text


# -- what the engine said -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meta",
    [
        {"cached_tokens": "3"},
        {"prompt_tokens": [1]},
        {"weight_version": {}},
        {"weight_versions": ["1"]},
        {"e2e_latency": "fast"},
        {"indexer_topk_num_layers": "2"},
    ],
)
def test_meta_info_that_cannot_be_read_is_refused(meta):
    text = failure_of(line_of(Step(), Step(meta=meta)))
    assert text.startswith("record 1 holds meta info that cannot be read: ")
    assert next(iter(meta)) in text


def test_null_is_absence():
    nothing = dict.fromkeys(
        ("cached_tokens", "prompt_tokens", "weight_version", "weight_versions", "e2e_latency", "routed_experts")
    )
    sample = sample_of(line_of(Step(meta=nothing)))
    assert (sample.weight_versions, sample.rollout_routed_experts) == ((), None)
    assert sample.metadata["lifecycle"][0]["t0"] is None


@pytest.mark.parametrize("response", [b'{"choices":[]}', b"{}", b"[]", b'{"choices":[1]}'])
def test_an_answer_that_is_none_is_refused(response):
    forest = line_of(Step())
    (checkpoint,) = forest.checkpoints
    broken = replace(checkpoint, record=structs.replace(checkpoint.record, response=response))
    with pytest.raises(SampleAssemblyFailed, match=r"^record 0 holds "):
        assemble([broken], forest.rules())


# -- the type -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"response_length": -1},
        {"response_length": 99},
        {"loss_mask": np.zeros(5, dtype=np.int64)},
        {"loss_mask": np.zeros(4, dtype=np.uint8)},
        {"tokens": np.zeros((7, 1), dtype=np.int64)},
        {"tokens": np.zeros(7, dtype=np.int32)},
        {"rollout_log_probs": np.zeros(5, dtype=np.float32)},
        {"rollout_routed_experts": np.zeros((7, 1, 1), dtype=np.int32)},
        {"rollout_routed_experts": np.zeros((6, 1, 1), dtype=np.int64)},
        {"rollout_indexer_topk": np.zeros((6, 1), dtype=np.int32)},
    ],
    ids=repr,
)
def test_a_sample_whose_parts_do_not_fit_cannot_be_made(changes):
    sample = sample_of(two_turns())
    with pytest.raises(ValueError, match=next(iter(changes)).split("_")[0]):
        replace(sample, **changes)


def test_a_length_that_the_arrays_have_not():
    with pytest.raises(ValueError, match=r"loss_mask is uint8 of shape \(5,\), not uint8 of shape \(4,\)"):
        replace(sample_of(two_turns()), response_length=4)


def test_arrays_are_read_only():
    sample = sample_of(line_of(Step(experts=True, choices=True)))
    for name in ("tokens", "loss_mask", "rollout_log_probs", "rollout_routed_experts", "rollout_indexer_topk"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(sample, name)[...] = 0
