"""The README's snippets run as they stand."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.processes import command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHELL = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
PYTHON = "".join(block for language, block in BLOCKS if language == "python")


def test_the_python_snippets_run_one_after_the_other_against_a_gateway(tmp_path: Path) -> None:
    # An empty variable is none: the command as it is given there, but for the port.
    with contextlib.chdir(tmp_path), command("serve", "--port", "0", env={"TRIO_SESSIONS_STORE": ""}) as gateway:
        program = PYTHON.replace("http://127.0.0.1:8700", gateway.url)
        assert program != PYTHON
        program += "\nassert 0 < sum(loss_mask) < len(token_ids)\nassert min(log_probs) < 0\n"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "sessions down in `trio-sessions.journal`" in README
    # The snippets delete their sessions.
    with contextlib.closing(sqlite3.connect(tmp_path / "trio-sessions.journal")) as journal:
        assert journal.execute("SELECT count(*) FROM identity").fetchone() == (1,)


def test_ci_runs_exactly_the_two_commands() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install = [line for line in SHELL if line.startswith("pip install")]
    assert install == ["pip install . && trio-sessions demo", "pip install -e '.[test]' && python -m pytest"]
    # pip is told to be quiet in CI, and what fails ends the run, which it would not on the left of `&&`; the commands
    # are otherwise the same to the letter.
    assert [line for line in ci.splitlines() if line.startswith("pip install")] == [
        line.replace("pip install", "pip install --quiet") + " || exit 1" for line in install
    ]


def test_every_other_command_exists() -> None:
    commands = [line for line in SHELL if line.startswith("trio-sessions")]
    assert commands == [
        "trio-sessions serve",
        "trio-sessions serve --engine http://127.0.0.1:30000 --tokenizer Qwen/Qwen3-8B",
    ]


def test_the_version_is_the_changelogs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    from trio_sessions import __version__

    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
