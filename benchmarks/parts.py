"""The parts of the suite, in the order in which they run.

A part is a module with ``measure(options) -> list[Table]``. To add one, write the module and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks import engine_client, journal, loop, primitives, proxy, samples, tokenization, versus
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
    Part("tokenize", "rendering everything against only what is new", tokenization.measure),
    Part("primitives", "the pure functions of a turn, by size", primitives.measure),
    Part("engine", "the engine client against httpx's own pool, by calls in flight", engine_client.measure),
    Part("loop", "how long the event loop stands still while long texts are encoded", loop.measure),
    Part("samples", "how long it stands still while samples are assembled", samples.measure),
    Part("proxy", "turns through the gateway: time, processor time, memory", proxy.measure),
    Part("journal", "turns and sessions written down: what it costs, and how fast they are read", journal.measure),
    Part("peer", "the same beside a server of the usual build, with ratios", versus.measure),
)
