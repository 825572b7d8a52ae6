"""What it costs to write sessions down: the gateway with a journal beside the gateway without one, in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.figures import Figure, Row, Table, figure, ratio
from benchmarks.journal_primitives import opening, primitives
from benchmarks.load.loads import QUICK_LOADS, REPLAY, SIXTEEN
from benchmarks.load.processes import run_async
from benchmarks.load.stack import GATEWAY, GATEWAY_WITH_JOURNAL, Run, collect
from benchmarks.options import Options
from benchmarks.proxy import by_load

__all__ = ["measure"]

PART: Final = "journal"
_REPEATS: Final = 3

_MEMORY: Final = replace(GATEWAY, name="memory")
_FULL: Final = replace(GATEWAY_WITH_JOURNAL, name="full")
_RELAXED: Final = replace(
    GATEWAY_WITH_JOURNAL, name="relaxed", command=(*GATEWAY_WITH_JOURNAL.command, "--durability", "relaxed")
)
_FIGURES: Final = ("cpu_ms_per_turn", "added_p50_ms", "added_p99_ms", "turns_per_s")
# What full durability may cost, divided by what it costs without a journal.
_TARGETS: Final[Mapping[tuple[str, str], float]] = {(SIXTEEN.name, "cpu_ms_per_turn"): 1.25}


def measure(options: Options) -> list[Table]:
    """Turns through three gateways, in turns; then the journal by itself."""
    loads = QUICK_LOADS[1:3] if options.quick else (SIXTEEN, REPLAY)
    servers = (_MEMORY, _FULL, _RELAXED)
    runs = run_async(
        lambda: collect(servers, loads, repeats=options.times(_REPEATS), fresh=not options.quick, show=options.show)
    )
    found = {(server.name, load.name): by_load(runs[server.name][load.name]) for server in servers for load in loads}
    turns = tuple(
        Row(
            {"load": load.name, "figure": name},
            _beside({s.name: found[s.name, load.name][name] for s in servers}, load.name, name),
        )
        for load in loads
        for name in _FIGURES
    )
    written = tuple(
        Row(
            {"load": load.name},
            {f"{server.name}_bytes_per_turn": _written(runs[server.name][load.name]) for server in (_FULL, _RELAXED)},
        )
        for load in loads
    )
    return [
        Table(PART, "turns with and without a journal", turns),
        Table(PART, "what is written down of a turn", written),
        primitives(options, part=PART),
        opening(options, part=PART),
    ]


def _beside(figures: Mapping[str, Figure], load: str, name: str) -> dict[str, Figure]:
    return {
        **figures,
        "full_to_memory": ratio(figures["full"], figures["memory"], target=_TARGETS.get((load, name))),
        "relaxed_to_memory": ratio(figures["relaxed"], figures["memory"]),
    }


def _written(runs: Sequence[Run]) -> Figure:
    return figure(run.journal_bytes / run.outcome.turns for run in runs)
