"""The journal in a file: what was said to be written is there, whatever becomes of process, file and disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.growing import Grown, with_sampled
from trio_sessions.errors import ConfigurationError, SessionUnreadable, StoreUnavailable
from trio_sessions.observe import Metrics
from trio_sessions.store import AnswerNoted, JournalIdentity, SessionCreated
from trio_sessions.store.sqlite import SqliteStore
from trio_sessions.store.sqlite.files import SCHEMA_VERSION, beside
from trio_sessions.store.sqlite.recovery import OpenedJournal, open_journal

IDENTITY = JournalIdentity(mode="linear", rendering="r")
A, B, C = ("a" * 32, "b" * 32, "c" * 32)


@asynccontextmanager
async def opened(
    path: Path, *, identity: JournalIdentity = IDENTITY, durability: Any = "full", metrics: Metrics | None = None
) -> AsyncIterator[SqliteStore]:
    """A store that is closed in good order."""
    async with SqliteStore.open(path, identity, durability=durability, metrics=metrics or Metrics()) as store:
        yield store


async def write(store: SqliteStore, session_id: str, session: Grown) -> None:
    for event in session.events:
        await store.append(session_id, lambda event=event: event)


def copied(path: Path, to: Path) -> Path:
    """The files as they are now, as after a crash of the machine."""
    to.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, to / file.name)
    return to / path.name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "journal"


async def test_what_was_appended_is_there_after_a_crash_and_after_a_stop(path: Path, tmp_path: Path) -> None:
    session = with_sampled(3)
    async with opened(path) as store:
        await write(store, A, session)
        async with opened(copied(path, tmp_path / "crashed")) as found:
            assert [(one.id, one.turns, one.events) for one in found.found] == [(A, 3, 4)]
            assert await found.load(A) == session.events
    async with opened(path) as again:
        assert await again.load(A) == session.events
        await again.append(A, lambda: AnswerNoted(turn=1, received=False))
        assert await again.load(A) == [*session.events, AnswerNoted(turn=1, received=False)]
        assert await again.load(B) == []
    assert not beside(path, "-wal").exists()


async def test_only_its_owner_may_read_it(path: Path) -> None:
    async with opened(path) as store:
        await store.append(A, lambda: SessionCreated("2026-01-01T00:00:00"))
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"journal": 0o600, "journal-wal": 0o600}


async def test_a_session_that_was_deleted_is_gone_and_stays_so(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(2))
        await write(store, B, with_sampled(1))
        await store.delete(A)
        # What comes late for it begins no session anew.
        await store.append(A, lambda: AnswerNoted(turn=0, received=True))
        assert await store.load(A) == []
    async with opened(path) as again:
        assert [one.id for one in again.found] == [B]
        assert await again.load(A) == []


async def test_what_comes_at_once_is_written_in_few_transactions(path: Path) -> None:
    metrics = Metrics()
    async with opened(path, metrics=metrics) as store:
        names = [f"{number:032x}" for number in range(200)]
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(store.append, name, lambda: SessionCreated("2026-01-01T00:00:00"))
        frames = beside(path, "-wal").stat().st_size // 8192
        assert frames < 40
        for name in names:
            assert await store.load(name) == [SessionCreated("2026-01-01T00:00:00")]
    assert metrics.registry.get_sample_value("trio_sessions_journal_seconds_count") == 200


async def test_what_nobody_waits_for_is_written_with_what_comes_meanwhile_or_before_long(
    path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(1))
        written = beside(path, "-wal").stat().st_size
        for received in (True, False):
            store.note(A, lambda received=received: AnswerNoted(turn=0, received=received))
            await trio.testing.wait_all_tasks_blocked()
            assert beside(path, "-wal").stat().st_size == written
        began = trio.current_time()
        await store.append(B, lambda: SessionCreated("2026-01-01T00:00:00"))
        assert trio.current_time() == began
        assert store.written(A)
    async with opened(path) as again:
        assert len(await again.load(A)) == 4


async def test_what_nobody_waits_for_is_written_without_anything_else_to_write(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(1))
        store.note(A, lambda: AnswerNoted(turn=0, received=True))
        [entry] = store._pending
        with trio.fail_after(60):
            await entry.over.wait()
        assert store.written(A)


async def test_relaxed_does_not_wait_and_loses_nothing_of_a_process_that_stops(path: Path) -> None:
    async with opened(path, durability="relaxed") as store:
        await write(store, A, with_sampled(3))
        assert not store.written(A)
        # What was taken is seen, written or not.
        assert len(await store.load(A)) == 4
        assert store.written(A)
        await write(store, B, with_sampled(2))
    async with opened(path) as again:
        assert [(one.id, one.turns) for one in again.found] == [(A, 3), (B, 2)]


async def test_an_event_that_cannot_be_made_fails_alone(path: Path) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("no event")

    async with opened(path) as store:
        async with trio.open_nursery() as nursery:

            async def append_broken() -> None:
                with pytest.raises(ZeroDivisionError):
                    await store.append(A, broken)

            nursery.start_soon(append_broken)
            nursery.start_soon(store.append, B, lambda: SessionCreated("2026-01-01T00:00:00"))
        assert await store.load(B) == [SessionCreated("2026-01-01T00:00:00")]


async def test_a_full_disk_refuses_and_changes_nothing_until_there_is_room(path: Path) -> None:
    metrics = Metrics()
    session = with_sampled(2)
    async with opened(path, metrics=metrics) as store:
        await write(store, A, session)
        connection = store._database._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        event = with_sampled(60).events[-1]
        with pytest.raises(StoreUnavailable, match=r"^the journal cannot be written \(database or disk is full\)"):
            await store.append(B, lambda: SessionCreated("x" * 200_000))
        assert await store.load(A) == session.events
        assert metrics.registry.get_sample_value("trio_sessions_journal_failures_total") == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        await store.append(A, lambda: event)
        assert await store.load(A) == [*session.events, event]


async def test_relaxed_writes_later_what_the_disk_had_no_room_for(path: Path, autojump_clock: trio.abc.Clock) -> None:
    metrics = Metrics()
    async with opened(path, durability="relaxed", metrics=metrics) as store:
        await store.append(A, lambda: SessionCreated("2026-01-01T00:00:00"))
        assert len(await store.load(A)) == 1
        connection = store._database._connection
        connection.execute("PRAGMA max_page_count = 1")
        await store.append(A, lambda: SessionCreated("x" * 200_000))
        # Threads have no part in the clock.
        for _ in range(100_000):
            await trio.sleep(1)
            if metrics.registry.get_sample_value("trio_sessions_journal_failures_total"):
                break
        assert not store.written(A)
        # From then on nothing is promised that may not be kept.
        with pytest.raises(StoreUnavailable):
            await store.append(A, lambda: SessionCreated("y"))
        connection.execute("PRAGMA max_page_count = 1000000")
        assert len(await store.load(A)) == 2


async def test_a_cancelled_store_lets_nobody_wait_for_ever(path: Path) -> None:
    failed = []
    to_use, to_append = trio.open_memory_channel[SqliteStore](1)

    async def append() -> None:
        store = await to_append.receive()
        with trio.CancelScope(shield=True):
            while not failed:
                try:
                    await store.append(A, lambda: SessionCreated("2026-01-01T00:00:00"))
                except StoreUnavailable as error:
                    failed.append(str(error))

    with trio.move_on_after(5):
        async with trio.open_nursery() as outside:
            outside.start_soon(append)
            with trio.CancelScope() as scope:
                async with opened(path) as store:
                    to_use.send_nowait(store)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
                    await trio.sleep_forever()
    assert failed


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (JournalIdentity(mode="tree", rendering="r"), "holds 1 sessions of --mode linear; serve with that"),
        (JournalIdentity(mode="linear", rendering="other"), "another tokenizer, chat template or template kwargs"),
        (JournalIdentity(mode="linear", rendering="r", worker=0, workers=2), "of one of --workers 1; serve with those"),
    ],
)
async def test_sessions_of_another_kind_are_not_served_and_not_touched(
    path: Path, other: JournalIdentity, says: str
) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(1))
    before = await trio.Path(path).read_bytes()
    with pytest.raises(ConfigurationError, match=says):
        async with opened(path, identity=other):
            pass
    assert await trio.Path(path).read_bytes() == before
    async with opened(path) as store:
        await store.delete(A)
    # Without sessions it may become anything.
    async with opened(path, identity=other) as store:
        await write(store, A, with_sampled(1))
    with pytest.raises(ConfigurationError):
        async with opened(path):
            pass


async def test_a_newer_journal_is_refused_and_not_touched(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(1))
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = await trio.Path(path).read_bytes()
    with pytest.raises(ConfigurationError, match=r"was written by a newer trio-sessions \(journal version 2"):
        async with opened(path):
            pass
    assert await trio.Path(path).read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["journal"]


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + bytes(200), b"x"], ids=len)
async def test_a_file_that_is_something_else_is_not_touched(path: Path, content: bytes) -> None:
    await trio.Path(path.parent).mkdir()
    await trio.Path(path).write_bytes(content)
    with pytest.raises(ConfigurationError, match="is no journal of trio-sessions, and was not touched"):
        async with opened(path):
            pass
    assert await trio.Path(path).read_bytes() == content


async def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ConfigurationError, match="is no file; give one"):
            async with opened(path):
                pass


async def test_an_empty_file_that_others_could_read_is_the_owners_alone(tmp_path: Path) -> None:
    path = trio.Path(tmp_path / "journal")
    await path.touch(0o644)
    async with opened(tmp_path / "journal") as store:
        await write(store, A, with_sampled(1))
        assert [(await each.stat()).st_mode & 0o777 for each in await path.parent.iterdir()] == [0o600, 0o600]


async def test_an_error_inside_comes_out_as_it_is(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with opened(path):
            raise ZeroDivisionError


async def test_one_process_at_a_time(path: Path) -> None:
    async with opened(path):
        with pytest.raises(ConfigurationError, match="is in use by another process"):
            async with opened(path):
                pass


async def test_a_log_that_cannot_be_read_is_said_so(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(1))
    await trio.Path(beside(path, "-wal")).mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot be opened: .*; give a file that can be written"):
        async with opened(path):
            pass


async def test_a_link_leads_to_the_journal_and_its_log(path: Path, tmp_path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(2))
        crashed = copied(path, tmp_path / "crashed")
    link = trio.Path(tmp_path / "link")
    await link.symlink_to(crashed)
    log = trio.Path(beside(crashed, "-wal"))
    written = await log.read_bytes()
    # The head of a page that was being written: with the salts of the log.
    await log.write_bytes(written + written[32:60])
    assert opened_once(Path(link)).unfinished > 0
    # What is damaged is rescued where it is.
    await trio.Path(crashed).write_bytes(crashed.read_bytes().replace(b"answer 1", b"ANSWER 1"))
    assert opened_once(Path(link)).kept_at == beside(crashed, ".damaged-1")
    assert await link.is_symlink()
    assert opened_once(Path(link)).found == ()


async def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    await trio.Path(tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        ConfigurationError, match=r"cannot be opened: .*; give a file that can be written, or --store memory"
    ):
        async with opened(tmp_path / "file" / "journal"):
            pass


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[str, bytes]]:
    """The files of a journal of three sessions: all in the file itself, or all in the log beside it."""
    folder = tmp_path_factory.mktemp("three")

    async def make(path: Path) -> None:
        async with opened(path) as store:
            for name, turns in ((A, 3), (B, 8), (C, 2)):
                await write(store, name, with_sampled(turns))
            copied(path, path.parent / "crashed")

    trio.run(make, folder / "journal")
    return lambda: {
        "stopped": (folder / "journal").read_bytes(),
        "file": (folder / "crashed" / "journal").read_bytes(),
        "log": (folder / "crashed" / "journal-wal").read_bytes(),
    }


def events_of(turns: int) -> list[Any]:
    return with_sampled(turns).events


WHOLE = {A: events_of(3), B: events_of(8), C: events_of(2)}


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_byte_of_the_file_is_wrong_what_is_served_is_whole_and_the_rest_is_named(
    three, tmp_path_factory, data
):
    content = bytearray(three()["stopped"])
    # The first page says whose file it is.
    start = data.draw(st.integers(100, len(content) - 1))
    length = data.draw(st.sampled_from([1, 1, 4, 300, 9000]))
    noise = data.draw(st.sampled_from([b"\x00", b"\xff", b"\x5a"])) * length
    content[start : start + length] = noise[: len(content) - start]
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "journal"
    path.write_bytes(content)

    async def look() -> None:
        metrics = Metrics()
        async with opened(path, metrics=metrics) as store:
            served = {one.id for one in store.found}
            for session_id in served:
                assert await store.load(session_id) == WHOLE[session_id]
            lost = metrics.registry.get_sample_value("trio_sessions_sessions_lost_total")
            kept = list(folder.glob("journal.damaged-1"))
            if served != WHOLE.keys():
                assert [file.read_bytes() for file in kept] == [bytes(content)]
            # Sessions whose very names are gone cannot be counted.
            assert lost is not None
            assert lost <= 3 - len(served)
            await store.append("d" * 32, lambda: SessionCreated("2026-01-01T00:00:00"))
        async with opened(path) as again:
            assert {one.id for one in again.found} == served | {"d" * 32}

    trio.run(look)
    shutil.rmtree(folder)


def test_names_that_are_none_are_no_sessions(three, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    content = bytearray(three()["stopped"])
    page = 3 * 8192
    assert content[page + 100 : page + 8192].count(A.encode()) == 1
    # How many names the page has, and where they begin.
    content[page + 4 : page + 8] = b"\xff" * 4
    path.write_bytes(content)
    opened = opened_once(path)
    assert [session.id for session in opened.found] == [A, B, C]
    assert opened.lost == ()
    assert opened.kept_at is not None


async def test_the_session_whose_events_are_damaged_is_named(three, path: Path) -> None:
    await trio.Path(path.parent).mkdir()
    content = three()["stopped"]
    await trio.Path(path).write_bytes(content.replace(b"answer 7", b"ANSWER 7"))
    metrics = Metrics()
    async with opened(path, metrics=metrics) as store:
        assert [one.id for one in store.found] == [A, C]
    assert metrics.registry.get_sample_value("trio_sessions_sessions_lost_total") == 1
    assert beside(path, ".damaged-1").exists()


async def test_a_session_whose_last_events_are_gone_is_named_and_not_served_without_them(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(3))
        await write(store, B, with_sampled(2))
        store._database._execute(f"DELETE FROM events WHERE session = '{A}' AND number = 3")
    metrics = Metrics()
    async with opened(path, metrics=metrics) as store:
        assert [one.id for one in store.found] == [B]
        assert metrics.registry.get_sample_value("trio_sessions_sessions_lost_total") == 1


async def test_what_is_damaged_while_it_is_served_is_an_error_of_its_session_alone(path: Path) -> None:
    async with opened(path) as store:
        await write(store, A, with_sampled(2))
        await write(store, B, with_sampled(2))
        store._database._execute(f"UPDATE events SET payload = x'00' WHERE session = '{A}' AND number = 1")
        with pytest.raises(SessionUnreadable, match=f"^session lost: session_id={A}"):
            await store.load(A)
        assert await store.load(B) == events_of(2)


@settings(max_examples=40)
@given(data=st.data())
def test_a_torn_end_is_cut_off_and_what_is_before_it_is_served(three, tmp_path_factory, data):
    files = three()
    log = files["log"]
    cut = data.draw(st.integers(0, len(log)))
    tail = data.draw(st.sampled_from([b"", b"\0" * 5000, b"\xff" * 100]))
    folder = tmp_path_factory.mktemp("torn")
    path = folder / "journal"
    path.write_bytes(files["file"])
    (folder / "journal-wal").write_bytes(log[:cut] + tail)

    async def look() -> None:
        async with opened(path) as store:
            for one in store.found:
                events = await store.load(one.id)
                assert events == WHOLE[one.id][: len(events)]
            # In the order in which they were written: a session is there only if those before it are whole.
            found = {one.id: one.events for one in store.found}
            whole = [found.get(name, 0) == len(WHOLE[name]) for name in (A, B, C)]
            assert whole == sorted(whole, reverse=True)
            if cut == len(log):
                assert all(whole)

    trio.run(look)
    shutil.rmtree(folder)


def torn(three: Callable[[], dict[str, bytes]], folder: Path, spot: int, noise: bytes) -> Path:
    files = three()
    log = bytearray(files["log"])
    log[spot : spot + len(noise)] = noise
    (folder / "journal").write_bytes(files["file"])
    (folder / "journal-wal").write_bytes(log)
    return folder / "journal"


def opened_once(path: Path) -> OpenedJournal:
    journal = open_journal(path, IDENTITY, synced=True)
    journal.database.close()
    return journal


def test_what_is_cut_off_is_said(three, tmp_path: Path) -> None:
    # Most of a finished transaction is there, and wrong.
    journal = opened_once(torn(three, tmp_path, -1000, b"\xff" * 10))
    assert (journal.cut_off > 0, journal.unfinished) == (True, 0)
    assert [one.id for one in journal.found][:2] == [A, B]
    # It is cut off once.
    assert opened_once(tmp_path / "journal").cut_off == 0


def test_a_log_without_its_head_is_said_to_be_cut_off(three, tmp_path: Path) -> None:
    path = torn(three, tmp_path, 16, b"\xff" * 4)
    assert opened_once(path).cut_off == len(three()["log"])


def test_a_write_that_was_not_finished_is_no_damage(three, tmp_path: Path) -> None:
    files = three()
    page = 8192
    # The first frame once more, as the beginning of a transaction: with the salts of the log, and no commit.
    frame = bytearray(files["log"][32 : 32 + 24 + page])
    frame[4:8] = bytes(4)
    (tmp_path / "journal").write_bytes(files["file"])
    (tmp_path / "journal-wal").write_bytes(files["log"] + bytes(frame))
    journal = opened_once(tmp_path / "journal")
    assert (journal.unfinished, journal.cut_off) == (len(frame), 0)
    assert [one.events for one in journal.found] == [4, 9, 3]


def test_only_what_can_be_a_session_is_named_as_lost(three, tmp_path: Path) -> None:
    content = bytearray(three()["stopped"])
    # The leaf page with the names, which say how many of them there are in its head.
    at = content.index(C.encode()) // 8192 * 8192
    assert content[at + 3 : at + 5] == b"\0\x03"
    content[at + 4] = 255
    (tmp_path / "journal").write_bytes(content)
    journal = opened_once(tmp_path / "journal")
    assert {one.id for one in journal.found} | set(journal.lost) <= {A, B, C}
    assert beside(tmp_path / "journal", ".damaged-1").exists()


def test_a_page_that_was_being_written_is_no_damage(three, tmp_path: Path) -> None:
    files = three()
    (tmp_path / "journal").write_bytes(files["file"])
    # The head of the last page of a transaction, which says that it is the last, and a part of the page.
    (tmp_path / "journal-wal").write_bytes(files["log"][:-5000])
    journal = opened_once(tmp_path / "journal")
    assert (journal.unfinished > 0, journal.cut_off) == (True, 0)


def test_a_journal_that_is_too_damaged_to_open_is_kept_and_another_begun(three, tmp_path: Path) -> None:
    content = bytearray(three()["stopped"])
    content[100:4000] = b"\xff" * 3900
    (tmp_path / "journal").write_bytes(content)
    journal = opened_once(tmp_path / "journal")
    assert (journal.found, journal.kept_at) == ((), tmp_path / "journal.damaged-1")
    assert (tmp_path / "journal.damaged-1").read_bytes() == bytes(content)


@pytest.mark.parametrize("damaged", [1, 2])
def test_what_sessions_are_bound_to_is_written_twice(three, tmp_path: Path, damaged: int) -> None:
    content = bytearray(three()["stopped"])
    content[damaged * 8192 : (damaged + 1) * 8192] = b"\xff" * 8192
    (tmp_path / "journal").write_bytes(content)
    assert [one.id for one in opened_once(tmp_path / "journal").found] == [A, B, C]
    with pytest.raises(ConfigurationError, match="of --mode linear"):
        open_journal(tmp_path / "journal", JournalIdentity(mode="tree", rendering="r"), synced=True)


def test_sessions_of_nobody_knows_what_are_not_served(three, tmp_path: Path) -> None:
    content = bytearray(three()["stopped"])
    content[8192 : 3 * 8192] = b"\xff" * 2 * 8192
    (tmp_path / "journal").write_bytes(content)
    journal = opened_once(tmp_path / "journal")
    assert (journal.found, journal.lost) == ((), (A, B, C))


async def test_a_store_whose_writer_is_gone_takes_nothing_more(path: Path) -> None:
    with trio.CancelScope() as everything:
        async with opened(path) as store:
            everything.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(StoreUnavailable):
                    await store.append(A, lambda: SessionCreated("2026-01-01T00:00:00"))


async def test_relaxed_takes_nothing_behind_what_it_could_not_write(path: Path) -> None:
    session = with_sampled(3)
    created, first, _, third = session.events

    def broken() -> Any:
        raise ZeroDivisionError("no event")

    async with opened(path, durability="relaxed") as store:
        for event in (created, first):
            await store.append(A, lambda event=event: event)
        await store.append(A, broken)
        assert await store.load(A) == [created, first]
        with pytest.raises(StoreUnavailable, match="could not be written down"):
            await store.append(A, lambda: third)
        assert await store.load(A) == [created, first]
