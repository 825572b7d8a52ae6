"""The journal as the event loop sees it: one writer task, which writes what has come meanwhile in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from trio_sessions.config import Durability
from trio_sessions.errors import BadEngineAnswer, SessionUnreadable, StoreUnavailable
from trio_sessions.observe import Metrics
from trio_sessions.store.base import JournalIdentity, StoredSession
from trio_sessions.store.events import Event, InvalidEvent, SessionCreated, decode_event, encode_event
from trio_sessions.store.sqlite.database import Append, Database, Forget, RowsDamaged, Write
from trio_sessions.store.sqlite.recovery import OpenedJournal, open_journal

__all__ = ["SqliteStore"]

_AGAIN_SECONDS: Final = 1.0
# What nobody waits for is written with what comes meanwhile.
_LINGER_SECONDS: Final = 0.05
# What may wait to be written without anybody waiting for it.
_MOST_UNATTENDED: Final = 4096
_NAMED_IN_ONE_LINE: Final = 50
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.journal")


@dataclass(slots=True, eq=False)
class _Entry:
    """Something to be written.

    Attributes:
        session_id: whose it is.
        event: makes the event; None to forget the session.
        attended: whether somebody waits for it.
        over: set once it is written, or has failed.
        error: why it failed.
        payload: the event, once it is made.
        begins: whether it is the first of its session.
    """

    session_id: str
    event: Callable[[], Event] | None
    attended: bool
    over: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    payload: bytes = b""
    begins: bool = False

    def encode(self, *, longest: int) -> None:
        """Make what is to be written."""
        if self.event is None or self.payload:
            return
        try:
            event = self.event()
            self.begins = isinstance(event, SessionCreated)
            self.payload = encode_event(event)
        # Whatever it is, the others of its group have nothing to do with it.
        except Exception as error:  # noqa: BLE001
            self.error = error
            return
        if len(self.payload) > longest:
            self.error = BadEngineAnswer(f"the turn is larger than the journal can take ({longest} bytes)")

    def write(self) -> Write:
        """What is to be written."""
        return Forget(self.session_id) if self.event is None else Append(self.session_id, self.payload, self.begins)


class SqliteStore:
    """A journal in one SQLite file; from ``open``.

    Args:
        opened: the journal.
        durability: when ``append`` returns.
        metrics: where writing is counted.
    """

    def __init__(self, opened: OpenedJournal, *, durability: Durability, metrics: Metrics) -> None:
        self._database = opened.database
        self._found = opened.found
        self._durability = durability
        self._metrics = metrics
        self._pending: list[_Entry] = []
        self._unattended = 0
        # Something is to be written; somebody waits for it.
        self._taken, self._urgent = trio.Event(), trio.Event()
        self._writing: list[_Entry] = []
        self._closing = False
        self._failing = False
        # Sessions of which something is missing that was answered.
        self._spoilt: set[str] = set()
        # SQLite's connection is for one thread at a time.
        self._one = trio.CapacityLimiter(1)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, identity: JournalIdentity, *, durability: Durability, metrics: Metrics
    ) -> AsyncIterator[SqliteStore]:
        """A block with the journal at ``path`` open; what was taken is written when it ends.

        Args:
            path: the file.
            identity: what its sessions have to be bound to.
            durability: when ``append`` returns.
            metrics: where writing is counted.

        Raises:
            ConfigurationError: see ``open_journal``.
        """
        opened = await trio.to_thread.run_sync(
            partial(open_journal, path, identity, synced=durability == "full"), abandon_on_cancel=False
        )
        _report(path, opened, metrics)
        store = cls(opened, durability=durability, metrics=metrics)
        failure: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store._write_for_ever)
                try:
                    yield store
                except Exception as error:  # noqa: BLE001
                    # Raised again outside, where the nursery cannot put it into a group.
                    failure = error
                finally:
                    store._close()
            if failure is not None:
                raise failure
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(opened.database.close)

    @property
    def recovers(self) -> bool:
        """Yes."""
        return True

    @property
    def found(self) -> Sequence[StoredSession]:
        """The sessions that were in the file when it was opened."""
        return self._found

    async def append(self, session_id: str, event: Callable[[], Event]) -> None:
        """Write one event down; see ``Store.append``."""
        if session_id in self._spoilt:
            raise StoreUnavailable("a turn of this session could not be written down, so that no other can be")
        attended = self._durability == "full"
        if not attended and self._failing:
            raise StoreUnavailable("the journal cannot be written: nothing was recorded; try again when that is mended")
        entry = _Entry(session_id, event, attended)
        if attended:
            began = trio.current_time()
            await self._write(entry)
            self._metrics.journal_seconds.observe(trio.current_time() - began)
        else:
            self._take_unattended(entry)

    def note(self, session_id: str, event: Callable[[], Event]) -> None:
        """Write one event down before long; see ``Store.note``."""
        if not self._closing and self._unattended < _MOST_UNATTENDED:
            self._take_unattended(_Entry(session_id, event, attended=False))

    async def delete(self, session_id: str) -> None:
        """Forget a session; see ``Store.delete``."""
        await self._write(_Entry(session_id, None, attended=True))

    async def load(self, session_id: str) -> Sequence[Event]:
        """All events of a session; see ``Store.load``.

        Raises:
            SessionUnreadable: they are damaged.
            StoreUnavailable: they cannot be read.
        """
        for entry in [*self._writing, *self._pending]:
            if entry.session_id == session_id:
                self._urgent.set()
                await entry.over.wait()
        return await trio.to_thread.run_sync(
            partial(_load, self._database, session_id), limiter=self._one, abandon_on_cancel=False
        )

    def written(self, session_id: str) -> bool:
        """Whether all that was taken for a session is written."""
        return not any(entry.session_id == session_id for entry in [*self._writing, *self._pending])

    async def _write(self, entry: _Entry) -> None:
        if self._closing:
            raise StoreUnavailable("the journal is closed: the server is shutting down")
        self._take(entry)
        # What became of it would not be known.
        with trio.CancelScope(shield=True):
            await entry.over.wait()
        if entry.error is not None:
            raise entry.error

    def _take_unattended(self, entry: _Entry) -> None:
        if self._closing:
            raise StoreUnavailable("the journal is closed: the server is shutting down")
        if self._unattended >= _MOST_UNATTENDED:
            raise StoreUnavailable("the journal takes nothing more before it can be written again")
        self._unattended += 1
        self._take(entry)

    def _take(self, entry: _Entry) -> None:
        self._pending.append(entry)
        self._taken.set()
        if entry.attended:
            self._urgent.set()

    def _close(self) -> None:
        self._closing = True
        self._taken.set()
        self._urgent.set()

    async def _write_for_ever(self) -> None:
        try:
            while not self._closing or self._pending:
                await self._taken.wait()
                if not self._urgent.is_set():
                    with trio.move_on_after(_LINGER_SECONDS):
                        await self._urgent.wait()
                if not self._closing:
                    self._taken, self._urgent = trio.Event(), trio.Event()
                await self._write_group()
        finally:
            # Also where it was cancelled: nobody would write what comes now.
            self._closing = True
            for entry in [*self._writing, *self._pending]:
                entry.error = StoreUnavailable("the journal was closed before this was written")
                self._end(entry)

    async def _write_group(self) -> None:
        self._writing, self._pending = self._pending, []
        if not self._writing:
            return
        failure = await trio.to_thread.run_sync(
            partial(_write, self._database, self._writing), limiter=self._one, abandon_on_cancel=False
        )
        group, self._writing = self._writing, []
        self._failing = failure is not None
        if failure is None:
            self._metrics.journal_bytes.inc(sum(len(entry.payload) for entry in group if entry.error is None))
        else:
            self._metrics.journal_failures.inc()
            _log.error("the journal cannot be written", error=str(failure), events=len(group))
        again = []
        for entry in group:
            if failure is not None and entry.error is None:
                if not entry.attended and not self._closing:
                    again.append(entry)
                    continue
                entry.error = StoreUnavailable(
                    f"the journal cannot be written ({failure}): nothing was recorded; try again when that is mended"
                )
            self._end(entry)
        if again:
            self._pending[:0] = again
            self._taken.set()
            # Somebody who waits is not to wait for that.
            with trio.move_on_after(_AGAIN_SECONDS):
                await self._urgent.wait()

    def _end(self, entry: _Entry) -> None:
        if not entry.attended:
            self._unattended -= 1
            if entry.error is not None:
                # Its answer was given; what would follow it could not be made of what is there.
                self._spoilt.add(entry.session_id)
                _log.error("an event is lost", session=entry.session_id, error=str(entry.error))
        entry.over.set()


def _write(database: Database, group: Sequence[_Entry]) -> Exception | None:
    """Write what can be made of a group; why that failed, for all of them."""
    for entry in group:
        entry.encode(longest=database.longest_payload)
    try:
        database.write([entry.write() for entry in group if entry.error is None])
    # SQLite quotes what it finds in a damaged file.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return error
    return None


def _load(database: Database, session_id: str) -> Sequence[Event]:
    try:
        return [decode_event(row.payload) for row in database.read(session_id)]
    except (RowsDamaged, InvalidEvent) as error:
        raise SessionUnreadable(session_id) from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the journal cannot be read ({error}); try again when that is mended") from error


def _report(path: Path, opened: OpenedJournal, metrics: Metrics) -> None:
    """Say what was found, and what was not."""
    _log.info(
        "journal opened",
        path=str(path.absolute()),
        sessions=len(opened.found),
        turns=sum(s.turns for s in opened.found),
    )
    if opened.unfinished:
        _log.info("the last write had not been finished, and nobody was told that it was", bytes=opened.unfinished)
    if opened.cut_off:
        _log.error(
            "the end of the journal is damaged and was cut off: the latest turns may be missing", bytes=opened.cut_off
        )
    if opened.kept_at is not None:
        _log.error(
            "the journal is damaged: another takes its place",
            damaged_file=str(opened.kept_at),
            sessions_moved=len(opened.found),
        )
    if opened.unread:
        _log.error("nothing of the journal can be read: all of its sessions are lost, and nobody knows which they were")
    metrics.sessions_lost.inc(len(opened.lost) + opened.unread)
    for start in range(0, len(opened.lost), _NAMED_IN_ONE_LINE):
        _log.error("sessions lost", sessions=list(opened.lost[start : start + _NAMED_IN_ONE_LINE]))
