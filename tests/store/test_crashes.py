"""A process that ends at any step of opening its journal, and a disk that is full then: nothing whole is lost."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from tests.store.growing import with_sampled
from tests.store.test_sqlite import IDENTITY, A, B, C, copied, events_of, opened, write
from trio_sessions.errors import ConfigurationError, StoreUnavailable
from trio_sessions.store import SessionCreated
from trio_sessions.store.events import decode_event, encode_event
from trio_sessions.store.sqlite import recovery
from trio_sessions.store.sqlite.database import Append
from trio_sessions.store.sqlite.files import beside
from trio_sessions.store.sqlite.recovery import OpenedJournal, open_journal

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
KILLED = 77
WHOLE = {A: events_of(3), C: events_of(2)}


def in_a_process(do: Callable[[], object]) -> int:
    """Do it in a process of its own, which ends without any order; its exit status, 0 for success."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            do()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_it(path: Path) -> OpenedJournal:
    return open_journal(path, IDENTITY, synced=True)


def limit_files(size: int) -> None:
    """No file of this process gets longer, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def events_in(journal: OpenedJournal) -> dict[str, list[Any]]:
    return {one.id: [decode_event(row.payload) for row in journal.database.read(one.id)] for one in journal.found}


def ending_at(step: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that ends the process before a line of the rescue: there are so many of them."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not recovery._rescue.__code__:
            return None if event == "line" else trace
        if event == "line":
            if not left:
                os._exit(KILLED)
            left -= 1
        return trace

    return trace


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal of three sessions, one of which is damaged."""
    path = tmp_path_factory.mktemp("damaged") / "journal"

    async def make() -> None:
        async with opened(path) as store:
            for name, turns in ((A, 3), (B, 8), (C, 2)):
                await write(store, name, with_sampled(turns))

    trio.run(make)
    return path.read_bytes().replace(b"answer 7", b"ANSWER 7")


def test_a_rescue_may_end_at_any_step(damaged: bytes, tmp_path: Path) -> None:
    step, status = 0, KILLED
    while status == KILLED:
        folder = tmp_path / "case"
        folder.mkdir()
        path = folder / "journal"
        path.write_bytes(damaged)

        def rescue(step: int = step, path: Path = path) -> None:
            sys.settrace(ending_at(step))
            open_it(path)

        status = in_a_process(rescue)
        journal = open_it(path)
        assert events_in(journal) == WHOLE
        journal.database.close()
        assert beside(path, ".damaged-1").read_bytes() == damaged
        assert not beside(path, ".rescued").exists()
        shutil.rmtree(folder)
        step += 1
    assert status == 0
    assert step > 15


def large(path: Path) -> dict[str, list[Any]]:
    """A journal of which much more is in the file than the log beside it ever holds; its sessions."""
    sessions: dict[str, list[Any]] = {
        f"{number:032x}": [SessionCreated(f"{number:032x}" + "x" * 800_000)] for number in range(18)
    }
    journal = open_journal(path, IDENTITY, synced=False)
    for name, [created] in sessions.items():
        journal.database.write([Append(name, encode_event(created), begins=True)])
    journal.database.close()
    return sessions


def test_a_rescue_that_the_disk_has_no_room_for_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sessions = large(path)
    lost = f"{9:032x}"
    path.write_bytes(path.read_bytes().replace(lost.encode() + b"xxx", lost.encode() + b"xyx"))
    size = path.stat().st_size

    def rescue() -> None:
        limit_files(size * 2 // 3)
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            open_it(path)

    assert in_a_process(rescue) == 0
    del sessions[lost]
    journal = open_it(path)
    assert events_in(journal) == sessions
    assert journal.lost == (lost,)
    journal.database.close()


async def test_a_full_disk_at_the_start_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    async with opened(tmp_path / "journal") as store:
        for name, turns in ((A, 3), (C, 2)):
            await write(store, name, with_sampled(turns))
        path = copied(tmp_path / "journal", tmp_path / "crashed")
    size = path.stat().st_size

    def serve() -> None:
        limit_files(size)
        journal = open_it(path)
        assert (events_in(journal), journal.lost, journal.cut_off, journal.unfinished) == (WHOLE, (), 0, 0)
        limit_files(beside(path, "-wal").stat().st_size)
        created = [Append(B, encode_event(SessionCreated("2026-01-01T00:00:00")), begins=True)]
        with pytest.raises(sqlite3.OperationalError):
            journal.database.write(created)
        limit_files(resource.RLIM_INFINITY)
        journal.database.write(created)

    assert in_a_process(serve) == 0
    again = open_it(path)
    assert events_in(again) == {**WHOLE, B: [SessionCreated("2026-01-01T00:00:00")]}
    again.database.close()


@pytest.mark.parametrize("suffix", ["", "-wal"], ids=["file", "log"])
async def test_nothing_is_said_to_be_written_into_a_file_that_is_gone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "journal"
    away = tmp_path / "away"
    async with opened(path) as store:
        await write(store, A, with_sampled(2))
        await trio.Path(beside(path, suffix)).rename(away)
        with pytest.raises(StoreUnavailable, match=r"its file was deleted or moved away.*nothing was recorded"):
            await store.append(B, lambda: SessionCreated("2026-01-01T00:00:00"))
        assert await store.load(A) == events_of(2)
        await trio.Path(away).rename(beside(path, suffix))
        await store.append(B, lambda: SessionCreated("2026-01-01T00:00:00"))
    async with opened(path) as again:
        assert [one.id for one in again.found] == [A, B]
