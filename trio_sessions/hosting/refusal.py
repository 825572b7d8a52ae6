"""What a client reads whose request did not arrive as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from trio_sessions.core import json

__all__ = ["Refusal", "Refuse", "plain_refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply; its body is JSON."""

    status: int
    body: bytes


Refuse: TypeAlias = Callable[[str, int, str], Refusal]
"""Words a refusal, given the decoded path of the request, the status and the text."""


def plain_refusal(path: str, status: int, text: str) -> Refusal:
    """``{"error": text}``, whatever the path."""
    return Refusal(status, json.encode({"error": text}))
