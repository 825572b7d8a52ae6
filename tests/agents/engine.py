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
        times: how often it is made in one answer, 1 or 2.
        behind_result: whether it is made behind the result of another, where every answer is words otherwise.
    """

    tool: str
    arguments: Mapping[str, Any]
    times: int = 1
    behind_result: bool = False

    def schema(self) -> dict[str, Any]:
        """A JSON schema that only these arguments satisfy."""
        return {
            "type": "object",
            "properties": {name: {"enum": [value]} for name, value in self.arguments.items()},
            "required": list(self.arguments),
        }


@dataclass
class Directed:
    """A language model that makes the calls that are given as soon as it can, and else says words.

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
        # Calls are made in their order.
        return 1

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
        call = self._next(goal)
        tools = {} if call is None else {call.tool: call.schema()}
        times = 0 if call is None else call.times
        goal = replace(goal, tools=tools, may_think=self.thinks, parallel=times > 1)
        for _ in range(_MOST_DRAWS):
            generation = self.model.answer(prompt, goal, sampling, rng, given_up)
            text = self.text_of(generation.token_ids)
            if text.startswith("<think>") == self.thinks and text.count("<tool_call>") == times:
                return generation
        raise AssertionError(f"it is never said: {call}")

    def _next(self, goal: Goal) -> Call | None:
        # Behind a tool's result the embedded engine offers none of the request's tools to its model.
        call = self.calls[self.made] if self.made < len(self.calls) else None
        if call is None or not (goal.tools or call.behind_result):
            return None
        assert call.behind_result or call.tool in goal.tools, f"{call.tool} is not among {sorted(goal.tools)}"
        self.made += 1
        return call


def directed_engine(calls: Sequence[Call], *, thinks: bool) -> EmbeddedEngine:
    """An embedded engine with the built-in tokenizer that makes these calls."""
    engine = EmbeddedEngine(seed=7)
    engine.language = Directed(engine.language, calls, thinks, engine.vocabulary.decode)
    return engine
