"""The gateway beside a server of the usual build, in the same run and with the same load; see ``benchmarks.peer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.figures import Figure, Row, Table, ratio
from benchmarks.load.loads import FLAT, IN_FLIGHT, LOADS, QUICK_FLAT, QUICK_LOADS, REPLAY, SIXTEEN, SIXTY_FOUR
from benchmarks.load.processes import run_async
from benchmarks.load.shapes import Load
from benchmarks.load.stack import GATEWAY, PEER, Run, collect
from benchmarks.options import Options
from benchmarks.proxy import by_load, flatness, memory

__all__ = ["TARGETS", "measure"]

PART: Final = "peer"
_REPEATS: Final = 3

# What the gateway's figure, divided by the peer's, is to stay at or below.
TARGETS: Final[Mapping[tuple[str, str], float]] = {
    (SIXTEEN.name, "cpu_ms_per_turn"): 0.25,
    (REPLAY.name, "cpu_ms_per_turn"): 0.40,
    (IN_FLIGHT.name, "cpu_ms_per_turn"): 0.15,
    (SIXTY_FOUR.name, "added_p99_ms"): 0.5,
}


def measure(options: Options) -> list[Table]:
    """Run every load on both, in turns."""
    loads, flat = (QUICK_LOADS, QUICK_FLAT) if options.quick else (LOADS, FLAT)
    runs = run_async(
        lambda: collect(
            [GATEWAY, PEER],
            [*loads, flat],
            repeats=options.times(_REPEATS),
            fresh=not options.quick,
            show=options.show,
        )
    )
    rows = []
    for load in (*loads, flat):
        ours, theirs = (
            {
                name: replace(found, target=None)
                for name, found in _figures(load, runs[server.name][load.name], flat=load is flat).items()
            }
            for server in (GATEWAY, PEER)
        )
        for name in ours:
            against = ratio(ours[name], theirs[name], target=TARGETS.get((load.name, name)))
            figures = {"gateway": ours[name], "peer": theirs[name], "gateway_to_peer": against}
            rows.append(Row({"load": load.name, "figure": name}, figures))
    return [Table(PART, "the gateway beside a peer of the usual build", tuple(rows))]


def _figures(load: Load, runs: Sequence[Run], *, flat: bool) -> dict[str, Figure]:
    if flat:
        found = flatness(runs)
        # It may be zero or less: nothing to divide by.
        del found["slope_us_per_turn"]
        return found
    return by_load(runs) | (memory(load, runs) if load.weighed else {})
