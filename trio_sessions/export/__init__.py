"""Samples as files: safetensors, Parquet or JSON Lines, in a schema that has a version.

The schema is written down in ``docs/samples.md`` and, as data, in ``schema``.
"""

from trio_sessions.export.export import SampleExport
from trio_sessions.export.formats import FORMATS, Format, format_of
from trio_sessions.export.schema import COLUMNS, SCHEMA_VERSION, Column, rows_of

__all__ = ["COLUMNS", "FORMATS", "SCHEMA_VERSION", "Column", "Format", "SampleExport", "format_of", "rows_of"]
