"""An embedded engine that calls the tools it is told to, so that an agent runs nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trio_sessions.engine.embedded import EmbeddedEngine
from trio_sessions.engine.embedded.answer import Goal
from trio_sessions.engine.embedded.language import LanguageModel
from trio_sessions.engine.embedded.sampler import Generation, Sampling

_MOST_DRAWS = 200


@dataclass(frozen=True)
class Call:
    """A tool call that an answer has to be.

    Attributes:
        tool: name of the tool.
        arguments: its arguments, all of them.
    """

    tool: str
    arguments: Mapping[str, Any]

    def schema(self) -> dict[str, Any]:
        """A JSON schema that only these arguments satisfy."""
        return {
            "type": "object",
            "properties": {name: {"enum": [value]} for name, value in self.arguments.items()},
            "required": list(self.arguments),
        }


@dataclass
class Directed:
    """A language model that, from the first request with tools on, makes the calls that are given, and else says words.

    Ids and log probs are those that the model behind it samples: it is only told what it may say.

    Attributes:
        model: samples.
        calls: one for each answer.
        thinks: whether reasoning comes first.
        text_of: text of ids.
        made: how many of the calls were made.
    """

    model: LanguageModel
    calls: Sequence[Call]
    thinks: bool
    text_of: Callable[[Sequence[int]], str]
    made: int = 0

    @property
    def threads(self) -> int:
        return self.model.threads

    @property
    def is_toy(self) -> bool:
        return self.model.is_toy

    def answer(
        self,
        prompt: npt.NDArray[np.int32],
        goal: Goal,
        sampling: Sampling,
        rng: random.Random,
        given_up: Callable[[], bool],
    ) -> Generation:
        tools: dict[str, Any] = {}
        # Behind a tool's result the embedded engine offers none of the request's tools to its model.
        if self.made < len(self.calls) and (goal.tools or self.made):
            call = self.calls[self.made]
            assert not goal.tools or call.tool in goal.tools, f"{call.tool} is not among {sorted(goal.tools)}"
            tools = {call.tool: call.schema()}
            self.made += 1
        goal = replace(goal, tools=tools, may_think=self.thinks, parallel=False)
        for _ in range(_MOST_DRAWS):
            generation = self.model.answer(prompt, goal, sampling, rng, given_up)
            if self.text_of(generation.token_ids).startswith("<think>") == self.thinks:
                return generation
        raise AssertionError("the model never thinks")


def directed_engine(calls: Sequence[Call], *, thinks: bool) -> tuple[EmbeddedEngine, Directed]:
    """An embedded engine with the built-in tokenizer, and the model that it asks."""
    engine = EmbeddedEngine(seed=7)
    directed = Directed(engine.language, calls, thinks, engine.vocabulary.decode)
    engine.language = directed
    return engine, directed
