"""Drawing ids of the n-gram model: its distribution, masked by the plan, renormalised and tempered.

The log prob of an id is the natural logarithm of the probability with which it was drawn, that is after the mask, the
temperature and top-p; at temperature 0 it is that of the masked distribution at temperature 1.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trio_sessions.engine.embedded.model import Context, NGramModel
from trio_sessions.engine.embedded.plan import Allowed, Plan, Walk
from trio_sessions.engine.embedded.vocabulary import Alphabet, Vocabulary

__all__ = ["Generation", "Sampler", "Sampling", "index_at", "nucleus"]

_MOST_CACHED: Final = 18
_TRIES: Final = 32

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw.

    Attributes:
        temperature: 0 takes the most probable id.
        top_p: the smallest set of ids with at least this much of the probability; 1 for all.
        max_tokens: most ids, the stop token included; None for as many as the answer takes.
        stop: texts that end the answer once they occur in it; their ids stay.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """What was drawn.

    Attributes:
        token_ids: ids in order, the stop token last if the answer came to its end.
        log_probs: natural logarithms, one per id.
        finished: the answer came to its end or a stop text was met; False when ``max_tokens`` cut the answer off.
        matched: the stop text that was met.
    """

    token_ids: list[int]
    log_probs: list[float]
    finished: bool
    matched: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """The base distribution under one mask and one temperature T, relative to its largest value ``peak``.

    Attributes:
        mask: bool, shape (size,).
        peak: largest base probability under the mask.
        powers: (base / peak) ** (1 / T) under the mask, else 0; shape (size,).
        cumulative: running sum of ``powers``.
        best: ids by falling base probability, for as many as are ever looked at.
    """

    mask: npt.NDArray[np.bool_]
    peak: float
    powers: Floats
    cumulative: Floats
    best: Ints


class Sampler:
    """Draws answers from one model; safe to use from several threads.

    Attributes:
        model: draws are from its distributions.
    """

    def __init__(self, model: NGramModel, vocabulary: Vocabulary) -> None:
        self.model = model
        self._vocabulary = vocabulary
        self._bases: dict[tuple[Alphabet, int, float], _Base] = {}

    def generate(self, plan: Plan, context: tuple[int, int], sampling: Sampling, rng: random.Random) -> Generation:
        """An answer that follows ``plan``.

        Args:
            plan: what the answer is made of.
            context: the last two ids of the prompt.
            sampling: how to draw.
            rng: the only source of chance.
        """
        walk = Walk(plan, self._vocabulary)
        token_ids: list[int] = []
        log_probs: list[float] = []
        text = b""
        stops = [(stop, stop.encode()) for stop in sampling.stop if stop]
        u, v = context
        while not walk.done:
            if sampling.max_tokens is not None and len(token_ids) >= sampling.max_tokens:
                return Generation(token_ids, log_probs, finished=False)
            token_id, log_prob = self.draw((u, v), walk.allowed(), sampling, rng)
            walk.advance(token_id)
            token_ids.append(token_id)
            log_probs.append(log_prob)
            u, v = v, token_id
            if stops:
                text += self._vocabulary.text_bytes[token_id]
                matched = next((stop for stop, encoded in stops if encoded in text), None)
                if matched is not None:
                    return Generation(token_ids, log_probs, finished=True, matched=matched)
        return Generation(token_ids, log_probs, finished=True)

    def draw(
        self, context: tuple[int, int], allowed: Allowed, sampling: Sampling, rng: random.Random
    ) -> tuple[int, float]:
        """One id and its log prob."""
        if sampling.top_p < 1.0:
            return _pick(self.probabilities(context, allowed, sampling), sampling, rng)
        distribution = self.model.context(*context)
        if allowed.mask is None:
            return self._draw_listed(distribution, allowed, sampling, rng)
        return self._draw_masked(distribution, allowed, sampling, rng)

    def probabilities(self, context: tuple[int, int], allowed: Allowed, sampling: Sampling) -> Floats:
        """With which probability each id would be drawn: shape (size,), sums to 1.

        This spells out what ``draw`` does without touching the whole vocabulary. At temperature 0 it is the
        distribution that log probs are taken from.
        """
        mask = np.zeros(self.model.size, dtype=np.bool_)
        if allowed.mask is not None:
            alphabet, position = allowed.mask
            mask |= self._vocabulary.masks[alphabet][position]
        mask[allowed.ids] = True
        weights: Floats = np.where(mask, self.model.distribution(*context), 0.0)
        if allowed.options:
            weights = _even(weights, allowed.options)
        weights = (weights / weights.max()) ** _exponent(sampling.temperature)
        weights /= weights.sum()
        if sampling.top_p < 1.0:
            weights = nucleus(weights, sampling.top_p)
        return weights

    def _draw_listed(
        self, distribution: Context, allowed: Allowed, sampling: Sampling, rng: random.Random
    ) -> tuple[int, float]:
        ids = allowed.ids
        if len(ids) == 1:
            return ids[0], 0.0
        probabilities = self._of_listed(distribution, np.asarray(ids))
        if allowed.options:
            places = {token_id: place for place, token_id in enumerate(ids)}
            options = tuple(tuple(places[token_id] for token_id in option) for option in allowed.options)
            probabilities = _even(probabilities, options)
        weights = (probabilities / probabilities.max()) ** _exponent(sampling.temperature)
        total = float(weights.sum())
        index = int(weights.argmax()) if sampling.temperature == 0 else index_at(weights, rng.random() * total)
        return ids[index], math.log(float(weights[index]) / total)

    def _draw_masked(
        self, distribution: Context, allowed: Allowed, sampling: Sampling, rng: random.Random
    ) -> tuple[int, float]:
        assert allowed.mask is not None
        exponent = _exponent(sampling.temperature)
        base = self._base(*allowed.mask, exponent)
        # Three kinds of ids: seen after this context; single ids beside the mask; the rest of the mask.
        seen = base.mask[distribution.ids]
        seen_ids = distribution.ids[seen]
        ids = seen_ids
        probabilities = distribution.scale * self.model.base[seen_ids] + distribution.extra[seen]
        if allowed.ids:
            listed = np.asarray(allowed.ids)
            ids = np.concatenate((ids, listed))
            probabilities = np.concatenate((probabilities, self._of_listed(distribution, listed)))
        rest_peak = distribution.scale * base.peak
        peak = max(rest_peak, float(probabilities.max())) if len(ids) else rest_peak
        weights = (probabilities / peak) ** exponent
        some = float(weights.sum())
        factor = (rest_peak / peak) ** exponent
        rest = factor * max(0.0, float(base.cumulative[-1] - base.powers[seen_ids].sum()))
        total = some + rest
        if sampling.temperature == 0:
            taken = set(seen_ids.tolist())
            other = next((int(best) for best in base.best if int(best) not in taken), -1)
            index = int(weights.argmax()) if len(ids) else -1
            if other >= 0 and (index < 0 or factor * base.powers[other] > weights[index]):
                return other, math.log(factor * float(base.powers[other]) / total)
            return int(ids[index]), math.log(float(weights[index]) / total)
        point = rng.random() * total
        if point < some:
            index = index_at(weights, point)
            return int(ids[index]), math.log(float(weights[index]) / total)
        other = _from_rest(base, seen_ids, rng)
        return other, math.log(factor * float(base.powers[other]) / total)

    def _of_listed(self, distribution: Context, ids: Ints) -> Floats:
        probabilities = distribution.scale * self.model.base[ids]
        if len(distribution.ids):
            places = distribution.ids.searchsorted(ids)
            places[places == len(distribution.ids)] = 0
            found = distribution.ids[places] == ids
            probabilities[found] += distribution.extra[places[found]]
        return probabilities

    def _base(self, alphabet: Alphabet, position: int, exponent: float) -> _Base:
        key = (alphabet, position, exponent)
        base = self._bases.get(key)
        if base is None:
            mask = self._vocabulary.masks[alphabet][position]
            masked = np.where(mask, self.model.base, 0.0)
            peak = float(masked.max())
            powers = (masked / peak) ** exponent
            base = _Base(mask, peak, powers, np.cumsum(powers), np.argsort(-masked, kind="stable")[:4096])
            if len(self._bases) >= _MOST_CACHED:
                self._bases.clear()
            self._bases[key] = base
        return base


def _exponent(temperature: float) -> float:
    return 1.0 / temperature if temperature > 0 else 1.0


def _even(weights: Floats, options: tuple[tuple[int, ...], ...]) -> Floats:
    """``weights`` shared out so that each option, named by the indices that begin it, is equally probable."""
    shares = np.zeros_like(weights)
    for option in options:
        places = list(option)
        chosen = weights[places]
        shares[places] += chosen / chosen.sum()
    return shares


def nucleus(weights: Floats, top_p: float) -> Floats:
    """The largest of ``weights``, which sum to 1, until they have at least ``top_p`` together; renormalised."""
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = weights.copy()
    kept[order[before >= top_p]] = 0.0
    kept /= kept.sum()
    return kept


def index_at(weights: Floats, point: float) -> int:
    """The index of the weight that ``point``, in [0, sum), falls on."""
    cumulative = np.cumsum(weights)
    index = int(cumulative.searchsorted(point, side="right"))
    if index < len(weights):
        return index
    return int(np.flatnonzero(weights)[-1])  # the sum was rounded down


def _from_rest(base: _Base, seen_ids: Ints, rng: random.Random) -> int:
    """An id of the mask that is not in ``seen_ids``, by base probability."""
    seen = set(seen_ids.tolist())
    for _ in range(_TRIES):
        index = int(base.cumulative.searchsorted(rng.random() * base.cumulative[-1], side="right"))
        if index < len(base.powers) and index not in seen:
            return index
    powers = base.powers.copy()
    powers[seen_ids] = 0.0
    return index_at(powers, rng.random() * float(powers.sum()))


def _pick(weights: Floats, sampling: Sampling, rng: random.Random) -> tuple[int, float]:
    index = (
        int(weights.argmax()) if sampling.temperature == 0 else index_at(weights, rng.random() * float(weights.sum()))
    )
    return index, math.log(float(weights[index]))
