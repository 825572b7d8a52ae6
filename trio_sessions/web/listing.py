"""A list of sessions, page by page: its query, and its spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final
from urllib.parse import parse_qsl

from trio_sessions.errors import InvalidRequest
from trio_sessions.service.registry import SessionSummary

__all__ = ["Page", "merged_pages", "page_of", "read_page"]

_DEFAULT: Final = 100
_MOST: Final = 1000
_LIMIT: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for.

    Attributes:
        after: the id behind which it begins; None for its beginning.
        limit: how many sessions at most.
    """

    after: str | None = None
    limit: int = _DEFAULT

    @property
    def query(self) -> str:
        """The query that asks for it."""
        return f"limit={self.limit}" + ("" if self.after is None else f"&after={self.after}")


def read_page(query: bytes) -> Page:
    """The page that a query asks for; what else is in it is ignored.

    Raises:
        InvalidRequest: ``limit`` or ``after`` is wrong, or given twice.
    """
    fields: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in fields and name in ("limit", "after"):
            raise InvalidRequest(f"{name} is given twice")
        fields[name] = value
    limit, after = fields.get("limit", str(_DEFAULT)), fields.get("after")
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= _MOST:
        raise InvalidRequest(f"limit must be a whole number from 1 to {_MOST}")
    if after is not None and not _ID.fullmatch(after):
        raise InvalidRequest("after must be the id of a session, 32 lowercase hex digits: the last page's 'next'")
    return Page(after, int(limit))


def page_of(sessions: Sequence[SessionSummary], page: Page) -> dict[str, Any]:
    """The answer.

    Args:
        sessions: those of the page and, if there is one, the next.
        page: what was asked for.
    """
    spelled = [
        {
            "session_id": session.id,
            "created": session.created.astimezone(UTC).isoformat(timespec="milliseconds"),
            "turns": session.turns,
        }
        for session in sessions
    ]
    return _cut(spelled, page, more=False)


def merged_pages(pages: Sequence[Mapping[str, Any]], page: Page) -> dict[str, Any]:
    """One answer out of several to the same question, each about sessions of its own."""
    sessions = sorted((session for each in pages for session in each["sessions"]), key=lambda each: each["session_id"])
    return _cut(sessions, page, more=any(each["next"] is not None for each in pages))


def _cut(sessions: list[dict[str, Any]], page: Page, *, more: bool) -> dict[str, Any]:
    shown = sessions[: page.limit]
    more = more or len(sessions) > page.limit
    return {"sessions": shown, "next": shown[-1]["session_id"] if more else None}
