"""The recipes of docs/agents.md, with the agents themselves: a tool turn and a final turn are one exact line.

The embedded engine is told which tool to call with which arguments, because an agent would run whatever it samples.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio

from tests.agents.checks import assert_one_line, message, tool_result
from tests.agents.engine import Call
from tests.agents.install import Installed, Unavailable, cache_folder, install
from tests.agents.program import run
from tests.agents.recipes import recipe
from tests.agents.stack import stack

LIMIT_SECONDS = 120.0
SLOW_SECONDS = 2.0
TASK = "What is in note.txt?"
COMMAND = "cat note.txt"

CHAT, MESSAGES, RESPONSES = "v1/chat/completions", "v1/messages", "v1/responses"


@dataclass(frozen=True)
class Agent:
    """An agent of the document, and what is known of it.

    Attributes:
        section: where its recipe is.
        calls: what it is made to call, all of it harmless; the first reads ``note.txt``.
        path: where its turns have to arrive.
        modes: of the gateway.
        replace: text of the recipe, and what a variant has in its place.
        environment: what a variant sets.
        thread: header with the id of its conversation.
        says: whether its last turn says something, rather than calling a tool that ends the task.
        bundled: whether the test environment has it.
        optional: whether it is tried only on request.
    """

    section: str
    calls: Sequence[Call]
    path: str
    modes: Sequence[str] = ("linear", "tree")
    replace: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    thread: str | None = None
    says: bool = True
    bundled: bool = False
    optional: bool = False
