"""What of a request cannot be honoured, for the log, and what stands for it in a message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

__all__ = ["Dropped", "placeholder"]

# Of fields and types in every API, and of little else that a client might put there.
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")
_UNKNOWN: Final = "unknown"
_MOST: Final = 32


class Dropped:
    """Collects what was left out of one request, so much of it that a log line can show it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._others = 0

    def add(self, name: str, what: str = "") -> None:
        """Note a field, or something of a type.

        Args:
            name: of the field or of the type, as the client has it.
            what: what is of that type; empty for a field.
        """
        text = f"{_label(name)} {what}".rstrip()
        if text in self._counts or len(self._counts) < _MOST:
            self._counts[text] += 1
        else:
            self._others += 1

    def texts(self) -> Sequence[str]:
        """A short text each, in the order in which they were found; never what a message says."""
        texts = [text if number == 1 else f"{text} ({number})" for text, number in self._counts.items()]
        return [*texts, f"others ({self._others})"] if self._others else texts


def placeholder(kind: str) -> str:
    """What the model reads in place of what no template can render."""
    return f"[{_label(kind)} omitted]"


def _label(name: str) -> str:
    """A name that a client chose, if it is one that can be shown."""
    return name if _LABEL.fullmatch(name) else _UNKNOWN
