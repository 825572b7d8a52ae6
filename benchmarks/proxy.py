"""What a turn costs on the gateway, as a process of its own behind real clients and in front of a cheap engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import linear_regression, mean
from typing import Final

from benchmarks.figures import Figure, Row, Table, figure, percentile, ratio
from benchmarks.load.loads import FLAT, HUGE, LOADS, QUICK_FLAT, QUICK_HUGE, QUICK_LOADS, SIXTY_FOUR
from benchmarks.load.processes import run_async
from benchmarks.load.shapes import Load, Probe
from benchmarks.load.stack import GATEWAY, Run, Server, collect, stack
from benchmarks.options import Options

__all__ = ["by_load", "flatness", "measure", "memory"]

PART: Final = "proxy"
_REPEATS: Final = 3
_WORKERS: Final = 2

_RSS_IDLE_TARGET: Final = 200.0
_RSS_GROWTH_TARGET: Final = 5.0
_HEALTH_P99_TARGET: Final = 50.0
# Flat, but for noise.
_GROWTH_OF_COST_TARGET: Final = 1.1


def measure(options: Options) -> list[Table]:
    """Run every load on the gateway."""
    return run_async(lambda: _measure(options))


async def _measure(options: Options) -> list[Table]:
    loads, flat = (QUICK_LOADS, QUICK_FLAT) if options.quick else (LOADS, FLAT)
    repeats = options.times(_REPEATS)
    runs = await collect([GATEWAY], [*loads, flat], repeats=repeats, fresh=not options.quick, show=options.show)
    found = runs[GATEWAY.name]
    tables = [
        Table(
            PART,
            "turns through the gateway",
            # What it takes when it is idle does not depend on the load: the target stands once.
            tuple(
                _row(load, found[load.name], target=_RSS_IDLE_TARGET if load is loads[0] else None) for load in loads
            ),
        ),
        Table(
            PART,
            "memory that a session takes",
            tuple(Row({"load": load.name}, memory(load, found[load.name])) for load in loads if load.weighed),
        ),
        Table(PART, "cost of a turn as a session grows", (Row({"load": flat.name}, flatness(found[flat.name])),)),
        await _health(options, QUICK_HUGE if options.quick else HUGE),
    ]
    tables.append(await _several(options, loads[1] if options.quick else SIXTY_FOUR))
    return tables


def _row(load: Load, runs: Sequence[Run], *, target: float | None) -> Row:
    figures = by_load(runs)
    figures["rss_idle_mib"] = replace(figures["rss_idle_mib"], target=target)
    client = figure(1000 * run.outcome.client_cpu_seconds / run.outcome.turns for run in runs)
    return Row({"load": load.name}, {**figures, "client_cpu_ms_per_turn": client})


def by_load(runs: Sequence[Run]) -> dict[str, Figure]:
    """The figures of a load, a value a run."""
    outcomes = [run.outcome for run in runs]
    return {
        "turns_per_s": figure(o.turns / o.seconds for o in outcomes),
        "added_p50_ms": figure(percentile(o.added_ms, 0.5) for o in outcomes),
        "added_p95_ms": figure(percentile(o.added_ms, 0.95) for o in outcomes),
        "added_p99_ms": figure(percentile(o.added_ms, 0.99) for o in outcomes),
        "cpu_ms_per_turn": figure(1000 * o.cpu_seconds / o.turns for o in outcomes),
        "rss_idle_mib": figure(run.rss_idle_mib for run in runs),
        "rss_peak_mib": figure(o.rss_peak_mib for o in outcomes),
    }


def memory(load: Load, runs: Sequence[Run]) -> dict[str, Figure]:
    """What a session of a load holds after its last turn, for a load whose sessions are large enough to be weighed."""
    grown = [(run.outcome.rss_after_mib - run.outcome.rss_before_mib) / load.sessions for run in runs]
    return {"rss_mib_per_session": figure(grown, target=None if load.routing_bytes else _RSS_GROWTH_TARGET)}


def flatness(runs: Sequence[Run]) -> dict[str, Figure]:
    """What the first and the last quarter of a session's turns cost."""
    series = [run.outcome.cpu_ms_by_turn for run in runs]
    first = figure(mean(costs[: len(costs) // 4]) for costs in series)
    last = figure(mean(costs[-(len(costs) // 4) :]) for costs in series)
    return {
        "cpu_ms_first_quarter": first,
        "cpu_ms_last_quarter": last,
        "last_to_first": ratio(last, first, target=_GROWTH_OF_COST_TARGET),
        "slope_us_per_turn": figure(1000 * linear_regression(range(len(costs)), costs).slope for costs in series),
    }


async def _health(options: Options, load: Load) -> Table:
    probes: list[Probe] = []
    for repeat in range(options.times(_REPEATS)):
        async with stack(GATEWAY, options.show) as ready:
            options.show.step(f"{repeat + 1}: /health beside {load.name}", load.sessions * load.turns)
            _, probe = await ready.drive_and_probe(load, options.show)
            probes.append(probe)
    figures = {
        "health_p50_ms": figure(percentile(probe.waited_ms, 0.5) for probe in probes),
        "health_p99_ms": figure((percentile(probe.waited_ms, 0.99) for probe in probes), target=_HEALTH_P99_TARGET),
        "health_worst_ms": figure(max(probe.waited_ms) for probe in probes),
    }
    return Table(PART, "GET /health meanwhile", (Row({"load": load.name}, figures),))


async def _several(options: Options, load: Load) -> Table:
    several = replace(GATEWAY, name=f"{_WORKERS} workers", command=(*GATEWAY.command, "--workers", str(_WORKERS)))
    one = Server("1 worker", GATEWAY.command)
    runs = await collect([one, several], [load], repeats=options.times(_REPEATS), fresh=True, show=options.show)
    rows = tuple(
        Row({"load": load.name, "gateway": server.name}, by_load(runs[server.name][load.name]))
        for server in (one, several)
    )
    return Table(PART, "one process and several", rows)
