"""Answers of a causal language model that gives logits: free text, or a plan where the request dictates the form.

The log prob of an id is SGLang's, the model's own at the request's temperature: ``log_softmax(logits / temperature)``,
and ``log_softmax(logits)`` at temperature 0. Neither top-p nor the plan of a constrained answer changes it, so that a
trainer finds the same number by feeding the ids to the plain model. (SGLang's own grammars do change it: there it is
the log prob among the ids that the grammar allows.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from trio_sessions.engine.embedded.answer import Goal, answer_plan
from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.plan import Walk
from trio_sessions.engine.embedded.sampler import Generation, Sampling, index_at, nucleus
from trio_sessions.engine.embedded.vocabulary import Vocabulary

__all__ = ["CausalLanguage", "CausalModel", "Feed", "draw"]

Logits: TypeAlias = npt.NDArray[np.floating]
BoolMask: TypeAlias = npt.NDArray[np.bool_]
Feed: TypeAlias = Callable[[Sequence[int]], Logits]
"""Appends ids to one sequence and returns the logits of the id that comes next, shape (size,)."""


class CausalModel(Protocol):
    """A model that continues sequences.

    Attributes:
        size: how many logits it gives; at least the size of the vocabulary.
        stop_ids: ids that end an answer.
    """

    @property
    def size(self) -> int: ...

    @property
    def stop_ids(self) -> Collection[int]: ...

    def begin(self) -> Feed:
        """A new, empty sequence."""
        ...


def draw(logits: Logits, allowed: BoolMask, sampling: Sampling, rng: random.Random) -> tuple[int, float]:
    """One id of those that are allowed, and its log prob among all.

    Args:
        logits: shape (n,).
        allowed: shape (m,), m <= n; at least one is True. Ids from m on are not.
        sampling: temperature and top-p.
        rng: the only source of chance.
    """
    scaled = logits.astype(np.float64) / (sampling.temperature or 1.0)
    ids = np.flatnonzero(allowed)
    among = scaled[ids]
    if sampling.temperature == 0:
        place = int(among.argmax())
    else:
        weights = np.exp(among - among.max())
        weights /= weights.sum()
        if sampling.top_p < 1.0:
            weights = nucleus(weights, sampling.top_p)
        place = index_at(weights, rng.random() * float(weights.sum()))
    index = int(ids[place])
    peak = scaled.max()
    return index, min(0.0, float(scaled[index] - peak - np.log(np.exp(scaled - peak).sum())))


@dataclass(frozen=True, slots=True, eq=False)
class CausalLanguage:
    """Draws from one causal model, an answer at a time.

    A request that demands a tool call or a JSON schema constrains the answer to it; a thought that the prompt opened,
    or that is drawn in place of a call, is free and comes before. Any other answer is free until a stop id.

    Attributes:
        model: gives the logits.
        vocabulary: what its ids spell.
        family: how a turn is spelled.
    """

    # One answer already keeps every core busy.
    threads: ClassVar[int] = 1
    is_toy: ClassVar[bool] = False

    model: CausalModel
    vocabulary: Vocabulary
    family: Family

    def answer(
        self,
        prompt: npt.NDArray[np.int32],
        goal: Goal,
        sampling: Sampling,
        rng: random.Random,
        given_up: Callable[[], bool],
    ) -> Generation:
        """One answer; it ends early where nobody waits any more."""
        course = _Course(self.vocabulary, self.family, self.model.stop_ids, goal)
        feed = self.model.begin()
        token_ids: list[int] = []
        log_probs: list[float] = []
        text = b""
        stops = [(stop, stop.encode()) for stop in sampling.stop if stop]
        new: Sequence[int] = prompt.tolist()
        while not given_up() and (sampling.max_tokens is None or len(token_ids) < sampling.max_tokens):
            token_id, log_prob = draw(feed(new), course.allowed(), sampling, rng)
            new = (token_id,)
            token_ids.append(token_id)
            log_probs.append(log_prob)
            course.advance(token_id)
            if course.done:
                return Generation(token_ids, log_probs, finished=True)
            if stops:
                text += self.vocabulary.text_bytes[token_id]
                matched = next((stop for stop, encoded in stops if encoded in text), None)
                if matched is not None:
                    return Generation(token_ids, log_probs, finished=True, matched=matched)
        return Generation(token_ids, log_probs, finished=False)


class _Course:
    """Which ids may come next in one answer.

    Attributes:
        done: the answer is at its end.
    """

    def __init__(self, vocabulary: Vocabulary, family: Family, stop_ids: Collection[int], goal: Goal) -> None:
        self.done = False
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._walk: Walk | None = None
        self._thinks = False
        self._may_think = False
        if not goal.must_call and goal.response_schema is None:
            return
        self._think_id, self._think_end_id = family.think_ids(vocabulary)
        self._thinks = goal.inside_thinking and self._think_end_id is not None
        self._may_think = goal.may_think and self._think_id is not None
        plan = answer_plan(family, Goal(goal.tools, goal.response_schema, parallel=goal.parallel))
        self._walk = Walk(plan, vocabulary)

    def allowed(self) -> BoolMask:
        """What may come next: shape (size of the vocabulary,)."""
        # Models have logits for ids that no token has.
        known = self._vocabulary.known
        if self._walk is None:
            return known
        if self._thinks:
            mask = known.copy()
            mask[list(self._stop_ids)] = False
            return mask
        allowed = self._walk.allowed()
        if allowed.mask is None:
            mask = np.zeros_like(known)
        else:
            alphabet, position = allowed.mask
            mask = self._vocabulary.masks[alphabet][position].copy()
        mask[allowed.ids] = True
        if self._may_think:
            mask[self._think_id] = True
        return mask

    def advance(self, token_id: int) -> None:
        """Takes an id that was allowed."""
        may_think, self._may_think = self._may_think, False
        if self._walk is None:
            self.done = token_id in self._stop_ids
        elif self._thinks:
            self._thinks = token_id != self._think_end_id
        elif may_think and token_id == self._think_id:
            self._thinks = True
        else:
            self._walk.advance(token_id)
            self.done = self._walk.done
