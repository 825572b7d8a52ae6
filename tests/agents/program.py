"""A recipe, run as a person would run it, but for its home and its network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.agents.recipes import Recipe

# Nobody listens there: whoever looks up something outside is refused at once.
_NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Ended:
    """A program that has ended.

    Attributes:
        status: its exit status.
        stdout: what it printed.
        stderr: what it complained of.
    """

    status: int
    stdout: str
    stderr: str


async def run(
    recipe: Recipe,
    *,
    session_url: str,
    task: str,
    folder: Path,
    programs: Path | None,
    environment: Mapping[str, str],
    seconds: float,
) -> Ended:
    """Run a recipe in an empty home, and end it with all that it started.

    Args:
        recipe: of a shell, or of Python.
        session_url: what it is given.
        task: what it is asked to do.
        folder: for its home and what it prints; it works in ``folder / "work"``.
        programs: folder of programs that go before all others; None for Python as it is.
        environment: goes before what is set here.
        seconds: how long it may take.

    Raises:
        trio.TooSlowError: it took longer.
    """
    for name in ("home", "work", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    path = os.environ["PATH"] if programs is None else f"{programs}{os.pathsep}{os.environ['PATH']}"
    variables = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PATH": path,
        "LANG": "C.UTF-8",
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": "127.0.0.1",
        "SESSION": session_url,
        "TASK": task,
        **environment,
    }
    if recipe.language == "sh":
        command = ["bash", "-euc", recipe.program]
    else:
        # Some libraries read the source of what they are given.
        script = folder / "recipe.py"
        script.write_text(f"session_url, task = {session_url!r}, {task!r}\n{recipe.program}", encoding="utf-8")
        command = [sys.executable if programs is None else str(programs / "python"), str(script)]
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder / "work",
            env=variables,
            start_new_session=True,
        )
        try:
            with trio.fail_after(seconds):
                status = await process.wait()
        finally:
            # The group outlives its leader as long as a child of it runs.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()
    return Ended(status, *((folder / name).read_text(errors="replace") for name in ("stdout", "stderr")))
