"""Start the command as a real process, find out where it listens, and stop it by its id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

START_SECONDS = 60
STOP_SECONDS = 30
_URL = re.compile(r"https?://127\.0\.0\.1:\d+")


@dataclass
class Running:
    """A process that listens.

    Attributes:
        process: the child.
        url: where it listens.
        output: what it has written to stdout so far.
        log: what it has written to stderr so far.
    """

    process: subprocess.Popen[str]
    url: str = ""
    output: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def command(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """``trio-sessions`` with ``arguments``, once it has printed its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", "trio_sessions.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        running = Running(process)
        listening = threading.Event()
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=_read, args=(process.stdout, running.output, listening)),
            threading.Thread(target=_read, args=(process.stderr, running.log, None)),
        ]
        for reader in readers:
            reader.start()
        try:
            assert listening.wait(START_SECONDS), f"did not start: {''.join(running.log)}"
            found = _URL.search("".join(running.output))
            assert found is not None, f"ended: {''.join(running.output)}{''.join(running.log)}"
            running.url = found.group()
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            for reader in readers:
                reader.join()


def _read(stream: Iterator[str], lines: list[str], listening: threading.Event | None) -> None:
    for line in stream:
        lines.append(line)
        if listening is not None and _URL.search(line):
            listening.set()
    if listening is not None:
        listening.set()
