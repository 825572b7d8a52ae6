"""Settings of the whole process, for one that does nothing but serve."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Final

from trio_sessions.core.token_text import prepare_table

__all__ = ["allow_open_files", "settle"]

# Turns make few cycles and many objects: the young generation is looked through every so many of them, not every 700.
_YOUNG: Final = 20_000
_MIDDLE: Final = 20
_OLD: Final = 20
# What a worker thread computes gives way to the event loop sooner than after the usual five milliseconds.
_SWITCH_SECONDS: Final = 0.001


def allow_open_files(wanted: int) -> int:
    """Have this process, and those it starts, open so many files and connections at a time; how many they may.

    Most systems allow few, and more to who asks for more.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError):
        return soft
    return allowed


def settle() -> None:
    """Tell the garbage collector that what was loaded stays, and give back the memory that loading took.

    Call it once, when everything is loaded.
    """
    prepare_table()
    gc.collect()
    # Going through all of it takes more than a tenth of a second, in which no turn would move.
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux":
        # Of glibc: reading a vocabulary leaves tens of megabytes free and kept.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
