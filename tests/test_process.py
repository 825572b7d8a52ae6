"""What a serving process is told, seen in a process of its own."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import gc, json, sys
from trio_sessions.core.token_text import prepare_table
from trio_sessions.process import settle
before = gc.get_freeze_count(), gc.get_threshold()[0], sys.getswitchinterval()
settle()
after = gc.get_freeze_count(), gc.get_threshold()[0], sys.getswitchinterval()
print(json.dumps([before, after, prepare_table.cache_info().currsize, gc.isenabled()]))
"""


def test_settling_leaves_what_was_loaded_alone_and_collects_the_rest():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    (frozen, young, switch), (frozen_after, young_after, switch_after), tables, enabled = json.loads(ran.stdout)
    assert (frozen, tables, enabled) == (0, 1, True)
    assert frozen_after > 10_000
    assert young_after > young
    assert switch_after < switch


FILES = """
import json, resource, sys
from trio_sessions.process import allow_open_files
soft, hard, *wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(json.dumps([[allow_open_files(each), *resource.getrlimit(resource.RLIMIT_NOFILE)] for each in wanted]))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (200, 300, 150, [150, 200, 300]),
        (200, 300, 250, [250, 250, 300]),
        (200, 300, 400, [300, 300, 300]),
        (300, 300, 400, [300, 300, 300]),
    ],
)
def test_as_many_files_may_be_open_as_the_system_allows(soft: int, hard: int, wanted: int, found: list[int]) -> None:
    arguments = [sys.executable, "-c", FILES, *map(str, (soft, hard, wanted))]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [found]


HEAPS = """
import ctypes, json, sys, threading
from pathlib import Path
from trio_sessions.process import share_heap


def resident():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def work():
    with turn:
        # More than 512 bytes each, so that they are not of Python's own allocator.
        kept = [bytearray(2000) for _ in range(10_000)]
        # Of what is freed nothing lies at the end.
        everything.append(kept[-1])
        del kept
    # All threads are there until all have worked, one after the other.
    over.wait()


if sys.argv[1] == "shared":
    share_heap()
everything, turn, over = [], threading.Lock(), threading.Barrier(8)
before = resident()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(resident() - before))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is about the allocator of glibc")
def test_what_threads_have_freed_is_used_by_others_or_given_back():
    grown = {}
    for how in ("shared", "each its own"):
        ran = subprocess.run([sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True)
        grown[how] = json.loads(ran.stdout)
    assert grown["shared"] < grown["each its own"] / 2
