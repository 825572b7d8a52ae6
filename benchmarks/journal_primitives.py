"""The journal by itself: writing turns down, reading a session, opening a file with many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.conversations import said
from benchmarks.figures import Row, Table, figure
from benchmarks.load.engine import answer_parts
from benchmarks.options import Options
from benchmarks.timing import microseconds, seconds
from trio_sessions.core.completion import extract_completion
from trio_sessions.core.history import Attachment, Checkpoint, LinearHistory, RenderedWith, TurnRecord
from trio_sessions.core.matchers import strict
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.store import Event, JournalIdentity, Restored, SessionCreated, turn_event
from trio_sessions.store.events import decode_event, encode_event
from trio_sessions.store.sqlite.database import Append, Database
from trio_sessions.store.sqlite.files import create_empty
from trio_sessions.store.sqlite.recovery import open_journal

__all__ = ["opening", "primitives"]

_REPEATS: Final = 15
_OPENED: Final = 3
_IDS: Final = 128
_TURNS: Final = 30
_SESSIONS: Final = 1000
_QUICK_SESSIONS: Final = 3
_GROUPS: Final = (1, 16, 128)
_IDENTITY: Final = JournalIdentity(mode="linear", rendering="benchmark")


def primitives(options: Options, *, part: str) -> Table:
    """Times of what the writer does, and of bringing a session back."""
    times = options.times(_REPEATS)
    payloads = [encode_event(event) for event in _session(_TURNS)]
    attachment = LinearHistory().attach([said("user", 0)], strict)
    checkpoint = _checkpoint(attachment)

    def make() -> bytes:
        return encode_event(_event(attachment, checkpoint, 0))

    rows = [("make a turn's event", f"{_IDS} ids, {len(make()):,} bytes", microseconds(make, repeats=times))]
    with _folder() as folder, _new_journal(folder / "journal", synced=True) as database:
        for group in _GROUPS:
            options.show.step(f"write {group} turns at once")
            names = [f"{group:08x}{number:024x}" for number in range(group)]
            database.write([Append(name, payloads[0], begins=True) for name in names])
            write = partial(database.write, [Append(name, payloads[1]) for name in names])
            rows.append(("write at once, on the disk", f"{group} turns", microseconds(write, repeats=times)))
        name = "f" * 32
        _write(database, name, payloads)
        options.show.step("read a session")
        rows.append(("read a session", f"{_TURNS} turns", microseconds(partial(_read, database, name), repeats=times)))
    return Table(part, "the journal by itself", tuple(Row({"what": w, "of": of}, {"us": us}) for w, of, us in rows))


def opening(options: Options, *, part: str) -> Table:
    """How long it takes to open a journal, which is read whole."""
    sessions, turns = (_QUICK_SESSIONS, 2) if options.quick else (_SESSIONS, _TURNS)
    payloads = [encode_event(event) for event in _session(turns)]
    with _folder() as folder:
        path = folder / "journal"
        options.show.step(f"open a journal of {sessions} sessions", sessions)
        with _new_journal(path, synced=False) as database:
            for number in range(sessions):
                _write(database, f"{number:032x}", payloads)
                options.show.done(number + 1)
        mib = path.stat().st_size / 2**20
        times = [seconds(partial(_open, path)) for _ in range(options.times(_OPENED))]
    row = Row(
        {"sessions": f"{sessions:,}", "turns": str(turns)},
        {
            "mib": figure([mib] * len(times)),
            "seconds": figure(times),
            "mib_per_s": figure(mib / time for time in times),
            "sessions_per_s": figure(sessions / time for time in times),
        },
    )
    return Table(part, "open a journal, which is read whole", (row,))


def _write(database: Database, session_id: str, payloads: Sequence[bytes]) -> None:
    database.write([Append(session_id, payload, begins=not index) for index, payload in enumerate(payloads)])


def _open(path: Path) -> None:
    opened = open_journal(path, _IDENTITY, synced=True)
    opened.database.close()


def _read(database: Database, session_id: str) -> None:
    Restored.of([decode_event(row.payload) for row in database.read(session_id)], LinearHistory())


def _session(turns: int) -> list[Event]:
    """The events of a linear session of turns such as the loads have."""
    history = LinearHistory()
    events: list[Event] = [SessionCreated("2026-01-01T00:00:00")]
    messages: list[Mapping[str, Any]] = []
    for number in range(turns):
        messages = [*messages, said("user", number)]
        attachment = history.attach(messages, strict)
        checkpoint = _checkpoint(attachment)
        events.append(_event(attachment, checkpoint, number))
        history.commit(attachment, checkpoint)
        messages.append(checkpoint.messages[-1])
    return events


def _event(attachment: Attachment, checkpoint: Checkpoint, number: int) -> Event:
    return turn_event(checkpoint, parent=number - 1 if number else None, ticket=attachment.ticket, discards=0)


def _checkpoint(attachment: Attachment) -> Checkpoint:
    base = attachment.base
    answer = b"".join(answer_parts(_IDS))
    return attachment.checkpoint(
        keep=len(attachment.tokens),
        suffix=as_token_ids(range(_IDS)),
        synthetic=0,
        rendered_with=RenderedWith.of(None, {}) if base is None else base.rendered_with,
        events=(),
        completion=extract_completion(answer),
        record=TurnRecord(0.0, 0.0, "POST", b"{}", None, {}, answer, 200),
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        yield Path(folder)


@contextmanager
def _new_journal(path: Path, *, synced: bool) -> Iterator[Database]:
    create_empty(path)
    with closing(Database(path, synced=synced)) as database:
        database.bind(_IDENTITY)
        yield database
