"""The recipes of docs/agents.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")

_SECTION = re.compile(r"^###? ([^\n]+)\n(.*?)(?=^###? |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = dict(_SECTION.findall(PAGE))


@dataclass(frozen=True)
class Recipe:
    """How a session is given to an agent.

    Attributes:
        install: the command that installs it.
        language: of the program, ``sh`` or ``python``.
        program: what runs it, where ``SESSION`` and ``TASK`` are set.
        options: of the gateway, as on its command line.
    """

    install: str
    language: str
    program: str
    options: Sequence[str]


def blocks(title: str) -> list[tuple[str, str]]:
    """The code of a section: language and text."""
    found: list[tuple[str, str]] = _BLOCK.findall(SECTIONS[title])
    return found


def recipe(title: str) -> Recipe:
    """The recipe in a section: a command that installs, and a program."""
    [(language, install), (program_language, program)] = blocks(title)
    assert language == "sh"
    [install] = install.splitlines()
    [options] = re.findall(r"^Gateway: `trio-sessions serve ?(.*?)`", SECTIONS[title], re.MULTILINE)
    return Recipe(install, program_language, program, options.split())
