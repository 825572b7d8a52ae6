"""What a dialect may use to read a request of a session where nothing was answered."""

from __future__ import annotations

from trio_sessions.service.dialect import Reading


def unanswered(roles: frozenset[str] = frozenset(), *, digits: str = "0" * 32) -> Reading:
    """Where ``roles`` may be appended, and ids have these digits."""
    return Reading(
        sent=None,
        roles=lambda: roles,
        answered=lambda _: None,
        answers_at=lambda _: (),
        new_id=lambda: digits,
        now=lambda: 1_700_000_000.0,
    )
