"""Any line of turns against a simulation of single tokens."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.core.samples.grown import INDEXER_LAYERS, LAYERS, Grown, decode, expected, forests, provenance_of, rows
from trio_sessions.core.history import path_of
from trio_sessions.core.samples import assemble
from trio_sessions.core.samples.turns import TurnReader

MORE = settings(PATIENT, max_examples=120)
lengths = st.none() | st.integers(-1, 30)


def check(forest: Grown, leaf: int, max_seq_len: int | None, reader: TurnReader | None = None) -> None:
    sample = assemble(forest.line(leaf), forest.rules(), max_seq_len=max_seq_len, reader=reader)
    wanted = expected(forest, leaf, max_seq_len)
    if wanted is None or sample is None:
        event("nothing left")
        assert wanted is sample is None
        return
    event(f"{len(wanted.nodes)} of {len(forest.path_nodes(leaf))} turns")
    response = wanted.tokens[wanted.response_start :]

    assert sample.tokens.dtype == np.int64
    assert sample.tokens.tolist() == [token.id for token in wanted.tokens]
    assert sample.response_length == len(response)
    assert sample.loss_mask.tolist() == [int(token.origin == "sampled") for token in response]
    assert sample.rollout_log_probs.tolist() == [
        token.log_prob if token.origin == "sampled" else 0.0 for token in response
    ]
    # Output of a turn, what came between, output of the next: each is decoded by itself.
    pieces = itertools.groupby(response, key=lambda token: (token.origin == "sampled", token.node))
    texts = [decode([token.id for token in piece]) for _, piece in pieces]
    assert sample.response == "".join(texts)
    assert sample.status == wanted.status

    steps = [forest.steps[node] for node in wanted.nodes]
    assert sample.weight_versions == tuple(step.version for step in steps if step.version is not None)
    assert sample.prefix_cache_info.cached_tokens == sum(step.cached or 0 for step in steps)
    assert sample.prefix_cache_info.total_prompt_tokens == sum(step.prompt_tokens or 0 for step in steps)
    for number, (segment, node, step) in enumerate(
        zip(sample.metadata["lifecycle"], wanted.nodes, steps, strict=True), start=1
    ):
        assert segment.pop("prev_t1", None) == (100.0 + wanted.nodes[number - 2] if number > 1 else None)
        t0 = None if step.latency is None else 100.0 + node - step.latency
        assert segment == {"t0": t0, "t1": 100.0 + node, "turn": number, "req_ts": 50.0 + node}

    for array, held, layers, factor in (
        (sample.rollout_routed_experts, wanted.experts, LAYERS, 7),
        (sample.rollout_indexer_topk, wanted.choices, INDEXER_LAYERS, 11),
    ):
        assert (array is not None) is held
        if array is not None:
            assert array.dtype == np.int32
            assert np.array_equal(array, rows(wanted.tokens, 0, layers, factor))

    provenance = sample.metadata["provenance"]
    said = provenance_of(sample)
    assert [kind for kind, _, _ in said] == [token.origin for token in wanted.tokens]
    assert [version for _, _, version in said] == [
        token.version if token.origin == "sampled" else None for token in wanted.tokens
    ]
    assert [wanted.nodes[turn] for _, turn, _ in said] == [token.node for token in wanted.tokens]
    assert provenance["boundary_events"] == [
        {"turn": turn, **declared.to_json()} for turn, step in enumerate(steps) for declared in step.events
    ]
    assert provenance["loss_masked"] == {
        origin: sum(token.origin == origin for token in wanted.tokens) for origin in ("prompt", "synthetic")
    }
    sampled = [
        token
        for node in forest.path_nodes(leaf)
        for token in forest.paths[node][forest.prompts[node] :]
        if token not in wanted.trained
    ]
    assert sum(provenance["not_in_sample"].values()) == len(sampled)
    replaced = {id(token) for token in sampled} - {id(token) for token in forest.paths[leaf]}
    assert provenance["not_in_sample"]["replaced"] == len(replaced)
    assert provenance["not_in_sample"]["max_seq_len"] == 0 or max_seq_len is not None
    for array in (sample.tokens, sample.loss_mask, sample.rollout_log_probs):
        assert not array.flags.writeable


@MORE
@given(forests(linear=True) | forests(linear=True, whole=True), lengths)
def test_a_line_is_what_its_tokens_say(forest, max_seq_len):
    check(forest, len(forest.steps) - 1, max_seq_len)


@MORE
@given(forests(), lengths)
def test_every_leaf_of_a_forest_is_a_line(forest, max_seq_len):
    reader = TurnReader()
    for leaf in forest.leaves():
        check(forest, leaf, max_seq_len, reader)


@PATIENT
@given(forests(linear=True, whole=True))
def test_without_a_limit_a_line_of_whole_turns_trains_everything_that_stands(forest):
    leaf = forest.checkpoints[-1]
    sample = assemble(path_of(leaf), forest.rules())
    assert sample is not None
    assert np.array_equal(sample.tokens, leaf.tokens.materialize())
    assert np.array_equal(sample.loss_mask, leaf.sampled_mask()[sample.response_start :])


@PATIENT
@given(forests(linear=True, whole=True), st.integers(0, 30), st.integers(0, 5))
def test_a_larger_limit_only_adds(forest, max_seq_len, more):
    path = forest.line()
    small = assemble(path, forest.rules(), max_seq_len=max_seq_len)
    large = assemble(path, forest.rules(), max_seq_len=max_seq_len + more)
    assume(small is not None)
    assert large is not None
    assert len(small.tokens) <= max_seq_len
    assert large.tokens[: len(small.tokens)].tolist() == small.tokens.tolist()
    assert large.loss_mask[: small.response_length].tolist() == small.loss_mask.tolist()
