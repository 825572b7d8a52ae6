"""The table of limits says what the options, the errors and the metrics are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from trio_sessions.cli.options import SERVE_OPTIONS
from trio_sessions.core.json import MAX_NESTING
from trio_sessions.errors import SessionError
from trio_sessions.observe import ErrorLimit, Limit
from trio_sessions.web.errors import status_of
from trio_sessions.web.limits import LIMIT_OF

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
OPTIONS = {option.flag: option for option in SERVE_OPTIONS}


@dataclass(frozen=True)
class Row:
    """A row of the table; what is empty there is empty here."""

    option: str
    default: str
    refused: str
    status: str
    limit: str


ROWS = [
    Row(*(cell.strip().strip("`") for cell in line.strip("|").split("|")))
    for line in PAGE.splitlines()
    if line.startswith(("| `--", "| none"))
]


def test_every_limit_that_is_counted_has_one_row() -> None:
    assert sorted(row.limit for row in ROWS if row.limit) == sorted(get_args(Limit))


@pytest.mark.parametrize("row", [row for row in ROWS if row.option.startswith("--")], ids=lambda row: row.option)
def test_a_row_has_the_default_of_its_option(row: Row) -> None:
    assert OPTIONS[row.option].default_text.strip("`") == row.default


@pytest.mark.parametrize("kind", LIMIT_OF, ids=lambda kind: kind.__name__)
def test_a_row_has_the_status_of_its_error(kind: type[SessionError]) -> None:
    [row] = [row for row in ROWS if row.limit == LIMIT_OF[kind]]
    assert row.status == str(status_of(kind.__new__(kind)))


def test_every_limit_that_errors_tell_of_is_one_of_one_error() -> None:
    assert sorted(LIMIT_OF.values()) == sorted(get_args(ErrorLimit))


def test_what_is_no_option_is_what_it_is() -> None:
    assert [row.option for row in ROWS if row.limit == "json_depth"] == [f"none: {MAX_NESTING} levels"]


def test_every_option_that_is_named_exists() -> None:
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= OPTIONS.keys()
