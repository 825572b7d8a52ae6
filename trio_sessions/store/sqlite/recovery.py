"""Opening a journal, whatever became of it: the sessions that are whole are found, those that are not are named."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trio_sessions.errors import ConfigurationError
from trio_sessions.store.base import JournalIdentity, StoredSession
from trio_sessions.store.events import InvalidEvent, decode_event
from trio_sessions.store.sqlite.database import IDENTITY_TABLES, Database, RowsDamaged
from trio_sessions.store.sqlite.files import LOG, WrittenAhead, beside, create_empty, read_ahead, require_ours

__all__ = ["OpenedJournal", "open_journal"]

_ID: Final = re.compile(r"[0-9a-f]{32}")
# SQLite quotes what it finds in a file when it says what is wrong with it.
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
# And not that a disk fails, or memory ends.
_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        # Tables that are not there, or not what they were.
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
    }
)


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """A journal that can be written to.

    Attributes:
        database: its tables.
        found: its sessions.
        lost: ids of sessions that were in it and are damaged.
        unfinished: bytes at its end of transactions that were never finished; nobody was told that they were.
        cut_off: bytes at its end that were finished once and are damaged; turns that were answered may be among them.
        kept_at: where the damaged file is kept, if it was.
        unread: whether nothing of it could be read, not even which sessions there were.
    """

    database: Database
    found: tuple[StoredSession, ...] = ()
    lost: tuple[str, ...] = ()
    unfinished: int = 0
    cut_off: int = 0
    kept_at: Path | None = None
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survey:
    bound: JournalIdentity | None = None
    found: tuple[StoredSession, ...] = ()
    lost: tuple[str, ...] = ()
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Bytes of the log that do not count: of transactions that were never finished, and of some that were."""

    unfinished: int = 0
    finished: int = 0


def open_journal(path: Path, identity: JournalIdentity, *, synced: bool) -> OpenedJournal:
    """Open the journal at ``path``, make it if need be, and look through all of it. Takes as long as reading it.

    Damaged sessions are left out; whole ones go into a new file in its place, and the damaged one is kept beside it.

    Args:
        path: the file.
        identity: what its sessions have to be bound to.
        synced: as for ``Database``.

    Raises:
        ConfigurationError: it is another's file, of a newer version, in use, not to be opened, or its sessions are
            bound to something else. It was not changed.
    """
    if path.is_symlink():
        # SQLite has its log beside the file that it leads to.
        path = path.resolve()
    create_empty(path)
    with _explained(path):
        known = require_ours(path)
    read_ahead(path)
    database = _connect(path, synced=synced)
    if database is None:
        return replace(_rescue(path, identity, None, _Survey(damaged=True), synced=synced), unread=True)
    try:
        # Not before nobody else has the file, who may be ending just now. Nothing was written to it since.
        with _explained(path):
            ahead = WrittenAhead.of(path)
        try:
            counted = database.apply_log() if known else 0
        except sqlite3.OperationalError:
            # On a full disk the log is read where it is, and what is in it can be served.
            counted = ahead.last_commit
        with _explained(path):
            survey = _survey(database)
        _require_bound(path, database, identity, survey)
        if survey.damaged:
            with _explained(path):
                database.apply_log()
            return _rescue(path, identity, database, survey, synced=synced)
        return _opened(database, survey, _cut(ahead, counted))
    except BaseException:
        database.close()
        raise


def _connect(path: Path, *, synced: bool) -> Database | None:
    """The database, or None where it is too damaged for SQLite to open."""
    with _explained(path):
        try:
            return Database(path, synced=synced)
        except _UNREADABLE as error:
            if _is_damage(error):
                return None
            raise


class _Damage:
    """What is damaged is noted and passed over; what cannot be read for another reason is raised."""

    def __init__(self) -> None:
        self.found = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except (InvalidEvent, RowsDamaged, *_UNREADABLE) as error:
            if not _is_damage(error):
                raise
            self.found = True


def _survey(database: Database) -> _Survey:
    """Look at every event, part by part: what one of them cannot read another may.

    Raises:
        sqlite3.Error: the disk cannot be read.
    """
    damage = _Damage()
    with damage.noted():
        damage.found = bool(database.complaints())
    bound: JournalIdentity | None = None
    for table in IDENTITY_TABLES:
        with damage.noted():
            # Both are looked at: one that is damaged is to be made anew.
            again = database.identity(table)
            bound = bound or again
    counts: Mapping[str, int | None] | None = None
    with damage.noted():
        counts = database.sessions()
    if counts is None:
        counts = dict.fromkeys(database.sessions_with_events())
    found, lost = [], []
    for session_id, events in counts.items():
        # A damaged page may seem to hold any number of others.
        if not (isinstance(session_id, str) and _ID.fullmatch(session_id)):
            damage.found = True
            continue
        session: StoredSession | None = None
        with damage.noted():
            session = StoredSession.of(session_id, (decode_event(row.payload) for row in database.read(session_id)))
        # Where there are fewer than were counted the last of them are gone; and sessions of nobody knows which mode and
        # tokenizer cannot be served.
        if session is None or bound is None or events not in (None, session.events):
            lost.append(session_id)
        else:
            found.append(session)
    return _Survey(bound=bound, found=tuple(found), lost=tuple(lost), damaged=damage.found or bool(lost))


def _require_bound(path: Path, database: Database, identity: JournalIdentity, survey: _Survey) -> None:
    bound = survey.bound
    if bound == identity:
        return
    if bound is None or not (survey.found or survey.lost):
        if not survey.damaged:
            with _explained(path):
                database.bind(identity)
        return
    sessions = f"--store {path} holds {len(survey.found)} sessions"
    other = "or give another --store"
    if bound.mode != identity.mode:
        raise ConfigurationError(f"{sessions} of --mode {bound.mode}; serve with that, {other}")
    if (bound.workers, bound.worker) != (identity.workers, identity.worker):
        raise ConfigurationError(f"{sessions} of one of --workers {bound.workers}; serve with those, {other}")
    raise ConfigurationError(
        f"{sessions} whose prompts were rendered with another tokenizer, chat template or template kwargs; serve with "
        f"those, {other}"
    )


def _rescue(
    path: Path, identity: JournalIdentity, damaged: Database | None, survey: _Survey, *, synced: bool
) -> OpenedJournal:
    """Put a new file with the whole sessions in the place of the damaged one, at no time without the one or the other.

    The log beside the damaged one is empty: it was applied.
    """
    fresh = beside(path, ".rescued")
    with _explained(path):
        for leftover in (fresh, beside(fresh, LOG)):
            leftover.unlink(missing_ok=True)
        create_empty(fresh)
        database = Database(fresh, synced=True)
        try:
            database.bind(identity)
            for session in survey.found:
                assert damaged is not None
                database.copy(session.id, damaged.read(session.id))
            # What is in the log beside it would not come along; closing says nothing of what it could not move.
            database.apply_log()
        finally:
            database.close()
        if damaged is not None:
            damaged.close()
        kept = next(
            name for name in (beside(path, f".damaged-{number}") for number in itertools.count(1)) if not name.exists()
        )
        _keep(path, kept)
        beside(path, LOG).unlink(missing_ok=True)
        fresh.replace(path)
        _sync_folder(path)
        return replace(_opened(Database(path, synced=synced), survey, _Cut()), kept_at=kept)


def _keep(path: Path, kept: Path) -> None:
    """Have the file under another name too."""
    try:
        os.link(path, kept)
    except OSError:
        # Not every file system knows links.
        shutil.copy2(path, kept)


def _opened(database: Database, survey: _Survey, cut: _Cut) -> OpenedJournal:
    for session in survey.found:
        database.continue_at(session.id, session.events)
    return OpenedJournal(database, survey.found, survey.lost, cut.unfinished, cut.finished)


def _cut(ahead: WrittenAhead, counted: int) -> _Cut:
    """What of the log did not count."""
    if not ahead.readable:
        return _Cut(finished=ahead.size)
    cut = max(0, ahead.frames - counted) * ahead.frame
    return _Cut(finished=cut) if ahead.last_commit > counted else _Cut(unfinished=cut)


def _is_damage(error: Exception) -> bool:
    return not isinstance(error, sqlite3.Error) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of SQLite and of files that the user can do something about."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            text = f"--store {path} is in use by another process; stop that one, or give another file"
        else:
            text = (
                f"--store {path} cannot be opened: {error}; give a file that can be written, in a folder that can, or "
                "--store memory"
            )
        raise ConfigurationError(text) from error


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
