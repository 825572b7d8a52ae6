"""How one model family spells an assistant turn: opener, thinking, tool calls, stop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.engine.embedded.vocabulary import Vocabulary, spelled
from trio_sessions.errors import ConfigurationError

__all__ = ["Family"]

_STOPS: Final = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|user|>")


@dataclass(frozen=True, slots=True)
class Family:
    """The markup of an assistant turn, as spellings (see ``vocabulary``) and ids.

    Attributes:
        stop_id: the id that ends a turn.
        stop: its spelling.
        opener_ids: the last two ids of a prompt with a generation opener: the context a fresh turn starts from.
        think_open, think_close: around the reasoning, separators included; empty for a tokenizer without thinking.
        call_open, call_close: around a tool call's JSON, line breaks included.
    """

    stop_id: int
    stop: str
    opener_ids: tuple[int, int]
    think_open: str
    think_close: str
    call_open: str
    call_close: str

    @classmethod
    def of(cls, tokenizer: Any, vocabulary: Vocabulary, stop_ids: Collection[int] = ()) -> Family:
        """The family of a ``transformers`` fast tokenizer.

        Args:
            tokenizer: the tokenizer.
            vocabulary: what its ids spell.
            stop_ids: ids that end a turn, where the model says so; otherwise a known one is looked for.

        Raises:
            ConfigurationError: no token is known to end a turn.
        """
        names = [*_STOPS, tokenizer.eos_token] if tokenizer.eos_token else list(_STOPS)
        known = [vocabulary.controls[name] for name in names if name in vocabulary.controls]
        if stop_ids:
            said = [vocabulary.spellings[token_id] for token_id in sorted(stop_ids) if token_id < vocabulary.size]
            known = [stop for stop in known if stop in said] or [stop for stop in said if stop]
        stop = known[0] if known else None
        if stop is None:
            raise ConfigurationError("the tokenizer has no end-of-turn token that the embedded engine knows")
        thinks = "<think>" in vocabulary.controls and "</think>" in vocabulary.controls
        line, blank = spelled("\n"), spelled("\n\n")
        return cls(
            stop_id=vocabulary.ids[stop],
            stop=stop,
            opener_ids=_opener(tokenizer, vocabulary.ids[stop]),
            think_open=vocabulary.controls["<think>"] + line if thinks else "",
            think_close=line + vocabulary.controls["</think>"] + blank if thinks else "",
            call_open=vocabulary.control("<tool_call>") + line,
            call_close=line + vocabulary.control("</tool_call>"),
        )

    def think_ids(self, vocabulary: Vocabulary) -> tuple[int | None, int | None]:
        """The ids that open and close a thought, None for a tokenizer that has none."""
        if not self.think_open:
            return None, None
        return vocabulary.ids[vocabulary.controls["<think>"]], vocabulary.ids[vocabulary.controls["</think>"]]


def _opener(tokenizer: Any, stop_id: int) -> tuple[int, int]:
    if not tokenizer.chat_template:
        return (stop_id, stop_id)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return (ids[-2], ids[-1])
