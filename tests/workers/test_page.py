"""The commands of docs/workers.md; its snippet runs in ``test_processes``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from trio_sessions.cli.options import SERVE_OPTIONS
from trio_sessions.cli.resolve import resolve_settings

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHELL = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]


def test_the_commands_are_ones() -> None:
    fields = {option.flag: option.field for option in SERVE_OPTIONS}
    assert len(SHELL) == 2
    for line in SHELL:
        program, name, *rest = shlex.split(line)
        assert (program, name) == ("trio-sessions", "serve")
        arguments = {fields[flag]: value for flag, value in zip(rest[::2], rest[1::2], strict=True)}
        settings = resolve_settings(arguments, environment={}).settings
        assert settings.workers == 4
        assert settings.worker_port_base in (None, 9100)
