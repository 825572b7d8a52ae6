"""What an engine draws its answers from, and the n-gram model as one of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from trio_sessions.engine.embedded.answer import Goal, answer_plan
from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.prompt import last_two
from trio_sessions.engine.embedded.sampler import Generation, Sampler, Sampling

__all__ = ["LanguageModel", "NGramLanguage", "never"]

TokenIds = npt.NDArray[np.int32]


def never() -> bool:
    """Nobody gives an answer up."""
    return False


class LanguageModel(Protocol):
    """Draws answers.

    Attributes:
        threads: how many answers may be drawn at the same time, each in a thread of its own.
        is_toy: whether the engine makes up what this model does not have: cache counters and replay payloads.
    """

    @property
    def threads(self) -> int: ...

    @property
    def is_toy(self) -> bool: ...

    def answer(
        self, prompt: TokenIds, goal: Goal, sampling: Sampling, rng: random.Random, given_up: Callable[[], bool]
    ) -> Generation:
        """One answer.

        Args:
            prompt: int32, shape (n,); not empty.
            goal: what the answer has to be.
            sampling: how to draw.
            rng: the only source of chance.
            given_up: whether nobody waits any more; what is returned then is thrown away.
        """
        ...


@dataclass(frozen=True, slots=True)
class NGramLanguage:
    """The toy model: every answer follows a plan, so that it makes some sense and comes to an end.

    Attributes:
        sampler: draws.
        family: how a turn is spelled.
    """

    # The work holds the interpreter's lock: more threads than this only take turns.
    threads: ClassVar[int] = 2
    is_toy: ClassVar[bool] = True

    sampler: Sampler
    family: Family

    def answer(
        self, prompt: TokenIds, goal: Goal, sampling: Sampling, rng: random.Random, given_up: Callable[[], bool]
    ) -> Generation:
        """One answer; it takes milliseconds, so it is finished even if nobody waits."""
        return self.sampler.generate(
            answer_plan(self.family, goal), last_two(prompt, self.family.stop_id), sampling, rng
        )
