"""The soak finds what is left behind, and finds nothing where nothing is."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from benchmarks.soak.__main__ import main
from benchmarks.soak.acts import ACTS
from benchmarks.soak.cycle import cycle
from benchmarks.soak.judge import Moment, Tolerances, is_back, judge, slope_of
from benchmarks.soak.life import Line
from benchmarks.soak.readings import Held, held_by_processes
from benchmarks.soak.report import SoakReport
from benchmarks.soak.run import with_store
from benchmarks.soak.tally import Tally

HELD = Held(rss_mib=100.0, descriptors=10, threads=5, tasks=12, sessions=0, turns=0, engine_calls=0)
TOLERANCES = Tolerances(mib_per_1000_cycles=1.0, judged_seconds=60)


def series(leak: float, *, seconds: int = 200, warm_up: float = 30.0) -> list[Moment]:
    """Memory that fills up at first, then swings, and beneath that leaks so many MiB per 1000 cycles."""
    return [
        Moment(
            seconds=second,
            cycles=50 * second,
            rss_mib=100 + min(second / 10, 1.0) * warm_up + (second % 7) / 10 + 50 * second * leak / 1000,
        )
        for second in range(seconds)
    ]


def failed(after: Held = HELD, *, leak: float = 0.0, unexpected: int = 0, seconds: int = 200) -> list[str]:
    verdicts = judge(
        before=HELD,
        after=after,
        series=series(leak, seconds=seconds),
        unexpected=unexpected,
        tolerances=TOLERANCES,
    )
    return [verdict.what for verdict in verdicts if not verdict.met]


@pytest.mark.parametrize("name", ["descriptors", "threads", "tasks", "sessions", "turns", "engine_calls"])
def test_one_more_than_before_is_found(name: str) -> None:
    after = replace(HELD, **{name: getattr(HELD, name) + 1})
    assert failed(after) == [name.replace("_", " ")]
    assert not is_back(HELD, after)


def test_where_nothing_is_left_nothing_is_found() -> None:
    assert failed() == []
    assert failed(replace(HELD, descriptors=9, rss_mib=140.0)) == []
    assert is_back(HELD, replace(HELD, rss_mib=140.0))


def test_memory_that_grows_with_every_session_is_found_in_spite_of_warm_up_and_swings() -> None:
    # A KiB and a half a session.
    assert failed(leak=1.5) == ["rss MiB per 1000 cycles"]
    assert failed(leak=0.5) == []
    slope = slope_of(series(1.5))
    assert slope is not None
    assert slope.mib_per_1000_cycles == pytest.approx(1.5, abs=0.05)
    assert slope.mib_per_minute == pytest.approx(1.5 * 50 * 60 / 1000, abs=0.2)


def test_a_series_that_is_too_short_is_not_judged_by_its_slope() -> None:
    assert failed(leak=1000.0, seconds=100) == []
    assert slope_of([]) is None
    assert slope_of(series(1.0, seconds=1)) is None
    assert slope_of([Moment(second, 7, 100.0) for second in range(10)]) is None


def test_an_answer_that_should_not_have_come_is_found() -> None:
    assert failed(unexpected=1) == ["unexpected answers"]


def test_what_a_process_holds_is_read_from_the_kernel(tmp_path: Path) -> None:
    before = held_by_processes([os.getpid()])
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    with (tmp_path / "file").open("w"):
        thread.start()
        try:
            during = held_by_processes([os.getpid()])
        finally:
            stop.set()
            thread.join()
    assert (during.descriptors, during.threads) == (before.descriptors + 1, before.threads + 1)
    assert held_by_processes([os.getpid(), os.getpid()]).rss_mib > during.rss_mib


def test_a_short_soak_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "soak.json"
    given = ["--seconds", "1", "--warm-up", "1.5", "--settle", "0", "--sessions", "6", "--mode", "tree"]
    status = main([*given, "--json", str(file), "--", "--retry-window", "5"])
    shown = capsys.readouterr()
    report = SoakReport.read(file)
    assert status == 0, shown
    assert report.passed
    assert report.unexpected == ()
    assert report.command[report.command.index("--mode") :][:2] == ("--mode", "tree")
    assert report.command[report.command.index("--retry-window") :][:2] == ("--retry-window", "5")
    assert report.command[report.command.index("--store") + 1].endswith("/journal")
    assert report.cycles > 6
    assert set(report.acts) <= {act.name for act in ACTS} | {"delete"}
    assert {"turn", "delete", "engine fault"} <= report.acts.keys()
    assert report.turns["committed"] > 0
    assert report.before.tasks > 5
    assert "soaking for 1 s" in shown.err
    assert "ok" in shown.out


@pytest.mark.parametrize("listens", [True, False])
async def test_a_session_that_cannot_be_made_ends_nothing_else(listens: bool) -> None:
    tally = Tally()
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        line = Line(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        if listens:
            # It takes connections, and closes them.
            nursery.start_soon(trio.serve_listeners, trio.aclose_forcefully, [listener])
        else:
            await listener.aclose()
        await cycle(line, random.Random(0), tally)
        line.close()
        nursery.cancel_scope.cancel()
    [text] = tally.unexpected
    assert text.startswith("create: ")


def test_another_store_can_be_asked_for() -> None:
    journal = Path("journal")
    assert with_store(("--retry-window", "5"), journal) == ("--retry-window", "5", "--store", "journal")
    for asked in (("--store", "memory"), ("--store=memory",)):
        assert with_store(asked, journal) == asked


def test_wrong_use_is_told() -> None:
    for wrong in (["--seconds", "-1"], ["--seconds", "soon"], ["--sessions", "0"], ["--json", "/nowhere/soak.json"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
