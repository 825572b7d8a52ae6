"""The files of a journal, as they are told apart before SQLite touches them.

Source of the layouts: https://www.sqlite.org/fileformat2.html, "the database header" and "the WAL file format".
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trio_sessions.errors import ConfigurationError

__all__ = [
    "APPLICATION_ID",
    "LOG",
    "SCHEMA_VERSION",
    "WrittenAhead",
    "beside",
    "create_empty",
    "read_ahead",
    "require_ours",
]

APPLICATION_ID: Final = int.from_bytes(b"t3sj")
SCHEMA_VERSION: Final = 1
LOG: Final = "-wal"

_OWNERS_ALONE: Final = 0o600
_SHARE_OF_MEMORY: Final = 0.5
_CHUNK_BYTES: Final = 4 * 2**20
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_VERSION_AT: Final = 60
_APPLICATION_AT: Final = 68
_WAL_HEADER: Final = struct.Struct(">8I")
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)
_FRAME_HEADER: Final = struct.Struct(">6I")


def beside(path: Path, suffix: str) -> Path:
    """The file whose name is that of ``path`` and ``suffix``."""
    return path.with_name(path.name + suffix)


def create_empty(path: Path) -> None:
    """Make the file, where it is not there; it will hold conversations, so that its owner alone may read it.

    Raises:
        ConfigurationError: it cannot be made, or is no file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _OWNERS_ALONE)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"--store {path} is no file; give one, or --store memory")
            if not status.st_size:
                # It may have been there before.
                os.fchmod(descriptor, _OWNERS_ALONE)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"--store {path} cannot be opened: {error.strerror}; give a file that can be written, or --store memory"
        ) from error


def require_ours(path: Path) -> bool:
    """Whether the file is a journal already; an empty one is to become one. It is read and not changed.

    Raises:
        ConfigurationError: it is something else, or of a newer version.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        return False
    application, version = (
        int.from_bytes(header[start : start + 4]) if len(header) == _HEADER_BYTES else -1
        for start in (_APPLICATION_AT, _VERSION_AT)
    )
    if not header.startswith(_MAGIC) or application != APPLICATION_ID:
        raise ConfigurationError(f"--store {path} is no journal of trio-sessions, and was not touched; give another")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"--store {path} was written by a newer trio-sessions (journal version {version}, this one knows up to "
            f"{SCHEMA_VERSION}) and was not touched; serve with that one, or give another --store"
        )
    return True


def read_ahead(path: Path) -> None:
    """Have the system take the file into memory in the order in which it lies on the disk, if memory has room for it.

    SQLite reads it in the order of sessions, which takes several times as long from a disk.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # What cannot be read is SQLite's to say.
    with suppress(OSError), path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > memory * _SHARE_OF_MEMORY:
            return
        chunk = bytearray(_CHUNK_BYTES)
        while file.readinto(chunk):
            pass


@dataclass(frozen=True, slots=True)
class WrittenAhead:
    """What the log of a journal's latest transactions holds.

    Attributes:
        size: bytes of the file.
        readable: whether its head is as it was written; without one nothing in it counts.
        frame: bytes that one page takes in it.
        frames: pages that were written since it was begun, whole or not.
        last_commit: how many of them the last transaction that was finished ends with; 0 for none.
    """

    size: int = 0
    readable: bool = True
    frame: int = 0
    frames: int = 0
    last_commit: int = 0

    @classmethod
    def of(cls, path: Path) -> WrittenAhead:
        """What is beside ``path``. The checksums of pages are SQLite's business."""
        try:
            log = beside(path, LOG).open("rb")
        except FileNotFoundError:
            return cls()
        with log:
            size = os.fstat(log.fileno()).st_size
            header = log.read(_WAL_HEADER.size)
            if len(header) < _WAL_HEADER.size:
                # It was just being begun.
                return cls(size)
            magic, _, page, _, salt1, salt2, *checksum = _WAL_HEADER.unpack(header)
            if magic not in _WAL_MAGIC or not page or checksum != _checksum(header[:-8], swapped=magic & 1 == 0):
                return cls(size, readable=False)
            frame = _FRAME_HEADER.size + page
            frames = last_commit = 0
            for number, start in enumerate(range(_WAL_HEADER.size, size, frame), start=1):
                log.seek(start)
                head = log.read(_FRAME_HEADER.size)
                # Others were left by an earlier log, which had other salts.
                if len(head) == _FRAME_HEADER.size and _FRAME_HEADER.unpack(head)[2:4] == (salt1, salt2):
                    frames = number
                    # A page that is not all there never was.
                    if _FRAME_HEADER.unpack(head)[1] and start + frame <= size:
                        last_commit = number
            return cls(size, True, frame, frames, last_commit)


def _checksum(data: bytes, *, swapped: bool) -> list[int]:
    first = second = 0
    words = struct.unpack(f"{'<' if swapped else '>'}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return [first, second]
