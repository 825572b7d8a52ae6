"""Samples of turns that the pipeline committed, with an engine that samples and answers replay payloads."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from tests.engine.embedded_fixtures import engine
from tests.service.conftest import Bench
from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.core.history import path_of
from trio_sessions.core.samples import AssemblyRules, assemble, decode_samples, encode_samples
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.embedded.replay import indexer_choices, routed_experts
from trio_sessions.render.base import Renderer
from trio_sessions.render.load import load_renderer
from trio_sessions.testing.engine import ScriptedEngine

LAYERS, TOP_K = 2, 2


async def embedded(call: EngineCall) -> EngineAnswer:
    reply = engine().complete(call.body)
    return EngineAnswer(status=reply.status, headers=(), body=reply.body)


@cache
def renderer() -> Renderer:
    return load_renderer(BUILTIN_TOKENIZER)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"routing_replay": True, "indexer_replay": True},
        {"routing_replay": True, "indexer_replay": True, "incremental_replay": True},
    ],
    ids=["no replay", "whole rows", "added rows"],
)
async def test_what_was_sampled_is_what_is_trained(settings):
    bench = Bench(ScriptedEngine(otherwise=embedded), renderer(), **settings)
    session = await bench.registry.create()
    messages: list[dict[str, object]] = []
    for number, most in enumerate((None, None, 4)):
        messages.append({"role": "user", "content": f"question {number}"})
        reply = await bench.turn(session, *messages, seed=number, **({"max_tokens": most} if most else {}))
        messages.append(json.loads(reply.body)["choices"][0]["message"])
    leaf = session.history.active
    path = path_of(leaf)
    rules = AssemblyRules(
        decode=renderer().decode,
        max_trim_tokens=renderer().max_trim_tokens,
        num_layers=LAYERS,
        incremental_replay=settings.get("incremental_replay", False),
    )
    sample = assemble(path, rules)
    ids = leaf.tokens.materialize()
    assert len(path) == 3
    assert np.array_equal(sample.tokens, ids)
    assert np.array_equal(sample.loss_mask, leaf.sampled_mask()[sample.response_start :])
    assert sample.rollout_log_probs[sample.loss_mask == 1].tolist() == [
        log_prob
        for checkpoint in path
        for log_prob, *_ in json.loads(checkpoint.record.response)["choices"][0]["meta_info"]["output_token_logprobs"]
    ]
    assert sample.status == "truncated"
    assert sample.response == renderer().decode(ids[sample.response_start :])
    assert sample.weight_versions == ("default",) * 3
    assert sample.prefix_cache_info.total_prompt_tokens == sum(checkpoint.prompt_length for checkpoint in path)
    if settings:
        assert np.array_equal(sample.rollout_routed_experts, routed_experts(ids, 0, layers=LAYERS, top_k=TOP_K))
        assert np.array_equal(sample.rollout_indexer_topk, indexer_choices(ids, 0, layers=LAYERS, top_k=TOP_K))
    else:
        assert sample.rollout_routed_experts is sample.rollout_indexer_topk is None
    (decoded,) = decode_samples(encode_samples([sample], {})).samples
    assert np.array_equal(decoded.tokens, ids)
    assert decoded.metadata == sample.metadata
