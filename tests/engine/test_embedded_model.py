"""The model is a distribution, and reported log probs are the ones that ids were drawn with."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.embedded_fixtures import chat, engine, output
from trio_sessions import data
from trio_sessions.engine.embedded.answer import Goal, answer_plan
from trio_sessions.engine.embedded.model import NGramModel
from trio_sessions.engine.embedded.plan import Allowed, Walk
from trio_sessions.engine.embedded.sampler import Sampling
from trio_sessions.engine.embedded.vocabulary import Alphabet
from trio_sessions.errors import ConfigurationError

_TEMPERATURES = [Sampling(1.0), Sampling(0.7), Sampling(1.6), Sampling(0.01), Sampling(0.0), Sampling(0.9, top_p=0.8)]
_GOALS = [
    Goal(may_think=True),
    Goal(tools={"f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}, may_think=True),
]


@given(st.integers(0, 8191), st.integers(0, 8191))
def test_every_context_has_a_distribution(u: int, v: int) -> None:
    distribution = engine().language.sampler.model.distribution(u, v)
    assert distribution.sum() == pytest.approx(1.0, abs=1e-12)
    assert distribution.min() > 0  # every id of the built-in vocabulary has a token


def test_contexts_that_were_seen_are_distributions_too() -> None:
    model, (u, v) = engine().language.sampler.model, engine().family.opener_ids
    context = model.context(u, v)
    assert len(context.ids) > 20
    assert model.distribution(u, v).sum() == pytest.approx(1.0, abs=1e-12)
    assert model.distribution(u, v)[context.ids].sum() > 0.9


def test_interpolation_by_hand() -> None:
    # After (0, 1): 2 twice, 3 once. After 1: the same, and 0 once from another context.
    model = NGramModel.train([[0, 1, 2], [0, 1, 2], [0, 1, 3], [3, 1, 0]], known=np.ones(4, dtype=np.bool_))
    base = 0.998 * np.array([1, 0, 2, 1]) / 4 + 0.002 / 4
    after_one = (np.array([1, 0, 2, 1]) + 0.25 * 3 * base) / (4 + 0.25 * 3)
    expected = (np.array([0, 0, 2, 1]) + 0.25 * 2 * after_one) / (3 + 0.25 * 2)
    np.testing.assert_allclose(model.distribution(0, 1), expected, rtol=1e-12)
    np.testing.assert_allclose(model.distribution(2, 2), base, rtol=1e-12)


def test_the_shipped_model_fits_its_tokenizer_only() -> None:
    with pytest.raises(ConfigurationError, match="8192 ids, the tokenizer has 5"):
        NGramModel.load(data.builtin_model_path(), known=np.ones(5, dtype=np.bool_))


@pytest.mark.parametrize("sampling", _TEMPERATURES, ids=str)
@pytest.mark.parametrize("goal", _GOALS, ids=["words", "call"])
@pytest.mark.parametrize("name", ["builtin", "qwen3"])
def test_log_probs_are_those_of_the_masked_tempered_distribution(name: str, goal: Goal, sampling: Sampling) -> None:
    toy = engine(name)
    for seed in range(2):
        context = toy.family.opener_ids
        generation = toy.language.sampler.generate(
            answer_plan(toy.family, goal), context, sampling, random.Random(seed)
        )
        assert generation.finished
        walk = Walk(answer_plan(toy.family, goal), toy.vocabulary)
        for token_id, log_prob in zip(generation.token_ids, generation.log_probs, strict=True):
            probabilities = toy.language.sampler.probabilities(context, walk.allowed(), sampling)
            assert probabilities.sum() == pytest.approx(1.0)
            assert log_prob == pytest.approx(math.log(probabilities[token_id]), abs=1e-9)
            if sampling.temperature == 0:
                assert probabilities[token_id] == pytest.approx(probabilities.max(), rel=1e-9)
            walk.advance(token_id)
            context = (context[1], token_id)
        assert walk.done


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6), Sampling(1.0, top_p=0.7)], ids=str)
def test_ids_are_drawn_as_often_as_their_probability_says(sampling: Sampling) -> None:
    toy, rng, draws = engine(), random.Random(11), 6000
    end = toy.family.stop_id
    context = toy.family.opener_ids
    allowed = Allowed((Alphabet.TEXT, 1), [end])
    probabilities = toy.language.sampler.probabilities(context, allowed, sampling)
    counts = np.zeros(len(probabilities))
    for _ in range(draws):
        counts[toy.language.sampler.draw(context, allowed, sampling, rng)[0]] += 1
    assert counts[probabilities == 0].sum() == 0
    common = probabilities > 0.01
    expected = probabilities[common] * draws
    # Five standard deviations of a binomial count; the seed is fixed, so this does not flicker.
    assert (np.abs(counts[common] - expected) < 5 * np.sqrt(expected)).all()
    rare = draws * probabilities[~common].sum()
    assert abs(counts[~common].sum() - rare) < 5 * math.sqrt(rare) + 1


def test_the_same_seed_and_prompt_give_the_same_ids() -> None:
    first, second, other = (output(chat(seed=seed)) for seed in (3, 3, 4))
    assert first == second
    assert first[0] != other[0]
    elsewhere = output(chat(seed=3, messages=[{"role": "user", "content": "bye"}]))
    assert elsewhere[0] != first[0]


@pytest.mark.parametrize("name", ["builtin", "qwen3"])
def test_sampled_spellings_are_not_canonical_but_read_the_same(name: str) -> None:
    toy = engine(name)
    encoder = toy._encoder
    different = 0
    for seed in range(40):
        ids, _ = output(chat(name, seed=seed))
        text = toy.vocabulary.decode(ids)
        canonical = encoder.encode(text, add_special_tokens=False).ids
        assert encoder.decode(canonical, skip_special_tokens=False) == text
        assert encoder.decode(ids, skip_special_tokens=False) == text
        different += canonical != ids
    assert different >= 30


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30))
def test_max_tokens_is_a_prefix_of_the_whole_answer(seed: int, limit: int) -> None:
    whole, cut = chat(seed=seed), chat(seed=seed, max_tokens=limit)
    ids, log_probs = output(whole)
    assert output(cut) == (ids[:limit], log_probs[:limit])
    assert cut["choices"][0]["finish_reason"] == ("stop" if len(ids) <= limit else "length")
