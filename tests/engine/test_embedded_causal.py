"""Answers of a model that gives logits: what may be drawn, when an answer ends, and whose log probs it reports.

The model is the toy's n-gram model read as one that gives logits, so that torch is not needed.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import httpx
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.embedded_fixtures import WEATHER, body, output
from tests.engine.embedded_fixtures import engine as toy
from trio_sessions.data import builtin_tokenizer_path
from trio_sessions.engine.embedded import EmbeddedEngine, load_pretrained_engine, serve_engine
from trio_sessions.engine.embedded.causal import Feed, draw
from trio_sessions.engine.embedded.sampler import Sampling
from trio_sessions.engine.embedded.vocabulary import spelled
from trio_sessions.errors import ConfigurationError, LibraryMissing

STOP = toy().family.stop_id
# Real models have logits for more ids than their tokenizer has tokens.
UNUSED = 100


@dataclass(frozen=True)
class NGramLogits:
    """The n-gram model as one that gives logits; ids that no token has are the most probable of all."""

    stop_ids: Collection[int] = (STOP,)
    size: int = toy().vocabulary.size + UNUSED

    def begin(self) -> Feed:
        sequence = [STOP, STOP]

        def feed(token_ids: Sequence[int]) -> Any:
            sequence.extend(token_ids)
            probabilities = toy().language.sampler.model.distribution(*sequence[-2:])
            return np.concatenate((np.log(probabilities), np.zeros(UNUSED))).astype(np.float32)

        return feed


@cache
def engine(stop_ids: Collection[int] = (STOP,), **options: Any) -> EmbeddedEngine:
    return EmbeddedEngine(model=NGramLogits(stop_ids), seed=5, **options)


def answer(**fields: Any) -> dict[str, Any]:
    reply = engine().complete(body(**fields))
    assert reply.status == 200, reply.body
    decoded: dict[str, Any] = json.loads(reply.body)
    return decoded


def plain_log_probs(prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
    """Those of the model alone, fed with the ids as a trainer would."""
    feed, found, new = NGramLogits().begin(), [], prompt
    for token_id in ids:
        scaled = feed(new).astype(np.float64) / (temperature or 1.0)
        found.append(float(scaled[token_id] - np.log(np.exp(scaled).sum())))
        new = [token_id]
    return found


@pytest.mark.parametrize("top_p", [1.0, 0.6])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("constraint", [{}, {"tools": [WEATHER], "tool_choice": "required"}], ids=["free", "call"])
def test_log_probs_are_the_plain_model_s_at_the_temperature(
    constraint: dict[str, Any], temperature: float, top_p: float
) -> None:
    for seed in range(3):
        got = answer(
            **constraint, temperature=temperature, top_p=top_p, seed=seed, max_tokens=60, return_prompt_token_ids=True
        )
        ids, log_probs = output(got)
        expected = plain_log_probs(got["choices"][0]["prompt_token_ids"], ids, temperature)
        assert log_probs == pytest.approx(expected, abs=1e-6)
        assert max(ids) < toy().vocabulary.size


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=8),
    st.data(),
    st.sampled_from([1.0, 0.5, 0.0]),
    st.sampled_from([1.0, 0.5]),
)
def test_only_allowed_ids_are_drawn(logits: list[float], data: st.DataObject, temperature: float, top_p: float) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=len(logits)).filter(any)))
    index, log_prob = draw(
        np.array(logits), allowed, Sampling(temperature, top_p), random.Random(data.draw(st.integers()))
    )
    assert allowed[index]
    scaled = np.array(logits) / (temperature or 1.0)
    assert log_prob == pytest.approx(scaled[index] - np.log(np.exp(scaled).sum()), abs=1e-9)
    assert log_prob <= 0


def test_ids_are_drawn_as_often_as_their_share_of_what_is_allowed() -> None:
    rng, draws = random.Random(3), 4000
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    counts = np.zeros(4)
    for _ in range(draws):
        counts[draw(logits, np.array([False, True, True, True]), Sampling(1.0, 0.8), rng)[0]] += 1
    # Of what is allowed, 0.3 and 0.2 have 0.83 together, so top-p leaves 0.1 out.
    assert counts[[0, 3]].sum() == 0
    assert counts[1] / draws == pytest.approx(0.6, abs=0.04)


def test_an_answer_ends_at_a_stop_id_or_at_its_limit() -> None:
    whole = answer(seed=1, temperature=0.6)
    ids, _ = output(whole)
    choice = whole["choices"][0]
    assert (ids[-1], choice["finish_reason"], choice["matched_stop"]) == (STOP, "stop", STOP)
    assert STOP not in ids[:-1]
    assert choice["message"]["content"]
    assert toy().vocabulary.decode(ids[:-1]).endswith(choice["message"]["content"])
    cut = answer(seed=1, temperature=0.6, max_tokens=len(ids) - 1)
    assert output(cut)[0] == ids[:-1]
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["choices"][0]["meta_info"]["cached_tokens"] == 0


def test_every_stop_id_of_the_model_ends_an_answer() -> None:
    other = toy().vocabulary.ids[spelled(" the")]
    reply = json.loads(engine((STOP, other)).complete(body(seed=1)).body)
    ids, _ = output(reply)
    assert ids[-1] in (STOP, other)
    assert not {STOP, other} & set(ids[:-1])
    assert reply["choices"][0]["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[-1]}


def test_a_stop_text_ends_an_answer_and_is_not_in_its_text() -> None:
    got = answer(seed=1, stop=["e"])
    ids, _ = output(got)
    assert "e" in toy().vocabulary.decode(ids)
    assert "e" not in toy().vocabulary.decode(ids[:-1])
    assert "e" not in got["choices"][0]["message"]["content"]
    assert got["choices"][0]["matched_stop"] == "e"


def test_the_same_seed_gives_the_same_ids() -> None:
    first, second, other = (output(answer(seed=seed, max_tokens=40)) for seed in (3, 3, 4))
    assert first == second != other


@pytest.mark.parametrize("seed", range(8))
def test_a_demanded_call_is_one_and_may_come_after_a_thought(seed: int) -> None:
    message = answer(seed=seed, tools=[WEATHER], tool_choice="required")["choices"][0]["message"]
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert isinstance(arguments["city"], str)
    assert 1 <= arguments["days"] <= 14


def test_a_thought_that_the_prompt_opened_is_free_and_comes_first() -> None:
    tokenized = engine().handle("POST", "tokenize", json.dumps({"prompt": "<|im_start|>assistant\n<think>\n"}).encode())
    prompt = json.loads(tokenized.body)["tokens"]
    got = answer(seed=2, input_ids=prompt, tools=[WEATHER], tool_choice="required")
    message = got["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["tool_calls"]


def test_tools_alone_demand_nothing() -> None:
    with_tools = output(answer(seed=4, tools=[WEATHER], input_ids=[STOP, 5, 6]))
    assert with_tools == output(answer(seed=4, input_ids=[STOP, 5, 6]))


def test_a_schema_is_kept_to() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    got = answer(seed=4, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    content = got["choices"][0]["message"]["content"]
    assert isinstance(json.loads(content)["n"], int)


def test_replay_data_is_not_made_up() -> None:
    reply = engine().complete(body(return_routed_experts=True))
    assert reply.status == 400
    assert b"does not record" in reply.body


async def test_an_answer_that_nobody_waits_for_ends() -> None:
    endless = engine((), context_length=10**9)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve_engine, endless))
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            with trio.move_on_after(0.3):
                await client.post("/v1/chat/completions", content=body())
            # There is one thread to generate in, so this waits for the other's end.
            with trio.fail_after(20):
                answer = await client.post("/v1/chat/completions", content=body(max_tokens=3))
            assert answer.json()["usage"]["completion_tokens"] == 3
        nursery.cancel_scope.cancel()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the model has 7 ids, its tokenizer 8192"):
        EmbeddedEngine(model=NGramLogits(size=7))


def test_a_folder_that_is_none_or_has_no_tokenizer(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="absent is not a folder"):
        load_pretrained_engine(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="has no tokenizer"):
        load_pretrained_engine(tmp_path)


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    shutil.copytree(builtin_tokenizer_path(), tmp_path, dirs_exist_ok=True)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LibraryMissing, match=r"pip install 'trio-sessions\[model\]'"):
        load_pretrained_engine(tmp_path)
