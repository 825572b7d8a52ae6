"""What a serving process is told, seen in a process of its own."""

from __future__ import annotations

import json
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
