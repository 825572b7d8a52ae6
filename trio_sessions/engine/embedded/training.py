"""From the corpus to a model for one tokenizer, with text cut up as a sampler would cut it.

A canonical segmentation would teach a model to spell every word in one way, and then an answer that is tokenized again
would come out with the same ids. Real models are not like that. So pieces are split at random while training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from trio_sessions.engine.embedded.corpus import PROSE, AssistantTurn, episodes
from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.model import NGramModel
from trio_sessions.engine.embedded.vocabulary import Vocabulary

__all__ = ["train_model"]

_EPISODES: Final = 700
_PASSES: Final = 6
_SPLIT: Final = 0.1
"""Chance that a piece is split in two; the halves are not split again."""


def train_model(encoder: Any, vocabulary: Vocabulary, family: Family, *, seed: int = 7) -> NGramModel:
    """A model of assistant turns in ``family``'s markup; the same seed gives the same model.

    Args:
        encoder: the ``tokenizers.Tokenizer`` that ``vocabulary`` describes.
        vocabulary: what its ids spell.
        family: the markup to learn.
        seed: for the episodes and for the cuts.
    """
    known = np.asarray([bool(spelling) for spelling in vocabulary.spellings], dtype=np.bool_)
    return NGramModel.train(_sequences(encoder, vocabulary, family, seed), known=known)


def _sequences(encoder: Any, vocabulary: Vocabulary, family: Family, seed: int) -> Iterator[list[int]]:
    rng = random.Random(seed)  # noqa: S311 - cuts of a toy corpus, not a secret
    turns = [turn for episode in episodes(_EPISODES, seed=seed) for turn in episode.turns]
    # Some turns come without their reasoning, so that whether to think is open to chance.
    parts = [_parts(turn, family, thinks=rng.random() >= 0.25) for turn in turns]
    parts += [[paragraph, family.stop] for paragraph in PROSE for _ in range(2)]
    texts = list(dict.fromkeys(part for line in parts for part in line if _is_text(part)))
    encoded = {
        text: encoding.ids
        for text, encoding in zip(texts, encoder.encode_batch(texts, add_special_tokens=False), strict=True)
    }
    splits: dict[int, list[tuple[int, int]]] = {}
    for _ in range(_PASSES):
        for line in parts:
            sequence = list(family.opener_ids)
            for part in line:
                if _is_text(part):
                    sequence.extend(_cut(encoded[part], vocabulary, splits, rng))
                else:
                    sequence.append(vocabulary.ids[part])
            yield sequence


def _is_text(part: str) -> bool:
    return len(part) != 1 or ord(part) < 0x10000


def _parts(turn: AssistantTurn, family: Family, *, thinks: bool) -> list[str]:
    """A turn as pieces of text and spellings of control ids."""
    out: list[str] = []
    if thinks and family.think_open:
        out += [family.think_open[0], "\n" + turn.reasoning + "\n", family.think_close[1], "\n\n"]
    if turn.content:
        out.append(turn.content)
    if turn.call:
        # Without the tool's name: names and string values stand behind the same signs, and a trigram cannot tell them
        # apart.
        out += _markup(family.call_open)
        out += [f'{{"arguments": {json.dumps(turn.call[1], ensure_ascii=False)}}}']
        out += _markup(family.call_close)
    return [*out, family.stop]


def _markup(spelling: str) -> list[str]:
    """A piece of markup as runs of text and single control ids."""
    out: list[str] = []
    for sign in spelling:
        if ord(sign) >= 0x10000 or not out or not _is_text(out[-1]):
            out.append(sign)
        else:
            out[-1] += sign
    return out


def _cut(
    ids: list[int], vocabulary: Vocabulary, splits: dict[int, list[tuple[int, int]]], rng: random.Random
) -> Iterator[int]:
    for token_id in ids:
        if rng.random() < _SPLIT:
            if token_id not in splits:
                splits[token_id] = _halves(vocabulary, token_id)
            if splits[token_id]:
                yield from rng.choice(splits[token_id])
                continue
        yield token_id


def _halves(vocabulary: Vocabulary, token_id: int) -> list[tuple[int, int]]:
    """Every way to spell an id by two others that are whole characters."""
    spelling, ids = vocabulary.spellings[token_id], vocabulary.ids
    return [
        (ids[spelling[:at]], ids[spelling[at:]])
        for at in range(1, len(spelling))
        if spelling[:at] in ids and spelling[at:] in ids and ord(spelling[at]) & 0xC0 != 0x80
    ]
