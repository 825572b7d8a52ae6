"""What the kernel says about other processes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["cpu_seconds", "pids_of_session", "rss_mib"]

_SESSION_FIELD = 3


def pids_of_session(leader: int) -> list[int]:
    """The process that leads a session of processes, and all it has started in it."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may hold anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[_SESSION_FIELD]) == leader:
                pids.append(int(entry.name))
    return sorted(pids)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that processes have used, user and system, all their threads.

    Raises:
        ProcessLookupError: one of them has ended.
    """
    # The clock behind utime and stime of /proc/PID/stat, which counts in hundredths of a second.
    return sum(_clock(pid) for pid in pids)


def rss_mib(pids: Iterable[int]) -> float:
    """Resident memory of processes.

    Raises:
        FileNotFoundError: one of them has ended.
    """
    return sum(_rss_kib(pid) for pid in pids) / 1024


def _clock(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
