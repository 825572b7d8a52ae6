"""Processes that end with the block that started them, whatever ends the block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

__all__ = ["ProcessFailed", "Stopped", "run_async", "running", "talk"]

_T = TypeVar("_T")

_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 5
_URL: Final = re.compile(r"http://[\w.]+:\d+")
_KEPT_PIECES: Final = 2000
_LAST_WORDS_SECONDS: Final = 1.0


class ProcessFailed(RuntimeError):
    """A process of the benchmark ended, or said something else than it should; the text has its last words."""


class Stopped(BaseException):
    """The benchmark was told to stop by a signal.

    Attributes:
        status: the exit status that says so.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


class _LastWords:
    """What a process wrote last; ``str`` gives it as text."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque(maxlen=_KEPT_PIECES)
        self._complete = trio.Event()

    def __str__(self) -> str:
        return b"".join(self._pieces).decode(errors="replace").strip()

    async def collect(self, stream: trio.abc.ReceiveStream) -> None:
        """Read a stream to its end."""
        async for piece in stream:
            self._pieces.append(bytes(piece))

    async def collect_errors(self, stream: trio.abc.ReceiveStream) -> None:
        """The same; behind the end of standard error comes nothing."""
        await self.collect(stream)
        self._complete.set()

    async def complete(self) -> None:
        """Wait for what an ended process has written; what it started may hold the stream open, so not for long."""
        with trio.move_on_after(_LAST_WORDS_SECONDS):
            await self._complete.wait()


@dataclass(frozen=True, slots=True)
class Running:
    """A server.

    Attributes:
        pid: of the process that was started; it leads a session of its own.
        url: where it listens.
    """

    pid: int
    url: str
    _last_words: _LastWords

    def said(self) -> str:
        """The last that it wrote to stdout or stderr."""
        return str(self._last_words)


def run_async(function: Callable[[], Awaitable[_T]]) -> _T:
    """``trio.run``, in which SIGINT, SIGTERM and SIGHUP cancel ``function``, so that what it started is stopped.

    Raises:
        Stopped: one of them came.
    """
    return trio.run(_until_signal, function)


async def _until_signal(function: Callable[[], Awaitable[_T]]) -> _T:
    results: list[_T] = []
    received: list[int] = []
    try:
        async with trio.open_nursery() as nursery:

            async def watch(*, task_status: trio.TaskStatus[None]) -> None:
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                    task_status.started()
                    async for number in signals:
                        received.append(number)
                        nursery.cancel_scope.cancel()

            await nursery.start(watch)
            results.append(await function())
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Nurseries are this module's own affair.
        raise _innermost(group) from None
    if received:
        raise Stopped(received[0])
    return results[0]


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def running(command: Sequence[str], *, what: str) -> AsyncIterator[Running]:
    """A server, from when it has printed its URL until the block ends.

    Raises:
        ProcessFailed: it ended instead, or took too long.
    """
    async with _started(command) as (process, last_words):
        assert process.stdout is not None
        url = ""
        with trio.move_on_after(_START_SECONDS):
            url = await _url(process.stdout)
        if not url:
            await last_words.complete()
            raise ProcessFailed(f"{what} did not start:\n{last_words}")
        async with trio.open_nursery() as nursery:
            # What nobody reads would stop it one day.
            nursery.start_soon(last_words.collect, process.stdout)
            yield Running(process.pid, url, last_words)
            if process.poll() is not None:
                await last_words.complete()
                raise ProcessFailed(f"{what} ended with status {process.returncode}:\n{last_words}")
            nursery.cancel_scope.cancel()


async def talk(
    command: Sequence[str], *, what: str, send: bytes, on_line: Callable[[bytes], None], until: trio.Event | None = None
) -> bytes:
    """Run a process that reads ``send``, prints lines and ends.

    Args:
        command: what to run.
        what: its name in errors.
        send: its standard input.
        on_line: gets every line but the last as it comes.
        until: its standard input stays open until this event.

    Returns:
        The last line.

    Raises:
        ProcessFailed: it ended with another status than 0.
    """
    line = b""
    async with _started(command) as (process, last_words):
        assert process.stdin is not None
        assert process.stdout is not None
        # One that has failed already says why on its way out.
        with suppress(trio.BrokenResourceError):
            await process.stdin.send_all(send)
        if until is not None:
            await until.wait()
        await process.stdin.aclose()
        rest = b""
        async for chunk in process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for complete in lines:
                if line:
                    on_line(line)
                line = complete
        status = await process.wait()
        await last_words.complete()
    if status:
        raise ProcessFailed(f"{what} ended with status {status}:\n{last_words}")
    return line


@asynccontextmanager
async def _started(command: Sequence[str]) -> AsyncIterator[tuple[trio.Process, _LastWords]]:
    last_words = _LastWords()
    # Cancellation must not fall between the start and the block that stops it.
    with trio.CancelScope(shield=True):
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A group of its own: what it starts is stopped with it.
            start_new_session=True,
        )
    try:
        async with trio.open_nursery() as nursery:
            assert process.stderr is not None
            nursery.start_soon(last_words.collect_errors, process.stderr)
            yield process, last_words
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


async def _stop(process: trio.Process) -> None:
    _signal(process, signal.SIGTERM)
    with trio.move_on_after(_STOP_SECONDS):
        await process.wait()
    # Whatever is left of its group.
    _signal(process, signal.SIGKILL)
    await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        await stream.aclose()


def _signal(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _url(stdout: trio.abc.ReceiveStream) -> str:
    text = ""
    async for chunk in stdout:
        text += chunk.decode(errors="replace")
        whole, _, _ = text.rpartition("\n")
        if found := _URL.search(whole):
            return found.group()
    return ""
