"""Settings of the whole process, for one that does nothing but serve."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Final

from trio_sessions.core.token_text import prepare_table

__all__ = ["allow_open_files", "settle", "share_heap"]

# Turns make few cycles and many objects: the young generation is looked through every so many of them, not every 700.
_YOUNG: Final = 20_000
_MIDDLE: Final = 20
_OLD: Final = 20
# What a worker thread computes gives way to the event loop sooner than after the usual five milliseconds.
_SWITCH_SECONDS: Final = 0.001
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# What is larger has pages of its own, which go back as soon as it is freed.
_LARGE_BYTES: Final = 256 * 1024
# So much may be free at the end of the heap before it is given back.
_KEPT_BYTES: Final = 2**20


def share_heap() -> None:
    """Let all threads allocate from one heap, and large things from none; call it before there are threads.

    glibc gives threads heaps of their own, eight a core at most, and once something large was freed it puts what is as
    large into them. What a thread frees there no other uses, and one small thing behind a large one that was freed
    keeps it all: memory would grow for hours without anything being held.
    """
    libc = _libc()
    # Of glibc alone.
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


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
    libc = _libc()
    # Of glibc alone: reading a vocabulary leaves tens of megabytes free and kept.
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        return ctypes.CDLL(None)
    return None
