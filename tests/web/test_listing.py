"""The list of sessions: its pages, merged or not, and its queries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.support import Serve, Served, error_text, user
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.registry import SessionSummary
from trio_sessions.web.listing import Page, merged_pages, page_of, read_page

NOW = datetime(2026, 1, 2, 3, 4, 5)
IDS = st.sets(st.integers(0, 40).map(lambda number: f"{number:032x}"))


async def test_sessions_are_listed_in_the_order_of_their_ids(served: Served) -> None:
    sessions = sorted([await served.session() for _ in range(5)], key=lambda session: session.id)
    message = await sessions[1].turn(user("a"))
    await sessions[1].turn(user("a"), message, user("b"))
    answer = await served.client.get("/sessions")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    listed = answer.json()
    assert listed["next"] is None
    assert [list(each) for each in listed["sessions"]] == [["session_id", "created", "turns"]] * 5
    assert [(each["session_id"], each["turns"]) for each in listed["sessions"]] == [
        (session.id, 2 if session is sessions[1] else 0) for session in sessions
    ]
    age = datetime.now(UTC) - datetime.fromisoformat(listed["sessions"][0]["created"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)
    await sessions[0].delete()
    rest = (await served.client.get(f"/sessions?after={sessions[2].id}&limit=1")).json()
    assert [each["session_id"] for each in rest["sessions"]] == [sessions[3].id]
    assert rest["next"] == sessions[3].id


async def test_none_is_an_empty_list(served: Served) -> None:
    assert (await served.client.get("/sessions")).text == '{"sessions":[],"next":null}'


@pytest.mark.parametrize(
    ("query", "named"),
    [
        *((f"limit={wrong}", "limit") for wrong in ("0", "1001", "-1", "", "x", "1.0", "1e2", "+1", "%D9%A1", "99999")),
        *((f"after={wrong}", "after") for wrong in ("", "x", "A" * 32, "a" * 31, "a" * 33, "a" * 32 + "%0a")),
        ("limit=1&limit=1", "limit"),
        (f"after={'a' * 32}&after={'a' * 32}", "after"),
    ],
)
async def test_a_wrong_query_is_a_400(served: Served, query: str, named: str) -> None:
    assert named in error_text(await served.client.get(f"/sessions?{query}"), 400)


async def test_most_a_page_has(serve: Serve) -> None:
    served = await serve()
    for _ in range(101):
        await served.gateway.registry.create()
    assert len((await served.client.get("/sessions?x=%FF&y")).json()["sessions"]) == 100
    assert (await served.client.get("/sessions?limit=1000")).json()["next"] is None


@given(query=st.binary(max_size=60))
def test_any_query_is_a_page_or_refused(query: bytes) -> None:
    try:
        page = read_page(query)
    except InvalidRequest:
        return
    assert 1 <= page.limit <= 1000
    assert read_page(page.query.encode()) == page


def walk(parts: list[set[str]], limit: int) -> list[str]:
    """All ids, page by page, as a front asks several workers for them."""
    seen: list[str] = []
    page = Page(None, limit)
    while True:
        answers = []
        for part in parts:
            ids = sorted(id_ for id_ in part if page.after is None or id_ > page.after)[: limit + 1]
            answers.append(page_of([SessionSummary(id_, NOW, 3) for id_ in ids], page))
        merged = merged_pages(answers, page)
        assert len(merged["sessions"]) <= limit
        seen += [each["session_id"] for each in merged["sessions"]]
        if merged["next"] is None:
            return seen
        page = Page(merged["next"], limit)


@given(ids=IDS, workers=st.integers(1, 4), limit=st.integers(1, 9))
def test_pages_have_every_session_once_and_in_order(ids: set[str], workers: int, limit: int) -> None:
    parts = [{id_ for id_ in ids if int(id_, 16) % workers == index} for index in range(workers)]
    assert walk(parts, limit) == sorted(ids)
