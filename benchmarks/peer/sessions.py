"""What a session of the peer remembers, and how it makes prompts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from transformers import AutoTokenizer

__all__ = ["Refused", "Session", "Templates", "Unusable"]

_COMPARED: Final = ("role", "content", "reasoning_content", "tool_calls")


class Refused(ValueError):
    """A request that does not extend the session's history."""


class Unusable(ValueError):
    """An answer of the engine that cannot be recorded."""


class Templates:
    """Renders and encodes with a tokenizer of transformers.

    Args:
        tokenizer: a folder.
        end: the text with which the chat template ends a turn; the engine's ids end with it too.
    """

    def __init__(self, tokenizer: str, *, end: str = "<|im_end|>") -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer)
        self._end = end

    def prompt(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        """Ids of a whole conversation with the generation opener."""
        return self._encode(self._render(messages, tools, opener=True))

    def suffix(self, last: dict[str, Any], appended: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        """Ids of ``appended``, rendered behind a short conversation that ends with a call like ``last``'s."""
        before: list[dict[str, Any]] = [
            {"role": "system", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": last.get("tool_calls") or []},
        ]
        without = self._render(before, tools, opener=False)
        # What the template writes behind the end of a turn, the engine did not sample.
        cut = without.rindex(self._end) + len(self._end)
        whole = self._render([*before, *appended], tools, opener=True)
        if whole[:cut] != without[:cut]:
            raise Refused("the template rewrites history when these messages are appended")
        return self._encode(whole[cut:])

    def _render(self, messages: list[dict[str, Any]], tools: list[Any] | None, *, opener: bool) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=opener, tokenize=False
        )
        return rendered

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


@dataclass(slots=True)
class Session:
    """One conversation. What changes it is called under its lock.

    Attributes:
        lock: held while a turn is prepared and while it is committed, not while the engine samples.
        messages: the history of the last turn.
        snapshots: all ids after each turn.
        records: request and answer of each turn, decoded.
        closing: whether it was deleted.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    messages: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[list[int]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    closing: bool = False

    def prepare(self, messages: list[dict[str, Any]], tools: list[Any] | None, templates: Templates) -> list[int]:
        """The prompt for ``messages``: the ids that stand and what is appended, or everything on the first turn.

        Raises:
            Refused: they are not the history and something behind it.
        """
        if not self.snapshots:
            return templates.prompt(messages, tools)
        stored = self.messages
        if len(messages) < len(stored) or not all(map(_same, stored, messages)):
            raise Refused("the request does not extend the history")
        return self.snapshots[-1] + templates.suffix(stored[-1], messages[len(stored) :], tools)

    def commit(
        self,
        request: dict[str, Any],
        response: dict[str, Any],
        *,
        completion: list[int],
        message: dict[str, Any],
        arrived: float,
    ) -> None:
        """Take a turn in.

        Raises:
            Refused: the stored ids are not the front of the prompt that was sent.
        """
        ids = request["input_ids"] + completion
        stored = self.snapshots[-1] if self.snapshots else []
        if ids[: len(stored)] != stored:
            raise Refused("the stored ids are not a prefix of prompt and completion")
        self.messages = [*request["messages"], message]
        self.snapshots.append(ids)
        self.records.append(
            {
                "timestamp": time.time(),
                "request_timestamp": arrived,
                "method": "POST",
                "path": "/v1/chat/completions",
                "request": request,
                "response": response,
                "status_code": 200,
            }
        )


def _same(stored: dict[str, Any], replayed: dict[str, Any]) -> bool:
    for key in _COMPARED:
        left, right = stored.get(key) or None, replayed.get(key) or None
        if key == "tool_calls" and left and right:
            left, right = [_without_index(call) for call in left], [_without_index(call) for call in right]
        if left != right:
            return False
    return True


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}
