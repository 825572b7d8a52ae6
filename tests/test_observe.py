"""A log that cannot be written, or that nobody reads, is no turn's concern."""

from __future__ import annotations

import io
import threading

from trio_sessions.observe import LogWriter

PATIENCE = 10


class _Stalled(io.StringIO):
    """Blocks every write until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        self.began.set()
        assert self.gate.wait(PATIENCE)
        return super().write(text)


class _Broken(io.StringIO):
    """A pipe whose reader is gone, once."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def write(self, text: str) -> int:
        if not self.failed:
            self.failed = True
            raise BrokenPipeError
        return super().write(text)


def test_lines_are_written_in_order() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    for number in range(100):
        writer.info(f"line {number}")
    writer.flush(seconds=PATIENCE)
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_a_reader_that_stalls_costs_lines_not_time() -> None:
    stream = _Stalled()
    writer = LogWriter(stream, waiting=3)
    writer.info("first")
    assert stream.began.wait(PATIENCE)
    for number in range(100):
        writer.info(f"line {number}")
    stream.gate.set()
    writer.flush(seconds=PATIENCE)
    assert stream.getvalue().splitlines() == ["first", "line 0", "line 1", "line 2"]


def test_a_broken_pipe_loses_the_line_and_nothing_else() -> None:
    stream = _Broken()
    writer = LogWriter(stream)
    writer.info("lost")
    writer.info("kept")
    writer.flush(seconds=PATIENCE)
    assert stream.getvalue() == "kept\n"
