"""Writers: how rows become the bytes of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias, get_args

import numpy as np

from trio_sessions.core.samples import Sample, SamplesReply, encode_samples_in_pieces
from trio_sessions.errors import ConfigurationError, LibraryMissing
from trio_sessions.export.schema import COLUMNS, SCHEMA_VERSION, rows_of

__all__ = ["FORMATS", "Format", "SampleWriter", "format_of", "open_writer"]

Format: TypeAlias = Literal["safetensors", "parquet", "jsonl"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_EXTRA: Final = "trio-sessions[export]"
# Small groups make Parquet files slow to read, large ones take memory.
_GROUP_BYTES: Final = 64_000_000


class SampleWriter(Protocol):
    """Writes sessions to a file that it is given."""

    def add(self, session_id: str, reply: SamplesReply) -> None:
        """Write a session's samples; on ``ValueError`` nothing of the session is written."""

    def finish(self) -> None:
        """Write what comes last."""

    def abandon(self) -> None:
        """Let go of the file, which is thrown away."""


def format_of(path: Path) -> Format:
    """The format that the suffix of ``path`` names.

    Raises:
        ConfigurationError: it names none.
    """
    for name in FORMATS:
        if path.suffix.lower() == f".{name}":
            return name
    suffixes = ", ".join(f".{name}" for name in FORMATS)
    raise ConfigurationError(f"{path} does not end in one of {suffixes}; name the format with --format")


def open_writer(file: BinaryIO, format_: Format) -> SampleWriter:
    """The writer of a format.

    Raises:
        LibraryMissing: the format needs a library that is not installed; the text says which.
    """
    return _WRITERS[format_](file)


class JsonLinesWriter:
    """One JSON object a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, session_id: str, reply: SamplesReply) -> None:
        """See ``SampleWriter.add``."""
        lines = [json.dumps(row, ensure_ascii=False, default=_listed) for row in rows_of(session_id, reply)]
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def finish(self) -> None:
        """Nothing comes last."""

    def abandon(self) -> None:
        """There is nothing to let go of."""


class ParquetWriter:
    """Row groups of several sessions.

    Args:
        file: where to.
        group_bytes: how much is gathered, about, before a group is written.

    Raises:
        LibraryMissing: pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO, *, group_bytes: int = _GROUP_BYTES) -> None:
        try:
            # An extra, and slow to import.
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise LibraryMissing(f"Parquet files need pyarrow: pip install '{_EXTRA}'") from error
        self._arrow = pyarrow
        self._group_bytes = group_bytes
        types = {
            "int64": pyarrow.int64(),
            "float64": pyarrow.float64(),
            "string": pyarrow.string(),
            "list<int64>": pyarrow.list_(pyarrow.int64()),
            "list<int32>": pyarrow.list_(pyarrow.int32()),
            "list<uint8>": pyarrow.list_(pyarrow.uint8()),
            "list<float64>": pyarrow.list_(pyarrow.float64()),
            "list<string>": pyarrow.list_(pyarrow.string()),
        }
        self._schema = pyarrow.schema(
            [pyarrow.field(column.name, types[column.type], nullable=column.nullable) for column in COLUMNS],
            metadata={"trio_sessions.schema_version": str(SCHEMA_VERSION)},
        )
        self._parquet = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._batches: list[Any] = []
        self._bytes = 0

    def add(self, session_id: str, reply: SamplesReply) -> None:
        """See ``SampleWriter.add``."""
        rows = rows_of(session_id, reply)
        columns = [self._arrow.array([row[field.name] for row in rows], type=field.type) for field in self._schema]
        batch = self._arrow.RecordBatch.from_arrays(columns, schema=self._schema)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._group_bytes:
            self._flush()

    def finish(self) -> None:
        """Write the rows that are left, and the footer."""
        if self._batches:
            self._flush()
        self._parquet.close()

    def abandon(self) -> None:
        """Close the library's writer, which would otherwise do so once its file is closed."""
        self._parquet.close()

    def _flush(self) -> None:
        table = self._arrow.Table.from_batches(self._batches, schema=self._schema)
        if table.num_rows:
            self._parquet.write_table(table, row_group_size=table.num_rows)
        self._batches, self._bytes = [], 0


class SafetensorsWriter:
    """The payload of the contract, with the samples of all sessions in it; holds them until the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._samples: list[Sample] = []
        self._sessions: list[dict[str, Any]] = []

    def add(self, session_id: str, reply: SamplesReply) -> None:
        """See ``SampleWriter.add``."""
        # Written at the end; what cannot be written has to be found now.
        rows_of(session_id, reply)
        self._sessions.append(
            {
                "session_id": session_id,
                "start": len(self._samples),
                "end": len(self._samples) + len(reply.samples),
                "empty_reason": reply.empty_reason,
                "metadata": reply.session_metadata,
            }
        )
        self._samples += reply.samples

    def finish(self) -> None:
        """Write everything."""
        metadata = {"schema_version": SCHEMA_VERSION, "sessions": self._sessions}
        self._file.writelines(encode_samples_in_pieces(self._samples, metadata, with_reward=True))

    def abandon(self) -> None:
        """There is nothing to let go of."""


_WRITERS: Final[Mapping[Format, Callable[[BinaryIO], SampleWriter]]] = {
    "safetensors": SafetensorsWriter,
    "parquet": ParquetWriter,
    "jsonl": JsonLinesWriter,
}


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"not JSON: {type(value).__name__}")
