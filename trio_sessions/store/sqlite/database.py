"""The tables of a journal. Everything here is synchronous, and for one thread at a time."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec

from trio_sessions.store.base import JournalIdentity
from trio_sessions.store.sqlite.files import APPLICATION_ID, LOG, SCHEMA_VERSION, beside

__all__ = ["IDENTITY_TABLES", "Append", "Database", "Forget", "Row", "RowsDamaged", "Write"]

# Sessions are in a table of their own, so that those can be named whose events are damaged, and with how many events
# they have: where the last of them are gone, those before look whole. Events are in the order in which they are read; a
# turn's is large, and lies in pages of its own.
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE identity (value BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE identity_again (value BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE sessions (id TEXT PRIMARY KEY, events INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    session TEXT NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE TRIGGER counted AFTER INSERT ON events BEGIN
    INSERT OR REPLACE INTO sessions VALUES (new.session, new.number + 1);
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""  # noqa: S608
IDENTITY_TABLES: Final = ("identity", "identity_again")
"""Two, as without what is in them nothing can be served: they are in different pages."""
# Of an event.
_COLUMNS: Final = 4
_PAGE_BYTES: Final = 8192
# A predecessor that is just being killed still holds the file for a moment.
_PATIENCE_SECONDS: Final = 2.0
# Every statement lets go of the interpreter, and may wait for the event loop to have it back: so one for many rows. It
# keeps what it was given last.
_MOST_ROWS: Final = 16
_MOST_BYTES: Final = 256 * 1024
_KEPT_STATEMENTS: Final = 48

_identity_decoder = msgspec.json.Decoder(JournalIdentity)


class RowsDamaged(Exception):
    """Something is not as it was written."""


@dataclass(frozen=True, slots=True)
class Append:
    """One event to be written behind those of its session.

    Attributes:
        session_id: whose it is.
        payload: the event.
        begins: whether it is the first of its session; others of a session that was forgotten are left out.
    """

    session_id: str
    payload: bytes
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """All events of a session to be removed."""

    session_id: str


Write = Append | Forget


@dataclass(frozen=True, slots=True)
class Row:
    """One event as it is stored."""

    number: int
    checksum: int
    payload: bytes


class Database:
    """An open journal, which no other process can open meanwhile.

    Args:
        path: the file, which is a journal or empty.
        synced: whether a transaction is on the disk when it is committed, or a little later.

    Raises:
        sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path, *, synced: bool) -> None:
        self._connection = sqlite3.connect(
            path,
            timeout=_PATIENCE_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_KEPT_STATEMENTS,
        )
        self._files = (path, beside(path, LOG))
        self._next: dict[str, int] = {}
        try:
            self._execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            # Also spares the file that processes share.
            self._execute("PRAGMA locking_mode = EXCLUSIVE")
            self._execute("PRAGMA cell_size_check = ON")
            # What was deleted need not be overwritten with zeros.
            self._execute("PRAGMA secure_delete = OFF")
            self._execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            # Not by its tables: a damaged file may seem to have none.
            if not self._execute("PRAGMA page_count")[0][0]:
                self._connection.executescript(_SCHEMA)
            self._execute("PRAGMA journal_mode = WAL")
            # Takes the lock, if nothing else has.
            self._execute("BEGIN IMMEDIATE")
            self._execute("ROLLBACK")
            self._opened = self._present()
        except BaseException:
            self._connection.close()
            raise
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        self.longest_payload = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - _PAGE_BYTES

    def close(self) -> None:
        """Write everything to the file itself, and let others open it."""
        # What cannot be moved there stays in the log beside it.
        with suppress(sqlite3.Error):
            self._connection.close()

    def apply_log(self) -> int:
        """Move what is in the log beside the file into the file; how many pages of it count.

        Raises:
            sqlite3.Error: there is no room, or the file is damaged.
        """
        frames: int = self._execute("PRAGMA wal_checkpoint(PASSIVE)")[0][1]
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(frames, 0)

    def identity(self, table: str) -> JournalIdentity | None:
        """What its sessions are bound to; None where it is new.

        Args:
            table: of ``IDENTITY_TABLES``, which say the same.

        Raises:
            RowsDamaged: that is not as it was written.
            sqlite3.Error: it cannot be read.
        """
        rows = self._execute(f"SELECT value, checksum FROM {table}")  # noqa: S608
        if not rows:
            return None
        value, checksum = rows[-1]
        if not isinstance(value, bytes) or checksum != zlib.crc32(value):
            raise RowsDamaged("what the sessions are bound to is damaged")
        return _identity_decoder.decode(value)

    def bind(self, identity: JournalIdentity) -> None:
        """Bind its sessions, which are none yet, to ``identity``."""
        value = msgspec.json.encode(identity)
        with self._transaction():
            for table in IDENTITY_TABLES:
                self._execute(f"DELETE FROM {table}")  # noqa: S608
                self._connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (value, zlib.crc32(value)))  # noqa: S608

    def sessions(self) -> dict[str, int]:
        """How many events each session has, by its id."""
        return dict(self._execute("SELECT id, events FROM sessions ORDER BY id"))

    def sessions_with_events(self) -> list[str]:
        """The ids of sessions, as far as the events themselves can be read."""
        found: set[str] = set()
        # From both ends up to what cannot be read.
        for statement in (
            "SELECT session FROM events ORDER BY session, number",
            "SELECT session FROM events ORDER BY session DESC, number DESC",
        ):
            with suppress(sqlite3.Error):
                for (session_id,) in self._connection.execute(statement):
                    found.add(session_id)
        # What a damaged page seems to hold need not be text.
        return sorted(name for name in found if isinstance(name, str))

    def complaints(self) -> list[str]:
        """What is wrong with the structure of the file."""
        if _schema_of(self._connection) != _schema():
            # SQLite goes by what it finds there, whatever that is.
            return ["its tables are described differently"]
        return [text for (text,) in self._execute("PRAGMA quick_check(8)") if text != "ok"]

    def read(self, session_id: str) -> Iterator[Row]:
        """The events of a session, in order.

        Raises:
            RowsDamaged: they are not as they were written.
            sqlite3.Error: they cannot be read.
        """
        rows = self._connection.execute(
            "SELECT number, checksum, payload FROM events WHERE session = ? ORDER BY number", (session_id,)
        )
        for expected, (number, checksum, payload) in enumerate(rows):
            if number != expected:
                raise RowsDamaged(f"event {expected} is missing")
            if not isinstance(payload, bytes) or checksum != _checksum(session_id, number, payload):
                raise RowsDamaged(f"event {expected} is damaged")
            yield Row(number, checksum, payload)

    def continue_at(self, session_id: str, events: int) -> None:
        """Say how many events a session has that was written before."""
        self._next[session_id] = events

    def write(self, writes: Sequence[Write]) -> None:
        """Write all of ``writes`` down in their order, or nothing.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        self._require_files()
        following: dict[str, int] = {}
        plan = _Plan()
        for write in writes:
            session_id = write.session_id
            match write:
                case Append(payload=payload, begins=begins):
                    number = following.get(session_id, self._next.get(session_id, 0))
                    if number == 0 and not begins:
                        continue
                    plan.insert(session_id, Row(number, _checksum(session_id, number, payload), payload))
                    following[session_id] = number + 1
                case Forget():
                    plan.forget(session_id)
                    following[session_id] = 0
        statements = plan.statements()
        if len(statements) == 1:
            # Is a transaction by itself.
            self._connection.execute(statements[0].text, statements[0].values)
        elif statements:
            with self._transaction():
                for statement in statements:
                    self._connection.execute(statement.text, statement.values)
        for session_id, number in following.items():
            if number:
                self._next[session_id] = number
            else:
                self._next.pop(session_id, None)

    def copy(self, session_id: str, rows: Iterator[Row]) -> None:
        """Take over a session of another journal.

        Raises:
            RowsDamaged, sqlite3.Error: its rows cannot be read, or not be written; nothing was taken over.
        """
        with self._transaction():
            for row in rows:
                self._connection.execute(_insertion(1), (session_id, row.number, row.checksum, row.payload))

    def _require_files(self) -> None:
        """Refuse to write where nobody would find it: SQLite goes on in files that were deleted or moved away.

        Raises:
            sqlite3.OperationalError: they are not where they were.
        """
        if self._present() != self._opened:
            raise sqlite3.OperationalError("its file was deleted or moved away: put it back, or restart the gateway")

    def _present(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(_identity_of, self._files))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        finally:
            # Some errors end a transaction by themselves, and some do not.
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()


def _identity_of(path: Path) -> tuple[int, int] | None:
    """What tells a file apart from others; None where none can be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class _Statement:
    text: str
    values: Sequence[Any]


@dataclass(slots=True)
class _Plan:
    """The statements of one transaction; of many rows there is one."""

    _done: list[_Statement] = field(default_factory=list)
    _values: list[Any] = field(default_factory=list)
    _bytes: int = 0

    def insert(self, session_id: str, row: Row) -> None:
        self._values += (session_id, row.number, row.checksum, row.payload)
        self._bytes += len(row.payload)
        if len(self._values) == _MOST_ROWS * _COLUMNS or self._bytes > _MOST_BYTES:
            self._finish_rows()

    def forget(self, session_id: str) -> None:
        # What it had, it had before.
        self._finish_rows()
        self._done.append(_Statement("DELETE FROM events WHERE session = ?", (session_id,)))
        self._done.append(_Statement("DELETE FROM sessions WHERE id = ?", (session_id,)))

    def statements(self) -> Sequence[_Statement]:
        self._finish_rows()
        return self._done

    def _finish_rows(self) -> None:
        if self._values:
            rows = len(self._values) // _COLUMNS
            self._done.append(_Statement(_insertion(rows), self._values))
            self._values, self._bytes = [], 0


def _schema_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid").fetchall()


@cache
def _schema() -> list[tuple[Any, ...]]:
    """How SQLite describes our tables."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(_SCHEMA)
        return _schema_of(connection)
    finally:
        connection.close()


@cache
def _insertion(rows: int) -> str:
    row = f"({', '.join('?' * _COLUMNS)})"
    return f"INSERT INTO events VALUES {', '.join([row] * rows)}"  # noqa: S608


def _checksum(session_id: str, number: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(f"{session_id}/{number}".encode()))
