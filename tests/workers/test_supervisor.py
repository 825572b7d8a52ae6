"""A supervisor in the test's process, and its workers as processes that come to no good end."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.web.support import until
from tests.workers.test_processes import alive
from trio_sessions.config import Settings
from trio_sessions.workers.restarts import RestartPolicy, WorkersFailed
from trio_sessions.workers.supervisor import serve_with_workers

SECONDS = 20.0
UNSERVED = Settings(port=0, workers=2, engine="http://127.0.0.1:9", drain_timeout=1)


async def test_a_worker_that_dies_again_and_again_ends_the_server() -> None:
    with capture_logs() as logs, trio.fail_after(SECONDS), _failing(KEEPS_DYING):
        async with trio.open_nursery() as nursery:
            running = await nursery.start(_serve_impatiently, UNSERVED)
            assert len(running.worker_urls) == 2
            os.kill(_started(logs)[1], signal.SIGKILL)
    assert not any(map(alive, _started(logs).values()))


async def test_a_worker_that_dies_before_it_serves_ends_the_server() -> None:
    with capture_logs() as logs, trio.fail_after(SECONDS), _failing("worker 0 was killed by SIGKILL before it served"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_with_workers, UNSERVED)
            while len(_started(logs)) < 2:  # noqa: ASYNC110 - the log has no events
                await trio.sleep(0.01)
            os.kill(_started(logs)[0], signal.SIGKILL)
    assert not any(map(alive, _started(logs).values()))


async def test_workers_that_do_not_end_when_they_are_told_to_are_killed(mock_clock: MockClock) -> None:
    mock_clock.rate = 1
    with capture_logs() as logs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_with_workers, UNSERVED)
            pids = _started(logs)
            os.kill(pids[1], signal.SIGSTOP)
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: not alive(pids[0]))
            # Past what turns get and what answers get.
            mock_clock.jump(16)
    assert not any(map(alive, pids.values()))
    assert [line["event"] for line in logs[-2:]] == ["killing workers that do not end", "stopped"]
    assert 1 in logs[-2]["workers"]
    silent = [line for line in logs if line["event"].startswith("the engine does not answer yet")]
    assert [(line["log_level"], line["engine"]) for line in silent] == [("warning", UNSERVED.engine)]


LINGERING = """
import threading

threading.Thread(target=threading.Event().wait).start()


def pick(samples):
    return samples
"""


async def test_a_worker_whose_process_stays_is_killed(
    mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread of a user's module keeps the process when everything else has ended.
    (tmp_path / "lingering.py").write_text(LINGERING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mock_clock.rate = 1
    with capture_logs() as logs, trio.fail_after(300), _failing(KEEPS_DYING):
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve_impatiently, replace(UNSERVED, sample_picker="lingering.pick"))
            os.kill(_started(logs)[1], signal.SIGTERM)
            mock_clock.rate = 20
    assert not any(map(alive, _started(logs).values()))


KEEPS_DYING = r"^worker 1 keeps dying \(last: it was killed by SIGKILL\) and is not restarted$"


def _failing(text: str) -> pytest.RaisesGroup[WorkersFailed]:
    return pytest.RaisesGroup(pytest.RaisesExc(WorkersFailed, match=text), flatten_subgroups=True)


def _started(logs: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    return {line["worker"]: line["pid"] for line in logs if line["event"] == "worker started"}


async def _serve_impatiently(settings: Settings, *, task_status: trio.TaskStatus[Any]) -> None:
    await serve_with_workers(settings, restarts=RestartPolicy(attempts=0), task_status=task_status)
