"""An engine and a gateway as processes of their own, and agents that come and go."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from benchmarks.load.proc import pids_of_session
from benchmarks.load.processes import running
from benchmarks.options import Show
from benchmarks.report import Machine, versions
from benchmarks.soak.cycle import cycle
from benchmarks.soak.judge import Moment, Tolerances, is_back, judge, slope_of
from benchmarks.soak.life import Line
from benchmarks.soak.readings import Held, Observer
from benchmarks.soak.report import SoakReport
from benchmarks.soak.tally import Tally

__all__ = ["SoakOptions", "soak", "with_store"]

_EVERY_SECONDS: Final = 1.0
_SAID_EVERY_SECONDS: Final = 30.0
_LONGEST_CYCLE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.25
# How often the gateway counts its tasks.
_COUNTED_SECONDS: Final = 1.2


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What to do.

    Attributes:
        seconds: how long sessions come and go; those that are there then end as they would.
        sessions: how many there are at once.
        mode: linear or tree.
        warm_up: seconds of the same load before anything is measured.
        settle: seconds without load before the reading that everything is to come back to. Longer than idle threads
            and connections are kept, else these are counted as what a gateway holds.
        patience: most seconds to wait afterwards for everything to come back.
        seed: of what is drawn.
        tolerances: what may be left.
        serve: more arguments of ``trio-sessions serve``; without a ``--store`` among them there is a journal in a
            temporary folder.
    """

    seconds: float
    sessions: int
    mode: str
    warm_up: float
    settle: float
    patience: float
    seed: int
    tolerances: Tolerances
    serve: tuple[str, ...] = ()


async def soak(options: SoakOptions, show: Show) -> SoakReport:
    """Run one.

    Raises:
        ProcessFailed: the engine or the gateway did not start, or ended.
        Broken: it cannot be asked what it holds.
    """
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        return await _soak(options, with_store(options.serve, Path(folder) / "journal"), show)


async def _soak(options: SoakOptions, serve: Sequence[str], show: Show) -> SoakReport:
    show.step("starting engine and gateway")
    cli = (sys.executable, "-m", "trio_sessions.cli")
    # What goes wrong on purpose is not worth a line.
    quiet = ("--port", "0", "--log-level", "error")
    async with running((*cli, "engine", *quiet), what="the engine") as engine:
        command = ("serve", *quiet, "--engine", engine.url, "--mode", options.mode, *serve)
        async with running((*cli, *command), what="the gateway") as gateway:
            observer = Observer(gateway.url, engine.url, pids_of_session(gateway.pid))
            load = _Load(gateway.url, options, observer, show)
            await load.run("warming up", options.warm_up, Tally())
            # The observer's own connection counts from here on; under load it is used too often to be closed.
            await observer.held()
            show.step(f"leaving it alone for {options.settle:g} s")
            await trio.sleep(max(options.settle, _COUNTED_SECONDS))
            before = await observer.held()
            tally = Tally()
            started = trio.current_time()
            series = await load.run("soaking", options.seconds, tally)
            seconds = trio.current_time() - started
            show.step("waiting for everything to come back")
            after = await _afterwards(observer, before, options.patience)
            turns = await observer.outcomes()
            observer.close()
    return SoakReport(
        machine=Machine.here(),
        versions=versions(),
        command=command,
        sessions=options.sessions,
        seed=options.seed,
        seconds=seconds,
        cycles=tally.cycles,
        acts=dict(tally.acts),
        statuses=dict(tally.statuses),
        turns=turns,
        unexpected=tuple(tally.unexpected),
        before=before,
        after=after,
        series=tuple(series),
        slope=slope_of(series),
        tolerances=options.tolerances,
        verdicts=judge(
            before=before,
            after=after,
            series=series,
            unexpected=tally.unexpected_count,
            tolerances=options.tolerances,
        ),
    )


def with_store(serve: Sequence[str], journal: Path) -> tuple[str, ...]:
    """Arguments of ``trio-sessions serve``, with ``journal`` where they name no store."""
    named = any(argument == "--store" or argument.startswith("--store=") for argument in serve)
    return (*serve,) if named else (*serve, "--store", str(journal))


async def _afterwards(observer: Observer, before: Held, patience: float) -> Held:
    """What is held once it is no more than before, or patience is at its end."""
    await trio.sleep(_COUNTED_SECONDS)
    held = await observer.held()
    with trio.move_on_after(patience):
        while not is_back(before, held):
            await trio.sleep(_LOOK_SECONDS)
            held = await observer.held()
    return held


class _Load:
    def __init__(self, url: str, options: SoakOptions, observer: Observer, show: Show) -> None:
        self._url = url
        self._options = options
        self._observer = observer
        self._show = show
        self._runs = 0

    async def run(self, what: str, seconds: float, tally: Tally) -> list[Moment]:
        """Let sessions come and go for a while; resident memory meanwhile."""
        self._runs += 1
        series: list[Moment] = []
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, what, seconds, tally, series)
            async with trio.open_nursery() as agents:
                for index in range(self._options.sessions):
                    # Agents draw on their own: what one does depends on no other.
                    seed = f"{self._options.seed} {self._runs} {index}"
                    agents.start_soon(self._agent, random.Random(seed), until, tally)  # noqa: S311
            nursery.cancel_scope.cancel()
        return series

    async def _watch(self, what: str, seconds: float, tally: Tally, series: list[Moment]) -> None:
        began = trio.current_time()
        say_at = began
        while True:
            now = trio.current_time()
            held = await self._observer.held()
            moment = Moment(seconds=now - began, cycles=tally.cycles, rss_mib=held.rss_mib)
            series.append(moment)
            if now >= say_at:
                say_at = now + _SAID_EVERY_SECONDS
                text = f"{what} for {seconds:g} s: {moment.cycles:,} sessions, {moment.rss_mib:.1f} MiB"
                self._show.step(text, round(seconds))
            self._show.done(round(min(seconds, now - began)))
            await trio.sleep(_EVERY_SECONDS)

    async def _agent(self, draw: random.Random, until: float, tally: Tally) -> None:
        line = Line(self._url)
        try:
            while trio.current_time() < until:
                with trio.move_on_after(_LONGEST_CYCLE_SECONDS) as time:
                    await cycle(line, draw, tally)
                if time.cancelled_caught:
                    tally.complain(f"a session took longer than {_LONGEST_CYCLE_SECONDS:g} s")
                    line.close()
                tally.cycles += 1
        finally:
            line.close()
