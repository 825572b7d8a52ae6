"""Training of the built-in tokenizer: byte-level BPE in the ChatML family, about 8k entries, lossless."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trio_sessions.engine.embedded.corpus import PROSE, episodes

__all__ = ["TOKENIZER_CONFIG", "VOCABULARY_SIZE", "train_tokenizer"]

VOCABULARY_SIZE: Final = 8192
"""Entries in all, added tokens included."""

_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Added, so that each is one id, but not special: decoders that skip special tokens must keep them.
_MARKUP: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

TOKENIZER_CONFIG: Final[dict[str, Any]] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "extra_special_tokens": ["<|im_start|>"],
    "add_bos_token": False,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 131072,
}

# Words with the space before them, single digits, runs of other signs, line ends, and what is left of white space.
# The alternatives cover every character, so no text is lost.
_WORDS: Final = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_SOURCE_BYTES: Final = 6_000_000


def train_tokenizer() -> Tokenizer:
    """A tokenizer trained on the corpus of this package and the source of the Python that runs it.

    Deterministic for one version of Python; another version gives another vocabulary of the same size.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(_SPECIAL) - len(_MARKUP),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _MARKUP])
    return tokenizer


def _texts() -> Iterator[str]:
    yield from PROSE
    for episode in episodes(3000, seed=1):
        yield episode.user
        yield from episode.observations
        for turn in episode.turns:
            yield turn.reasoning
            yield turn.content
            if turn.call:
                yield f'{{"name": "{turn.call[0]}", "arguments": {turn.call[1]}}}'
    left = _SOURCE_BYTES
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        left -= len(source)
        if left < 0:
            return
        yield from source.splitlines(keepends=True)
