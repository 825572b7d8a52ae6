"""The command as a process, with an environment that sets nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

COMMAND = [sys.executable, "-m", "trio_sessions.cli"]


@dataclass(frozen=True)
class Finished:
    """What a process left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Finished]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIO_SESSIONS_")}
    return {**kept, "COLUMNS": "140", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}


@pytest.fixture
def run(tmp_path) -> Run:
    """Run the command to its end, in an empty folder."""

    def run_command(*arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 30) -> Finished:
        done = subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env=clean_environment(environment),
            timeout=timeout,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run_command
