"""Environment variables that set nothing are told of, not passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trio_sessions.cli.options import CONFIG, SERVE_OPTIONS
from trio_sessions.cli.variables import misspelt_variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRIO_SESSIONS_ENGINE_URL", "TRIO_SESSIONS_ENGINE"),
        ("TRIO_SESSIONS_PROT", "TRIO_SESSIONS_PORT"),
        ("TRIO_SESSIONS_MAX_BODY", "TRIO_SESSIONS_MAX_BODY_MB"),
        ("trio_sessions_port", "TRIO_SESSIONS_PORT"),
    ],
)
def test_the_nearest_option_is_named(name: str, meant: str) -> None:
    [text] = misspelt_variables(["PATH", name])
    assert text.startswith(f"{name} is no option")
    assert text.endswith(f"did you mean {meant}?")


def test_nothing_is_guessed_where_nothing_is_near() -> None:
    [text] = misspelt_variables(["TRIO_SESSIONS_QQQQQQ"])
    assert "did you mean" not in text


def test_what_sets_an_option_is_not_told_of() -> None:
    names = [option.variable for option in (*SERVE_OPTIONS, CONFIG)]
    assert misspelt_variables([*names, "PATH", "HOME", "OTHER_TRIO_SESSIONS_PORT"]) == []


def test_what_tests_are_told_by_is_no_misspelling() -> None:
    root = Path(__file__).parents[2]
    texts = [root / "CONTRIBUTING.md", *(root / "tests" / "agents").glob("*.py"), root / "tests/recovery/test_kills.py"]
    names = set(re.findall(r"TRIO_SESSIONS_(?:AGENTS|KILLS)\w*", "".join(text.read_text() for text in texts)))
    assert len(names) == 4
    assert misspelt_variables(names) == []


def test_serve_warns_before_anything_else(run) -> None:
    done = run("serve", environment={"TRIO_SESSIONS_PROT": "1", "TRIO_SESSIONS_MODE": "bush"})
    warning, complaint = done.err.splitlines()
    assert warning == (
        "trio-sessions: warning: TRIO_SESSIONS_PROT is no option of trio-sessions serve and is ignored; "
        "did you mean TRIO_SESSIONS_PORT?"
    )
    assert complaint.startswith("trio-sessions: error: --mode")
    assert done.status == 2


def test_commands_that_read_no_environment_warn_of_none(run) -> None:
    done = run("engine", "--fault", "gremlins", environment={"TRIO_SESSIONS_PROT": "1"})
    assert "warning" not in done.err
