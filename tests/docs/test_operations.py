"""docs/operations.md: its metrics are those of a gateway, its alerts name metrics that exist, its commands run."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.soak.__main__ import main as soak
from tests.processes import Running, command
from trio_sessions.observe import TurnOutcome
from trio_sessions.workers.exposition import merge_metrics
from trio_sessions.workers.link import WorkerState

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHELL = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
[ALERTS] = [yaml.safe_load(block)["groups"][0]["rules"] for language, block in BLOCKS if language == "yaml"]
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\| ([^|]+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operations")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Running]:
    program, *serve = SHELL[0].split()
    assert program == "trio-sessions"
    with (
        contextlib.chdir(folder),
        command(*serve, "--port", "0", "--log-format", "json") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def families(gateway: Running) -> dict[str, Metric]:
    """What a real gateway shows, and what several workers show besides, by name."""
    page = httpx.get(f"{gateway.url}/metrics").content
    # A worker's label is on every sample of several; the page says so in words.
    apart = merge_metrics({}, [WorkerState(0, up=True, restarts=0, sessions=0)])
    found = [*text_string_to_metric_families(page.decode()), *text_string_to_metric_families(apart.decode())]
    return {name_of(family): family for family in found if not family.name.endswith("_created")}


def name_of(family: Metric) -> str:
    """The name that a query uses, but for what histograms put behind it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def labels_of(family: Metric) -> set[str]:
    return {name for sample in family.samples for name in sample.labels} - {"le"}


def test_the_table_has_every_metric_with_its_type_and_labels(families: dict[str, Metric]) -> None:
    told = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in ROW.findall(PAGE)}
    assert told == {name: (family.type, labels_of(family)) for name, family in families.items()}


def test_every_outcome_is_explained() -> None:
    table = PAGE.partition("| `outcome` | a turn that was |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(get_args(TurnOutcome))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_names_metrics_and_label_values_that_exist(families: dict[str, Metric], alert: dict[str, Any]) -> None:
    expression = alert["expr"]
    known = set(families) | {
        f"{name}_{part}"
        for name, family in families.items()
        for part in ("bucket", "sum", "count")
        if family.type == "histogram"
    }
    named = set(re.findall(r"\b(?:trio_sessions|process)_\w+", expression))
    assert named
    assert named <= known
    for name, label, value in re.findall(r'(\w+)\{(\w+)!?="([^"]*)"\}', expression):
        assert value in {sample.labels.get(label) for sample in families[name].samples}, expression
    # Brackets of every kind are closed in the order in which they were opened.
    rest = re.sub(r'"[^"]*"', "", expression)
    while rest != (rest := re.sub(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}", "", rest)):
        pass
    assert not set("()[]{}") & set(rest), expression
    # What to do stands above it.
    assert re.search(rf"# [^\n]+\n +- alert: {alert['alert']}\n", PAGE)


def test_the_commands_run(
    gateway: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, measuring, *asking = SHELL
    assert measuring.startswith("python -m benchmarks.soak ")
    # The help is printed only when what stands before it was understood.
    with pytest.raises(SystemExit, match="0"):
        soak([*measuring.split()[3:-3], "--help"])
    assert measuring.split()[-3:] == ["--", "--stream", "real"]
    assert "--max-growth" in capsys.readouterr().out
    for line in asking:
        url = line.replace("http://127.0.0.1:8700", gateway.url)
        assert url != line
        done = subprocess.run(url.split(), capture_output=True, text=True, timeout=30, check=True)
        assert "session_server_instance_id" in done.stdout or "trio_sessions_tasks" in done.stdout


def test_sessions_are_written_down_where_the_page_says(gateway: Running, folder: Path) -> None:
    files = list(folder.iterdir())
    assert {file.name for file in files} == {"rollouts.journal", "rollouts.journal-wal"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_tasks_are_shown_by_a_real_gateway(families: dict[str, Metric]) -> None:
    [sample] = families["trio_sessions_tasks"].samples
    assert sample.value > 3


def test_lines_of_the_log_have_what_is_said_of_them(gateway: Running) -> None:
    session = httpx.post(f"{gateway.url}/sessions").json()["session_id"]
    turn = {"messages": [{"role": "user", "content": "canary-Xk29"}], "tools": "canary-Xk29"}
    assert httpx.post(f"{gateway.url}/sessions/{session}/v1/chat/completions", json=turn).status_code == 400
    httpx.delete(f"{gateway.url}/sessions/{session}")
    assert gateway.stop() == 0
    lines = [json.loads(line) for line in gateway.log if line.startswith("{")]
    [failed] = [line for line in lines if line.get("session") == session]
    assert {"timestamp", "level", "event", "session", "turn", "code"} <= failed.keys()
    assert all({"timestamp", "level", "event"} <= line.keys() for line in lines)
    assert {"stopping", "draining", "stopped"} <= {line["event"] for line in lines}
    assert "canary" not in "".join(gateway.log)
