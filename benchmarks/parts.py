"""The parts of the suite, in the order in which they run.

A part is a module with ``measure(options) -> list[Table]``. To add one, write the module and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks import proxy, versus
from benchmarks.figures import Table
from benchmarks.options import Options

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the suite.

    Attributes:
        name: on the command line.
        summary: one line for ``--help``.
        measure: does it.
    """

    name: str
    summary: str
    measure: Callable[[Options], list[Table]]


PARTS: Final = (
    Part("proxy", "turns through the gateway: time, processor time, memory", proxy.measure),
    Part("peer", "the same beside a server of the usual build, with ratios", versus.measure),
)
