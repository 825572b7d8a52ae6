"""Matchers that a configuration may name by mistake."""

from __future__ import annotations

from typing import Any


def raising(stored: Any, replayed: Any) -> bool:
    """Quotes the conversation as it fails."""
    raise KeyError(stored["content"])


def answering_text(stored: Any, replayed: Any) -> Any:
    """Answers with no bool."""
    return stored["content"]
