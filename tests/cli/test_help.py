"""What a reader is told: help, version, and the page of options."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment
from trio_sessions import __version__
from trio_sessions.cli.app import main
from trio_sessions.cli.options import (
    CONFIG,
    DEMO_OPTIONS,
    ENGINE_OPTIONS,
    SAMPLES_OPTIONS,
    SERVE_OPTIONS,
    VERIFY_OPTIONS,
)
from trio_sessions.cli.reference import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("serve", (*SERVE_OPTIONS, CONFIG)),
        ("engine", ENGINE_OPTIONS),
        ("verify", VERIFY_OPTIONS),
        ("samples", SAMPLES_OPTIONS),
        ("demo", DEMO_OPTIONS),
    ],
)
def test_help_lists_every_option_with_its_default_and_meaning(capsys, monkeypatch, command, options):
    monkeypatch.setenv("COLUMNS", "400")
    assert main([command, "--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("Usage:")]
    for option in options:
        line = next(line for line in lines if f" {option.flag} " in line)
        assert option.meaning in line
        assert ("[required]" if option.required else f"[default: {option.default_text}]") in line
        assert (f"[env: {option.variable}]" in line) is (command == "serve")


def test_no_arguments_show_the_commands(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("serve", "engine", "verify", "samples", "demo"))


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"]])
def test_asking_imports_no_tokenizer_library_and_no_server(arguments):
    program = (
        "import sys\n"
        "from trio_sessions.cli import main\n"
        f"assert main({arguments!r}) == 0\n"
        "heavy = {'transformers', 'tokenizers', 'quart', 'hypercorn', 'httpx'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=clean_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - started < 5  # it takes a quarter of a second; machines differ


def test_the_page_of_options_is_in_step():
    assert PAGE.read_text(encoding="utf-8") == render_reference(), (
        "docs/options.md is out of date: python -m trio_sessions.cli.reference > docs/options.md"
    )
