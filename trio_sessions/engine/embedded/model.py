"""An interpolated trigram model over token ids: small, honest, and quick to train for any tokenizer.

    p(w | u v) = (c(u v w) + m(u v) p(w | v)) / (c(u v) + m(u v)),   m(h) = ``_BACKOFF`` * (different ids seen after h)

and likewise for p(w | v) over the unigram p(w), which is mixed with a small uniform mass over every id that has a
token. So each such id has p > 0 in every context and the probabilities of a context sum to 1.

A context's distribution is kept in two parts, ``scale * base`` over the whole vocabulary and a few sparse additions:
a sampler never has to touch the whole vocabulary, be it 8k or 150k ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trio_sessions.errors import ConfigurationError

__all__ = ["Context", "NGramModel"]

_BACKOFF: Final = 0.25
_UNIFORM: Final = 0.002

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The distribution after one context: ``scale * base[w]``, plus ``extra[i]`` for ``w == ids[i]``.

    Attributes:
        scale: weight of the base distribution, in (0, 1].
        ids: int64, shape (n,), ascending; ids seen after this context.
        extra: float64, shape (n,); what each of them has on top of the base.
    """

    scale: float
    ids: Ints
    extra: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Counts of one order: for each context the ids seen after it.

    Attributes:
        contexts: int64, shape (c,), ascending; a bigram context is an id, a trigram context ``u * size + v``.
        starts: int64, shape (c + 1,); context i owns ``ids[starts[i]:starts[i + 1]]``.
        ids: int64, shape (n,); ascending within a context.
        counts: float64, shape (n,).
        totals: float64, shape (c,); sum of ``counts`` per context.
    """

    contexts: Ints
    starts: Ints
    ids: Ints
    counts: Floats
    totals: Floats

    @classmethod
    def of(cls, contexts: Ints, ids: Ints, counts: Floats) -> _Counts:
        """From one row per different (context, id), sorted by context, then id."""
        unique, starts = np.unique(contexts, return_index=True)
        totals = np.add.reduceat(counts, starts) if len(starts) else np.zeros(0)
        return cls(unique, np.append(starts, len(ids)), ids, counts, totals)

    def find(self, context: int) -> int:
        """Index of ``context``, -1 for one that was never seen."""
        index = int(self.contexts.searchsorted(context))
        return index if index < len(self.contexts) and self.contexts[index] == context else -1


@dataclass(frozen=True, slots=True, eq=False)
class NGramModel:
    """A trained model.

    Attributes:
        size: number of ids in the vocabulary.
        base: float64, shape (size,); the distribution without any context, sums to 1.
    """

    size: int
    base: Floats
    _bigrams: _Counts
    _trigrams: _Counts

    @classmethod
    def train(cls, sequences: Iterable[Iterable[int]], *, known: npt.NDArray[np.bool_]) -> NGramModel:
        """A model of ``sequences``, each a list of ids whose first two are context only.

        Args:
            sequences: lists of ids.
            known: shape (size,); True for ids that have a token.
        """
        u, v, w = _windows(sequences)
        size = len(known)
        keys, counts = np.unique((u * size + v) * size + w, return_counts=True)
        return cls._build(known, keys, counts)

    @classmethod
    def load(cls, path: Path, *, known: npt.NDArray[np.bool_]) -> NGramModel:
        """A model that ``save`` wrote.

        Raises:
            ConfigurationError: it was trained for a vocabulary of another size.
        """
        with np.load(path) as stored:
            if int(stored["size"]) != len(known):
                raise ConfigurationError(
                    f"{path} was trained for {int(stored['size'])} ids, the tokenizer has {len(known)}"
                )
            size = len(known)
            u, v, w = (stored[name].astype(np.int64) for name in ("u", "v", "w"))
            # The first column is stored as differences, which compress well.
            return cls._build(known, (np.cumsum(u) * size + v) * size + w, stored["counts"])

    def save(self, path: Path) -> None:
        """Writes the counts to ``path`` (``.npz``); vocabularies of more than 65,536 ids are not supported."""
        if self.size > 1 << 16:
            raise ValueError(f"models are stored for small vocabularies only, not for {self.size} ids")
        trigrams = self._trigrams
        contexts = np.repeat(trigrams.contexts, np.diff(trigrams.starts))
        np.savez_compressed(
            path,
            size=np.int64(self.size),
            u=np.diff(contexts // self.size, prepend=0).astype(np.uint16),
            v=(contexts % self.size).astype(np.uint16),
            w=trigrams.ids.astype(np.uint16),
            counts=trigrams.counts.astype(np.uint16),
        )

    @classmethod
    def _build(cls, known: npt.NDArray[np.bool_], keys: Ints, counts: Ints) -> NGramModel:
        size = len(known)
        weights: Floats = np.minimum(counts, 0xFFFF).astype(np.float64)
        ids = keys % size
        trigrams = _Counts.of(keys // size, ids, weights)
        pairs, inverse = np.unique(keys % (size * size), return_inverse=True)
        pair_counts = np.bincount(inverse, weights=weights).astype(np.float64)
        bigrams = _Counts.of(pairs // size, pairs % size, pair_counts)
        unigrams = np.bincount(ids, weights=weights, minlength=size)
        base = (1.0 - _UNIFORM) * unigrams / unigrams.sum() + _UNIFORM * known / known.sum()
        return cls(size, base / base.sum(), bigrams, trigrams)

    def context(self, u: int, v: int) -> Context:
        """The distribution of the id after ``u``, ``v``."""
        scale = 1.0
        ids, extra = _NO_IDS, _NO_EXTRA
        bigrams, trigrams = self._bigrams, self._trigrams
        index = bigrams.find(v)
        if index >= 0:
            rows = slice(bigrams.starts[index], bigrams.starts[index + 1])
            missing = _BACKOFF * (rows.stop - rows.start)
            total = bigrams.totals[index] + missing
            ids, extra, scale = bigrams.ids[rows], bigrams.counts[rows] / total, float(missing / total)
        index = trigrams.find(u * self.size + v)
        if index >= 0:
            rows = slice(trigrams.starts[index], trigrams.starts[index + 1])
            missing = _BACKOFF * (rows.stop - rows.start)
            total = trigrams.totals[index] + missing
            share = float(missing / total)
            # Ids seen after (u, v) were all seen after v, so they are among ``ids``.
            extra = extra * share
            extra[ids.searchsorted(trigrams.ids[rows])] += trigrams.counts[rows] / total
            scale *= share
        return Context(scale, ids, extra)

    def distribution(self, u: int, v: int) -> Floats:
        """The probability of every id after ``u``, ``v``: shape (size,), sums to 1."""
        context = self.context(u, v)
        dense = context.scale * self.base
        dense[context.ids] += context.extra
        return dense


_NO_IDS: Final[Ints] = np.zeros(0, dtype=np.int64)
_NO_EXTRA: Final[Floats] = np.zeros(0)


def _windows(sequences: Iterable[Iterable[int]]) -> tuple[Ints, Ints, Ints]:
    """Every three ids in a row that lie within one sequence, as three columns."""
    flat: list[int] = []
    inside: list[bool] = []
    for sequence in sequences:
        before = len(flat)
        flat.extend(sequence)
        inside.extend([False, False])
        inside.extend([True] * (len(flat) - before - 2))
    ids = np.asarray(flat, dtype=np.int64)
    third = np.asarray(inside, dtype=np.bool_)
    index = np.flatnonzero(third)
    return ids[index - 2], ids[index - 1], ids[index]
