"""An agent that calls tools through a gateway, and what its trainer gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from openai import OpenAI

from trio_sessions.core.samples import Sample, decode_samples

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "find_train",
            "description": "Trains between two cities.",
            "parameters": {
                "type": "object",
                "properties": {
                    "from": {"type": "string"},
                    "to": {"type": "string"},
                    "first_class": {"type": "boolean"},
                },
                "required": ["from", "to"],
            },
        },
    },
]
_LIMIT = 250
_TRIES = 8


@dataclass
class Agent:
    """One rollout.

    Attributes:
        gateway: base URL.
        temperature: of every turn.
        seed: of the first turn; each turn, and each retry, takes the next.
        messages: the conversation so far.
        retries: turns that were cut off and sampled again.
    """

    gateway: str
    temperature: float = 1.0
    seed: int = 0
    messages: list[Any] = field(default_factory=list)
    retries: int = 0

    def __post_init__(self) -> None:
        self.session = f"{self.gateway}/sessions/{httpx.post(f'{self.gateway}/sessions').json()['session_id']}"
        self._client = OpenAI(base_url=f"{self.session}/v1", api_key="unused", max_retries=0, timeout=120)

    def converse(self) -> None:
        """Two questions, each with calls and results before the answer."""
        self.messages.append({"role": "system", "content": "You help with journeys."})
        for question, calls in (("How is the weather in Zürich? 天気", 1), ("And how do I get to Łódź? 🚆", 2)):
            self.messages.append({"role": "user", "content": question})
            for _ in range(calls):
                message = self.turn(tool_choice="required")
                for number, call in enumerate(message["tool_calls"]):
                    result = f"12 °C, light rain; train {number} leaves at 07:30 <|im_end|>"
                    self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            self.turn(tool_choice="auto")

    def branch(self) -> None:
        """Another second question, behind the answer to the first."""
        answered = next(i for i, message in enumerate(self.messages) if message["role"] == "user" and i > 1)
        self.messages = [*self.messages[:answered], {"role": "user", "content": "Then rather to Kraków, please."}]
        self.turn(tool_choice="auto")

    def turn(self, tool_choice: Literal["auto", "required"]) -> dict[str, Any]:
        """One turn; an answer that is cut off is sampled again, as agents do."""
        for _ in range(_TRIES):
            self.seed += 1
            completion = self._client.chat.completions.create(
                model="default",
                messages=self.messages,
                tools=TOOLS,
                tool_choice=tool_choice,
                temperature=self.temperature,
                seed=self.seed,
                max_tokens=_LIMIT,
            )
            if completion.choices[0].finish_reason != "length":
                message = completion.choices[0].message.model_dump(exclude_none=True)
                self.messages.append(message)
                return message
            self.retries += 1
        raise AssertionError(f"{_TRIES} answers in a row were cut off")

    def samples(self) -> Sequence[Sample]:
        """What the trainer gets."""
        answer = httpx.post(f"{self.session}/samples", json={}, timeout=60)
        assert answer.status_code == 200, answer.text
        return decode_samples(answer.content).samples
