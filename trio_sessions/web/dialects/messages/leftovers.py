"""What of a request cannot be honoured, for the log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

__all__ = ["Leftovers", "label"]

_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST: Final = 32


class Leftovers:
    """Collects what was left out of one request. Texts are names of fields and kinds, never what a message says."""

    def __init__(self) -> None:
        self._fields: list[str] = []
        self._blocks: Counter[str] = Counter()

    def field(self, name: str) -> None:
        """A field, or a part of one."""
        self._fields.append(name)

    def block(self, kind: str) -> None:
        """A content block of this type."""
        self._blocks[label(kind)] += 1

    def texts(self) -> Sequence[str]:
        """A short text each."""
        return [*self._fields[:_MOST], *(f"{kind} blocks ({number})" for kind, number in self._blocks.items())][:_MOST]


def label(name: str) -> str:
    """A name that a client chose, if it is one that can be shown."""
    return name if _LABEL.fullmatch(name) else "unknown"
