"""Replay payloads: rows that are whole, rows that are added, and rows that are missing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tests.core.samples.grown import INDEXER_LAYERS, LAYERS, TOP_K, Grown, Step, line_of, packed, rows
from trio_sessions.core.samples import Sample, assemble
from trio_sessions.errors import SampleAssemblyFailed

VALUES = np.arange(4 * LAYERS * TOP_K, dtype=np.int32).reshape(4, LAYERS, TOP_K)


def sample_of(forest: Grown, max_seq_len: int | None = None, **rules) -> Sample:
    sample = assemble(forest.line(), forest.rules(**rules), max_seq_len=max_seq_len)
    assert sample is not None
    return sample


def failure_of(forest: Grown, **rules) -> str:
    with pytest.raises(SampleAssemblyFailed) as caught:
        assemble(forest.line(), forest.rules(**rules))
    return str(caught.value)


def one(payload: str | object, **kind) -> Grown:
    """One turn of five ids with this payload of experts."""
    return line_of(Step(suffix=[1, 2, 3], output=[1000, 1001], meta={"routed_experts": payload}), **kind)


# -- whole payloads -----------------------------------------------------------------------------------------------


def test_rows_are_all_ids_but_the_last():
    sample = sample_of(one(packed(VALUES)))
    assert sample.rollout_routed_experts.shape == (4, LAYERS, TOP_K)
    assert np.array_equal(sample.rollout_routed_experts, VALUES)
    assert sample.rollout_routed_experts.dtype == np.int32


def test_the_last_turn_of_the_sample_has_the_rows():
    forest = line_of(Step(output=[1000, 1001], experts=True), Step(output=[1002], experts=True, drop=1))
    assert np.array_equal(sample_of(forest).rollout_routed_experts, rows(forest.paths[1], 0, LAYERS, 7))


def test_a_payload_that_nobody_needs_is_not_read():
    forest = line_of(Step(meta={"routed_experts": "not base64"}), Step(experts=True))
    assert sample_of(forest).rollout_routed_experts is not None


def test_a_spelled_out_slash_is_a_slash():
    payload = packed(np.full((4, LAYERS, TOP_K), -1))
    assert "/" in payload
    forest = one(payload)
    (checkpoint,) = forest.checkpoints
    response = checkpoint.record.response.replace(payload.encode(), payload.replace("/", "\\/").encode())
    assert response != checkpoint.record.response
    respelled = replace(checkpoint, record=structs.replace(checkpoint.record, response=response))
    sample = assemble([respelled], forest.rules())
    assert sample is not None
    assert (sample.rollout_routed_experts == -1).all()


def test_a_payload_of_megabytes_is_read_whole():
    values = np.arange(4 * LAYERS * 99_999, dtype=np.int32).reshape(4, LAYERS, -1)
    payload = packed(values)
    assert len(payload) > 3_000_000
    assert np.array_equal(sample_of(one(payload)).rollout_routed_experts, values)


def test_padding_within_a_payload_of_megabytes_is_refused():
    payload = packed(np.zeros((4, LAYERS, 99_999), dtype=np.int32))
    for at in (2**20 - 4, 2**20, 2**20 + 4):
        broken = f"{payload[:at]}AAA={payload[at + 4 :]}"
        assert failure_of(one(broken)).startswith("record 0 has routed_experts that is not base64 of int32: ")


@pytest.mark.parametrize(
    "payload",
    ["not base64", "AAA", "AAAA", "AAAAAA==\n", "é", ["AAAAAAAA"], {}, 12345, True],
    ids=repr,
)
def test_a_payload_that_is_no_base64_of_int32_is_refused(payload):
    assert failure_of(one(payload)).startswith("record 0 has routed_experts that is not base64 of int32: ")


@pytest.mark.parametrize("values", [VALUES[:3], np.zeros(0), np.zeros(5), np.zeros(9)], ids=len)
def test_a_payload_that_is_not_whole_rows_is_refused(values):
    assert failure_of(one(packed(values))) == (
        f"record 0 has routed_experts of {values.size} values, not a multiple of 4 rows x {LAYERS} layers"
    )


def test_layers_have_to_be_known():
    assert "--num-layers" in failure_of(one(packed(VALUES)), num_layers=None)
    assert sample_of(line_of(Step()), num_layers=None).rollout_routed_experts is None
    assert sample_of(one(packed(VALUES)), num_layers=2 * LAYERS).rollout_routed_experts.shape == (4, 4, 1)


def test_a_sample_of_one_id_has_no_rows():
    forest = line_of(Step(suffix=[1], output=[], meta={"routed_experts": ""}))
    assert sample_of(forest).rollout_routed_experts.shape == (0, LAYERS, 0)
    filled = line_of(Step(suffix=[1], output=[], meta={"routed_experts": packed(VALUES)}))
    assert "not a multiple of 0 rows" in failure_of(filled)


@pytest.mark.parametrize("missing", ["experts", "choices"])
def test_a_turn_without_a_payload_ends_the_sample_before_it(missing):
    forest = line_of(
        Step(output=[1000], experts=True, choices=True),
        Step(output=[1001], experts=missing != "experts", choices=missing != "choices"),
        Step(output=[1002], experts=True, choices=True),
    )
    sample = sample_of(forest)
    assert sample.tokens.tolist() == [1, 1000]
    assert (sample.status, len(sample.rollout_routed_experts)) == ("completed", 1)
    assert sample.metadata["provenance"]["not_in_sample"]["after_replay_gap"] == 2


def test_a_payload_may_begin_with_a_later_turn():
    forest = line_of(Step(), Step(experts=True, choices=True), Step(experts=True, choices=True))
    sample = sample_of(forest)
    assert len(sample.tokens) == 6
    assert np.array_equal(sample.rollout_routed_experts, rows(forest.paths[2], 0, LAYERS, 7))
    assert np.array_equal(sample.rollout_indexer_topk, rows(forest.paths[2], 0, INDEXER_LAYERS, 11))


def test_a_payload_that_began_late_may_not_end_early():
    forest = line_of(Step(), Step(experts=True, choices=True), Step())
    assert len(sample_of(forest).tokens) == 4


# -- the indexer --------------------------------------------------------------------------------------------------


def test_the_indexer_brings_its_own_number_of_layers():
    sample = sample_of(line_of(Step(choices=True)), num_layers=None)
    assert sample.rollout_indexer_topk.shape == (1, INDEXER_LAYERS, TOP_K)


@pytest.mark.parametrize("layers", [None, 0, -1])
def test_an_indexer_payload_without_layers_is_refused(layers):
    forest = line_of(Step(choices=True, meta={"indexer_topk_num_layers": layers}))
    assert failure_of(forest) == "record 0 has indexer_topk without indexer_topk_num_layers"


# -- added rows ---------------------------------------------------------------------------------------------------


def added(*metas: dict[str, object], fields: list[dict[str, object]] | None = None, **changes) -> Grown:
    """Turns of two new ids each, with added rows of experts, and with ``metas`` in their meta info."""
    steps = [
        Step(suffix=[1], output=[1000], experts=True, meta=meta, fields=field, **changes)
        for meta, field in zip(metas, fields or [{}] * len(metas), strict=True)
    ]
    return line_of(*steps, incremental=True)


def test_added_rows_are_put_together():
    forest = added({}, {}, {})
    lengths = [len(json.loads(c.record.response)["choices"][0]["meta_info"]["routed_experts"]) for c in forest.line()]
    assert lengths[1] == lengths[2] < 4 * lengths[0], "a turn holds only what it added"
    assert np.array_equal(sample_of(forest).rollout_routed_experts, rows(forest.paths[2], 0, LAYERS, 7))


def test_added_rows_behind_the_sample_are_not_read():
    forest = added({}, {}, {"routed_experts": None})
    forest.checkpoints[1] = replace(forest.checkpoints[1], finish_reason="length")
    sample = sample_of(forest)
    assert (len(sample.tokens), sample.status) == (4, "truncated")
    assert np.array_equal(sample.rollout_routed_experts, rows(forest.paths[1], 0, LAYERS, 7))


def test_a_replaced_stop_id_gets_its_row_from_the_turn_that_replaced_it():
    forest = line_of(
        Step(suffix=[1, 2], output=[1000, 1009], experts=True),
        Step(suffix=[3, 4], output=[1001, 1009], drop=1, experts=True),
        incremental=True,
    )
    assert np.array_equal(sample_of(forest).rollout_routed_experts, rows(forest.paths[1], 0, LAYERS, 7))


def test_a_turn_that_adds_no_row_needs_no_payload():
    forest = line_of(
        Step(suffix=[1, 2], output=[1000, 1009], experts=True),
        Step(suffix=[5], output=[], drop=1, finish="abort"),
        incremental=True,
    )
    sample = sample_of(forest)
    assert (sample.tokens.tolist(), sample.status) == ([1, 2, 1000, 5], "aborted")
    assert np.array_equal(sample.rollout_routed_experts, rows(forest.paths[0], 0, LAYERS, 7))


@pytest.mark.parametrize("start", [0, 1, 4, 9])
def test_rows_that_do_not_follow_are_a_gap(start):
    forest = added({}, {}, fields=[{}, {"routed_experts_start_len": start}])
    if start == 1:
        assert sample_of(forest).rollout_routed_experts is not None
    else:
        assert failure_of(forest) == f"additional R3: record 1 starts at row {start}; expected 1"


def test_the_first_rows_cannot_be_missing():
    forest = added({}, fields=[{"routed_experts_start_len": 1}])
    assert failure_of(forest) == "additional R3: record 0 starts at row 1; expected 0"


def test_a_missing_payload_is_a_gap():
    assert failure_of(added({}, {"routed_experts": None}, {})) == (
        "additional R3: record 1 has no routed_experts payload"
    )
    assert failure_of(added({"routed_experts": None}, {})) == "additional R3: record 0 has no routed_experts payload"
    assert sample_of(added({"routed_experts": None}, {"routed_experts": None})).rollout_routed_experts is None


def test_a_request_that_named_no_start_is_refused():
    forest = added({}, {}, fields=[{}, {"routed_experts_start_len": None}])
    assert failure_of(forest) == "additional R3: record 1 request carries no routed_experts_start_len"


def test_a_row_of_an_id_that_was_replaced_is_refused():
    forest = line_of(
        Step(suffix=[1], output=[1000, 1001, 1002], experts=True),
        Step(suffix=[2, 3], output=[1003], drop=2, experts=True),
        incremental=True,
    )
    assert failure_of(forest) == (
        "additional R3: record 1 starts at row 3, but its prompt kept only 2 ids of the turn before"
    )


@pytest.mark.parametrize("payload", ["", packed(VALUES[:1, :, :1]), packed(VALUES[:1])], ids=["none", "few", "half"])
def test_added_payloads_have_the_rows_of_their_turn(payload):
    with pytest.raises(SampleAssemblyFailed, match=r"record 1 (has|payload)"):
        sample_of(added({}, {"routed_experts": payload}))


def test_added_payloads_agree_on_the_number_of_experts():
    other = packed(np.zeros((2, LAYERS, TOP_K + 1)))
    assert failure_of(added({}, {"routed_experts": other})) == (
        f"additional R3: record 1 has {TOP_K + 1} experts a layer; expected {TOP_K}"
    )


def test_nothing_was_added_to_nothing():
    forest = line_of(Step(suffix=[1], output=[], meta={"routed_experts": ""}), incremental=True)
    assert sample_of(forest).rollout_routed_experts.shape == (0, LAYERS, 0)


@pytest.mark.parametrize("whole", [False, True], ids=["added", "whole"])
def test_the_indexer_may_add_rows_or_send_all(whole):
    forest = line_of(
        *(Step(output=[1000, 1001], choices=True, experts=True) for _ in range(3)),
        incremental=True,
        whole_choices=whole,
    )
    assert np.array_equal(sample_of(forest).rollout_indexer_topk, rows(forest.paths[2], 0, INDEXER_LAYERS, 11))


def test_indexer_rows_that_do_not_fit_are_refused():
    few = {"indexer_topk": packed(np.zeros((1, INDEXER_LAYERS, TOP_K)))}
    forest = added({}, few, choices=True)
    assert failure_of(forest).startswith("additional indexer rows: record 1 has 6 values; expected the rows up to 3")


def test_indexer_rows_that_begin_with_a_later_turn_are_refused():
    # Three added rows of two choices are as many values as six whole ones of one.
    forest = line_of(
        Step(suffix=[1, 2, 3], output=[1000]),
        Step(suffix=[1, 2], output=[1001], choices=True),
        incremental=True,
    )
    assert failure_of(forest) == "additional indexer rows: record 0 has no indexer_topk payload"


def test_indexer_rows_may_be_whole_on_some_turns_only():
    forest = line_of(*(Step(output=[1000, 1001], choices=True) for _ in range(3)), incremental=True)
    whole = line_of(*(Step(output=[1000, 1001], choices=True) for _ in range(3)), incremental=True, whole_choices=True)
    sample = assemble([*forest.line()[:1], *_second_of(forest, whole)], forest.rules())
    assert sample is not None
    assert np.array_equal(sample.rollout_indexer_topk, rows(forest.paths[2], 0, INDEXER_LAYERS, 11))


def _second_of(forest: Grown, whole: Grown):
    second, third = forest.line()[1:]
    return replace(second, record=whole.line()[1].record), third
