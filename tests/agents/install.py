"""Agents, installed once into a cache folder."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "TRIO_SESSIONS_AGENTS_CACHE"
LIMIT_SECONDS = 600

_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT"
    r"|NewConnectionError|NameResolutionError|ConnectTimeoutError|Temporary failure in name resolution"
)

# Two attempts, one second apart.
_NPM_RETRIES = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000")
_unavailable: dict[tuple[str, Path], str] = {}


class Unavailable(Exception):
    """It cannot be installed here, for no fault of the project's; the text says why."""


@dataclass(frozen=True)
class Installed:
    """Where the programs of packages are.

    Attributes:
        bin: folder of them.
        seconds: how long installing them took; 0 when they were there.
    """

    bin: Path
    seconds: float


def cache_folder() -> Path:
    """Where agents are kept between runs."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "trio-sessions" / "agents"


def install(command: str, cache: Path) -> Installed:
    """What ``command`` installs, in a folder of its own below ``cache``.

    Args:
        command: ``npm install --global PACKAGES`` or ``pip install PACKAGES``, as a person would say it.
        cache: from ``cache_folder``.

    Raises:
        Unavailable: there is no npm, or no registry can be reached.
        AssertionError: it failed in another way; the text is what was printed.
    """
    if known := _unavailable.get((command, cache)):
        raise Unavailable(known)
    try:
        return _install(command, cache)
    except Unavailable as reason:
        # Many tests need the same agent, and waiting for a registry takes a while.
        _unavailable[command, cache] = str(reason)
        raise


def _install(command: str, cache: Path) -> Installed:
    installer, packages = _parsed(command)
    folder = cache / re.sub(r"[^\w.=-]+", "_", " ".join([installer, *packages]))
    programs = folder / ("node_modules/.bin" if installer == "npm" else "bin")
    if installer == "npm" and not (shutil.which("node") and shutil.which("npm")):
        raise Unavailable("node and npm are not installed")
    cache.mkdir(parents=True, exist_ok=True)
    done = folder / ".installed"
    # Two runs at once would install into each other.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return Installed(programs, 0.0)
        # What is there was left half done.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        started = time.monotonic()
        if installer == "npm":
            _run("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *_NPM_RETRIES, *packages)
        else:
            _run(sys.executable, "-m", "venv", str(folder))
            _run(str(programs / "python"), "-m", "pip", "install", "--quiet", "--retries=1", *packages)
        done.touch()
        return Installed(programs, time.monotonic() - started)


def _parsed(command: str) -> tuple[str, list[str]]:
    match command.replace("'", "").split():
        case ["npm", "install", "--global", *packages] if packages:
            return "npm", packages
        case ["pip", "install", *packages] if packages:
            return "pip", packages
    raise AssertionError(f"not a known way to install something: {command}")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise AssertionError(f"{command} took more than {LIMIT_SECONDS} s: {expired.stderr!r}") from expired
    if done.returncode:
        printed = done.stdout + done.stderr
        if found := _UNREACHABLE.search(printed):
            raise Unavailable(
                f"{'npm' if command[0] == 'npm' else 'pip'}'s registry cannot be reached: {found.group()}"
            )
        raise AssertionError(f"{' '.join(command)} failed with status {done.returncode}:\n{printed}")
