"""One export: a file that is there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from trio_sessions.core.samples import SamplesReply
from trio_sessions.errors import ConfigurationError
from trio_sessions.export.formats import Format, format_of, open_writer

__all__ = ["SampleExport"]


class SampleExport:
    """Writes samples beside ``path`` and gives the file its name at the end. Use as a context manager.

    Unless ``publish`` was called, nothing is left of it.

    Args:
        path: the file.
        format: of its contents; None goes by the suffix.
        replace: whether a file that is there already is replaced.

    Attributes:
        path: the file.
        format: of its contents.

    Raises:
        ConfigurationError: the path or its suffix cannot be used, or names a file that is not to be replaced.
        LibraryMissing: the format needs a library that is not installed.
    """

    def __init__(self, path: Path, format: Format | None = None, *, replace: bool = False) -> None:  # noqa: A002
        self.path = path
        self.format: Format = format_of(path) if format is None else format
        self._replace = replace
        self._check()
        self._partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
        try:
            self._file = self._partial.open("xb")
        except OSError as error:
            raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._writer = open_writer(self._file, self.format)
        except BaseException:
            self._remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._file.closed:
            with suppress(OSError):
                self._writer.abandon()
        self._remove()

    def add(self, session_id: str, reply: SamplesReply) -> None:
        """Write the samples of a session.

        Raises:
            ValueError: they cannot be written; nothing of them was.
            OSError: the file cannot be written.
        """
        self._writer.add(session_id, reply)

    def publish(self) -> None:
        """Complete the file and give it its name.

        Raises:
            ConfigurationError: somebody else's file has appeared there.
            OSError: the file cannot be written.
        """
        self._writer.finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._replace:
            self._check()
            self._partial.replace(self.path)
            return
        try:
            # Unlike a rename, a link never replaces anything.
            self.path.hardlink_to(self._partial)
        except FileExistsError:
            raise self._exists() from None
        except OSError:
            # Not every file system has links; what is left is a moment between looking and renaming.
            self._check()
            self._partial.replace(self.path)

    def _check(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise ConfigurationError(f"{self.path} is not a file")
        if self.path.exists() and not self._replace:
            raise self._exists()

    def _exists(self) -> ConfigurationError:
        return ConfigurationError(f"{self.path} exists already; --force replaces it")

    def _remove(self) -> None:
        # A full disk shows once more when what is buffered is flushed.
        with suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)
