"""The log probs of an exported sample are the model's: a trainer that feeds it the ids finds the same.

A tiny Qwen3 model with random weights samples tool-using conversations behind a gateway, all as real processes. The
plain model, loaded from the same folder, then reads each exported sample at once, without a cache, and its log probs
are compared at every trained position. Samples made from the conversation's text fail the same comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'trio-sessions[model]'")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from tests.model.agent import TOOLS, Agent  # noqa: E402
from tests.model.tiny import save_tiny_qwen3  # noqa: E402
from tests.processes import command  # noqa: E402
from tests.tokenizers import qwen3_tokenizer  # noqa: E402
from trio_sessions.core.samples import Sample  # noqa: E402
from trio_sessions.data import builtin_tokenizer_path  # noqa: E402

TOLERANCE = 1e-4

_ASSISTANT_TURN = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """What is trained.

    Attributes:
        tokens: a sequence.
        positions: indices of the ids that are trained.
        turns: for each of them, the turn that sampled it.
        log_probs: what was reported for the ids that were sampled, in order.
        reported_turns: for each of these, its turn.
    """

    tokens: Ids
    positions: Ids
    turns: Ids
    log_probs: Floats
    reported_turns: Ids

    @classmethod
    def of(cls, sample: Sample) -> Trained:
        """As exported."""
        return cls._of(sample, lambda ids: ids)

    @classmethod
    def turns_tokenized_again(cls, sample: Sample, tokenizer: Any) -> Trained:
        """With the text of every turn in place of its ids; all that was not sampled stays."""
        return cls._of(sample, lambda ids: tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False))

    @classmethod
    def _of(cls, sample: Sample, spelled: Callable[[list[int]], list[int]]) -> Trained:
        tokens: list[int] = []
        positions: list[int] = []
        turns: list[int] = []
        reported_turns: list[int] = []
        for span in sample.metadata["provenance"]["spans"]:
            ids = sample.tokens[span["start"] : span["end"]].tolist()
            # A turn that another sample trains is there without loss.
            if span["kind"] == "sampled" and sample.loss_mask[span["start"] - sample.response_start]:
                reported_turns += [span["turn"]] * len(ids)
                ids = spelled(ids)
                positions += range(len(tokens), len(tokens) + len(ids))
                turns += [span["turn"]] * len(ids)
            tokens += ids
        log_probs = sample.rollout_log_probs[sample.loss_mask == 1]
        return cls(np.array(tokens), np.array(positions), np.array(turns), log_probs, np.array(reported_turns))

    @classmethod
    def conversation_tokenized(cls, sample: Sample, tokenizer: Any, messages: list[Any]) -> Trained:
        """The conversation as the chat template renders it, tokenized, with the assistant's turns trained."""
        text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
        spans = [match.span(1) for match in _ASSISTANT_TURN.finditer(text)]
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [
            (index, turn)
            for index, (start, end) in enumerate(encoded["offset_mapping"])
            for turn, (first, last) in enumerate(spans)
            if first <= start and end <= last
        ]
        positions, turns = np.array(inside).T
        exact = cls.of(sample)
        return cls(np.array(encoded["input_ids"]), positions, turns, exact.log_probs, exact.reported_turns)


@dataclass(frozen=True)
class Trainer:
    """What a trainer has: the plain model and its tokenizer.

    Attributes:
        folder: where the engine has them from, too.
        model: in float32.
        tokenizer: with the chat template.
    """

    folder: Path
    model: Any
    tokenizer: Any

    @classmethod
    def of(cls, folder: Path) -> Trainer:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(folder, model, AutoTokenizer.from_pretrained(folder))

    def log_probs(self, tokens: Ids, temperature: float) -> Floats:
        """Of every id but the first, given those before it; shape (n - 1,)."""
        ids = torch.tensor(tokens)  # a copy: a sample's arrays are read-only
        with torch.inference_mode():
            logits = self.model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            of_all = torch.log_softmax(logits.double() / temperature, dim=-1)
            found: Floats = of_all.gather(1, ids[1:, None])[:, 0].numpy()
        return found

    def compare(self, trained: Trained, temperature: float) -> Comparison:
        """The check: the reported log probs against the model's."""
        found = self.log_probs(trained.tokens, temperature)[trained.positions - 1]
        both = min(len(found), len(trained.log_probs))
        of_turns = [
            abs(found[trained.turns == turn].sum() - trained.log_probs[trained.reported_turns == turn].sum())
            for turn in np.unique(trained.reported_turns)
        ]
        return Comparison(
            len(found), len(trained.log_probs), np.abs(found[:both] - trained.log_probs[:both]), np.array(of_turns)
        )


@dataclass(frozen=True)
class Comparison:
    """How far reported log probs are from the model's.

    Attributes:
        trained: how many ids are trained.
        reported: how many log probs were reported.
        of_ids: in the order of the ids; as far as there are both.
        of_turns: of the sums over whole turns, where it does not matter how many ids a turn is spelled with.
    """

    trained: int
    reported: int
    of_ids: Floats
    of_turns: Floats

    def agrees(self) -> bool:
        """At every trained position."""
        return self.trained == self.reported and bool((self.of_ids <= TOLERANCE).all())


@dataclass(frozen=True)
class Gateway:
    """A running gateway."""

    url: str
    mode: str


@pytest.fixture(scope="module", params=["builtin", "qwen3"])
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    folder = tmp_path_factory.mktemp(f"tiny-{request.param}")
    if request.param == "builtin":
        save_tiny_qwen3(folder, builtin_tokenizer_path(), hidden=64)
    else:
        save_tiny_qwen3(folder, qwen3_tokenizer(), hidden=8)
    return Trainer.of(folder)


@pytest.fixture(scope="module")
def engine(trainer: Trainer) -> Iterator[str]:
    # A tiny model is faster in one thread than in several that wait for each other.
    with command("engine", "--port", "0", "--model", str(trainer.folder), env={"OMP_NUM_THREADS": "1"}) as engine:
        yield engine.url
        assert engine.stop() == 0


@pytest.fixture(scope="module", params=["linear", "tree"])
def gateway(request: pytest.FixtureRequest, trainer: Trainer, engine: str) -> Iterator[Gateway]:
    tokenizer = str(trainer.folder)
    with command("serve", "--port", "0", "--engine", engine, "--tokenizer", tokenizer, "--mode", request.param) as run:
        yield Gateway(run.url, request.param)
        assert run.stop() == 0


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_exported_log_probs_are_the_model_s_and_those_of_text_are_not(
    trainer: Trainer, gateway: Gateway, temperature: float
) -> None:
    agent = Agent(gateway.url, temperature)
    agent.converse()
    messages = agent.messages
    if gateway.mode == "tree":
        agent.branch()
    samples = agent.samples()
    # Five turns, each sampled to its end, three of them calls; the branch shares the first two of them.
    turns = [5, 3] if gateway.mode == "tree" else [5]
    assert [len(sample.metadata["lifecycle"]) for sample in samples] == turns
    print()
    for sample in samples:
        assert sample.status == "completed"
        exact = Trained.of(sample)
        np.testing.assert_array_equal(exact.positions, sample.response_start + np.flatnonzero(sample.loss_mask))
        result = trainer.compare(exact, temperature)
        print(
            f"{result.trained} of {len(sample.tokens)} ids trained, log probs {exact.log_probs.min():.1f} to "
            f"{exact.log_probs.max():.2f}, {agent.retries} retries; largest difference {result.of_ids.max():.2e}"
        )
        assert result.trained > 0
        assert result.agrees()

    sample = samples[0]
    again = Trained.turns_tokenized_again(sample, trainer.tokenizer)
    whole = Trained.conversation_tokenized(sample, trainer.tokenizer, messages)
    for name, control in (("turns tokenized again", again), ("conversation tokenized", whole)):
        wrong = trainer.compare(control, temperature)
        print(
            f"{name}: {wrong.trained} ids instead of {wrong.reported}, {(wrong.of_ids > TOLERANCE).mean():.0%} of "
            f"their log probs are off, and the sums of {(wrong.of_turns > 1e-2).sum()} of {len(wrong.of_turns)} turns"
        )
        assert not wrong.agrees()
        # Not only because there are more or fewer of them: what the text as a whole was sampled with is wrong, too.
        assert (wrong.of_turns > 1e-2).any()
