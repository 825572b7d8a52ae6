"""How the command fails: one line on stderr and an exit status; a crash is logged with its details first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import structlog

from trio_sessions.errors import ConfigurationError

__all__ = ["CRASHED", "INTERRUPTED", "PROGRAM", "WRONG_USE", "announce", "complain", "report_failure", "warn"]

PROGRAM: Final = "trio-sessions"
CRASHED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

# The command line may be right and the address still taken, so a supervisor may try again.
_MAY_PASS: Final = frozenset({"address_in_use"})

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.cli")


def complain(text: str) -> None:
    """Write one line to stderr, whatever line breaks ``text`` has."""
    _write("error", text)


def warn(text: str) -> None:
    """As ``complain``, of what does not keep the command from running; nor does it that nobody can read it."""
    with suppress(OSError, ValueError, AttributeError):
        _write("warning", text)


def announce(text: str) -> None:
    """Write ``text`` to stdout; a service does not end because nobody can read that it started."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.write(text)
        sys.stdout.flush()


def report_failure(
    failure: ExceptionGroup[Exception],
    *,
    what: str,
    explain: Callable[[str], str] = lambda text: text,
    foreseen: tuple[type[Exception], ...] = (),
) -> int:
    """Say why a service ended, and return the exit status for it.

    Args:
        failure: what its nursery raised.
        what: the service's name, to begin the sentence "<what> crashed".
        explain: adds to the text of a configuration error where the wrong value came from.
        foreseen: errors whose text says enough, so that nothing is logged.
    """
    causes = list(_leaves(failure))
    for cause in causes:
        if isinstance(cause, ConfigurationError):
            if cause.code in _MAY_PASS:
                complain(str(cause))
                return CRASHED
            complain(explain(str(cause)))
            return WRONG_USE
        if isinstance(cause, foreseen):
            complain(f"{what} failed: {cause}")
            return CRASHED
    _log.error("crashed", service=what, exc_info=failure)
    complain(f"{what} crashed: {type(causes[0]).__name__}: {causes[0]}")
    return CRASHED


def _write(kind: str, text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {kind}: {' '.join(text.split())}\n")
    sys.stderr.flush()


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            yield from _leaves(part)
    else:
        yield failure
