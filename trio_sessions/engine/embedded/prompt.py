"""What an engine reads out of a prompt: whether thinking is open, and how much of it was seen before."""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum, auto
from typing import Final

import numpy as np
import numpy.typing as npt

from trio_sessions.engine.embedded.vocabulary import Vocabulary

__all__ = ["PrefixCache", "Thinking", "last_two", "thinking_of"]

_TAIL: Final = 16

TokenIds = npt.NDArray[np.int32]


class Thinking(Enum):
    """What the end of a prompt says about the reasoning of the answer."""

    OPEN = auto()
    """The prompt ends inside the reasoning."""

    CLOSED = auto()
    """The prompt ends behind a reasoning that is over: the answer must not think."""

    UNSAID = auto()


def thinking_of(prompt: TokenIds, vocabulary: Vocabulary) -> Thinking:
    """How ``prompt``, int32, shape (n,), leaves the reasoning."""
    tail = vocabulary.decode(prompt[-_TAIL:].tolist()).rstrip()
    if tail.endswith("<think>"):
        return Thinking.OPEN
    return Thinking.CLOSED if tail.endswith("</think>") else Thinking.UNSAID


def last_two(prompt: TokenIds, filler: int) -> tuple[int, int]:
    """The model's context at the end of ``prompt``, shape (n,); ``filler`` stands in where n < 2."""
    tail = [filler, filler, *prompt[-2:].tolist()]
    return tail[-2], tail[-1]


class PrefixCache:
    """Remembers the last sequences, to say how many ids of a prompt an engine with a prefix cache would not compute."""

    def __init__(self, sequences: int = 64) -> None:
        self._sequences: deque[TokenIds] = deque(maxlen=sequences)
        self._lock = threading.Lock()

    def cached(self, prompt: TokenIds) -> int:
        """Length of the longest prefix of ``prompt`` that a remembered sequence shares, at most ``len(prompt) - 1``."""
        with self._lock:
            sequences = list(self._sequences)
        longest = 0
        for sequence in reversed(sequences):
            # Only a sequence that agrees at the end of the best so far can do better.
            if len(sequence) <= longest or len(prompt) <= longest or sequence[longest] != prompt[longest]:
                continue
            shared = min(len(sequence), len(prompt))
            differs = sequence[:shared] != prompt[:shared]
            longest = max(longest, int(differs.argmax()) if differs.any() else shared)
        return max(0, min(longest, len(prompt) - 1))

    def remember(self, sequence: TokenIds) -> None:
        """Adds a prompt with its answer; the oldest sequence goes when there are too many."""
        with self._lock:
            self._sequences.append(sequence)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._sequences.clear()
