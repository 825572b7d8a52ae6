"""Groups of writes are the same as one after the other, and all of a group or nothing is written."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.store.sqlite.database import Append, Database, Forget, Write
from trio_sessions.store.sqlite.files import create_empty

SESSIONS = ["a" * 32, "b" * 32, "c" * 32]
appends = st.builds(
    Append,
    session_id=st.sampled_from(SESSIONS),
    # Some rows are few in a statement because they are long, most because a statement has only so many.
    payload=st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from([0, 9, 150_000])),
    begins=st.booleans(),
)
groups = st.lists(st.lists(appends | appends | st.builds(Forget, st.sampled_from(SESSIONS)), max_size=40), max_size=4)


def one_by_one(written: dict[str, list[bytes]], write: Write) -> None:
    """What a write does to the events of sessions."""
    match write:
        case Forget(session_id):
            written.pop(session_id, None)
        case Append(session_id, payload, begins):
            if begins or session_id in written:
                written.setdefault(session_id, []).append(payload)


def content(database: Database) -> dict[str, list[bytes]]:
    return {name: [row.payload for row in database.read(name)] for name in database.sessions()}


@PATIENT
@given(groups)
def test_a_group_is_what_its_writes_are_one_after_the_other(groups: list[list[Write]]) -> None:
    expected: dict[str, list[bytes]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        create_empty(path)
        with closing(Database(path, synced=False)) as database:
            for group in groups:
                database.write(group)
                for write in group:
                    one_by_one(expected, write)
                assert content(database) == expected


@pytest.mark.parametrize("more", [[], [Append("b" * 32, b"b" * 90_000)] * 40], ids=["one statement", "several"])
def test_a_group_that_fails_leaves_nothing_and_what_follows_is_numbered_as_before(
    tmp_path: Path, more: list[Write]
) -> None:
    path = tmp_path / "journal"
    create_empty(path)
    with closing(Database(path, synced=False)) as database:
        database.write([Append("a" * 32, b"first", begins=True), Append("b" * 32, b"first", begins=True)])
        database._execute("PRAGMA max_page_count = 30")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            database.write([*more, Append("a" * 32, b"a" * 900_000)])
        assert content(database) == {"a" * 32: [b"first"], "b" * 32: [b"first"]}
        database.write([Append("a" * 32, b"second")])
        assert content(database) == {"a" * 32: [b"first", b"second"], "b" * 32: [b"first"]}
