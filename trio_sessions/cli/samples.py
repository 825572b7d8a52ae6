"""``trio-sessions samples``: the training samples of sessions, fetched and written to a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from trio_sessions.cli.complaint import CRASHED, announce, complain
from trio_sessions.cli.progress import progress_bar
from trio_sessions.client import AsyncClient, ClientError, SamplesReply
from trio_sessions.client.transport import check_api_key
from trio_sessions.errors import ConfigurationError
from trio_sessions.export import SCHEMA_VERSION, Format, SampleExport

__all__ = ["Tally", "export_and_report"]

# So many sessions are assembled at the same time, and held until they are written.
_AT_ONCE: Final = 8
_EMPTY: Final = {"no_records": "no turn was recorded", "all_truncated": "nothing is left to train"}


@dataclass
class Tally:
    """What came of an export so far.

    Attributes:
        sessions: written, those without samples included.
        samples: written.
        tokens: ids in them.
        trained: ids of them that are trained.
        empty: sessions without samples, and why.
        failed: sessions that are not in the file, and why.
    """

    sessions: int = 0
    samples: int = 0
    tokens: int = 0
    trained: int = 0
    empty: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def wrote(self, session_id: str, reply: SamplesReply) -> None:
        """Count a session that is in the file."""
        self.sessions += 1
        self.samples += len(reply.samples)
        self.tokens += sum(len(sample.tokens) for sample in reply.samples)
        self.trained += sum(int(sample.loss_mask.sum()) for sample in reply.samples)
        if reply.empty_reason is not None:
            self.empty[session_id] = _EMPTY[reply.empty_reason]

    def summary(self, path: Path, format_: str) -> str:
        """What is in the file, in lines."""
        lines = [
            f"{path}: {_count(self.samples, 'sample')} of {_count(self.sessions, 'session')}, "
            f"{_count(self.tokens, 'id')}, {self.trained:,} trained ({format_}, schema version {SCHEMA_VERSION})",
            *(f"no samples of {session_id}: {reason}" for session_id, reason in self.empty.items()),
        ]
        return "".join(f"{line}\n" for line in lines)


async def export_and_report(
    *,
    session: Sequence[str],
    out: Path,
    format: Format | None,  # noqa: A002 - the option's name
    gateway: str,
    api_key: str | None,
    max_seq_len: int | None,
    force: bool,
) -> int:
    """Write the samples of sessions and say what came of it; the exit status.

    Raises:
        ConfigurationError: an option is wrong; nothing is asked for or written then.
    """
    # What an agent was given is the URL of the session.
    sessions = list(dict.fromkeys(re.sub(r"^https?://.*/sessions/([^/]+).*", r"\1", name) for name in session))
    if max_seq_len is not None and max_seq_len < 1:
        raise ConfigurationError(f"--max-seq-len must be at least 1, got {max_seq_len}")
    with _about("--api-key"):
        api_key = check_api_key(api_key)
    with _about("--gateway"):
        client = AsyncClient(gateway, api_key=api_key)
    tally = Tally()
    async with client:
        try:
            with _about("--out"), SampleExport(out, format, replace=force) as export:
                # A gateway that is not there is one failure, not one a session.
                await client.health()
                with progress_bar(f"Exporting {_count(len(sessions), 'session')} ...", len(sessions)) as advance:
                    await _export(client, sessions, export, tally, max_seq_len, advance)
                for session_id in filter(tally.failed.get, sessions):
                    complain(f"session {session_id}: {tally.failed[session_id]}")
                if not tally.sessions:
                    complain(f"every session failed; {out} is not written")
                    return CRASHED
                await trio.to_thread.run_sync(export.publish)
        except ClientError as error:
            complain(str(error))
            return CRASHED
        except OSError as error:
            complain(f"cannot write {out}: {error.strerror or error}")
            return CRASHED
    announce(tally.summary(out, export.format))
    return CRASHED if tally.failed else 0


async def _export(
    client: AsyncClient,
    sessions: Sequence[str],
    export: SampleExport,
    tally: Tally,
    max_seq_len: int | None,
    advance: Callable[[], None],
) -> None:
    replies: dict[str, SamplesReply] = {}

    async def fetch(session_id: str) -> None:
        try:
            replies[session_id] = await client.attach(session_id).samples(max_seq_len=max_seq_len)
        except ClientError as error:
            tally.failed[session_id] = str(error)
        advance()

    for start in range(0, len(sessions), _AT_ONCE):
        batch = sessions[start : start + _AT_ONCE]
        async with trio.open_nursery() as nursery:
            for session_id in batch:
                nursery.start_soon(fetch, session_id)
        for session_id in batch:
            if (reply := replies.pop(session_id, None)) is None:
                continue
            try:
                await trio.to_thread.run_sync(export.add, session_id, reply)
            except ValueError as error:
                tally.failed[session_id] = str(error)
            else:
                tally.wrote(session_id, reply)


@contextmanager
def _about(option: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from error


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
