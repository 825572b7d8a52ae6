"""Headers of replies that are ours."""

from __future__ import annotations

from typing import Final

from trio_sessions.engine.base import Headers

__all__ = ["REMAINING_HEADER", "budget_header"]

REMAINING_HEADER: Final = "x-trio-sessions-remaining-tokens"
"""How many ids the conversation may still grow by, where there is a limit."""


def budget_header(remaining_tokens: int | None) -> Headers:
    """The header, where there is something to say."""
    return () if remaining_tokens is None else ((REMAINING_HEADER, str(remaining_tokens)),)
