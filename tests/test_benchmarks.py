"""Benchmarks run and give figures; how large they are is no assertion."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from benchmarks.__main__ import main
from benchmarks.figures import Figure, Table, percentile
from benchmarks.load.client import TOOLS
from benchmarks.load.engine import answer_parts, routing_payload
from benchmarks.load.processes import ProcessFailed, running, talk
from benchmarks.load.shapes import Job, Load, Outcome
from benchmarks.load.stack import GATEWAY, PEER, Server, stack
from benchmarks.options import Show
from benchmarks.parts import PARTS
from benchmarks.report import Report

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("python")
]
MEASURING = [command for command in COMMANDS if command[:3] == ["python", "-m", "benchmarks"]]
PART = {part.name: part for part in PARTS}


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands have run: the full one, made quick, then those that make page and picture of it."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "benchmarks.md", folder / "docs")
    full, *others = COMMANDS
    assert full == ["python", "-m", "benchmarks", "--json", "docs/benchmarks.json"]
    run([*full, "--quick"], folder)
    for command in others:
        if command not in MEASURING:
            run(command, folder)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return Report.from_json((folder / "docs" / "benchmarks.json").read_bytes())


def test_every_part_gives_every_figure(report: Report) -> None:
    assert {table.part for table in report.tables} == set(PART)
    for table in report.tables:
        assert table.rows
        for row in table.rows:
            assert row.figures
            for name, figure in row.figures.items():
                where = (table.title, row.labels, name)
                assert len(figure.values) == 1, where
                assert math.isfinite(figure.median), where
                # A slope may be anything.
                assert figure.median > 0 or name.startswith("slope"), where


def test_the_peer_is_measured_on_everything_that_the_gateway_is(report: Report) -> None:
    proxy = {
        (row.labels["load"], name)
        for table in report.tables
        if table.part == "proxy" and set(table.rows[0].labels) == {"load"}
        for row in table.rows
        for name in row.figures
        if not name.startswith(("client", "health", "slope"))
    }
    peer = {
        (row.labels["load"], row.labels["figure"])
        for table in report.tables
        if table.part == "peer"
        for row in table.rows
    }
    assert len(proxy) > 20
    assert peer == proxy


def test_several_workers_are_measured(report: Report) -> None:
    assert "2 workers" in {row.labels.get("gateway") for table in report.tables for row in table.rows}


def test_the_report_of_the_page_has_every_part() -> None:
    published = Report.read(ROOT / "docs" / "benchmarks.json")
    assert {table.part for table in published.tables} == set(PART)
    assert "2 workers" in {row.labels.get("gateway") for table in published.tables for row in table.rows}


def test_the_report_says_where_and_with_what(report: Report) -> None:
    assert report.machine.cores >= 1
    assert report.machine.memory_mib > 100
    assert "unknown" not in (report.machine.cpu, report.machine.kernel, report.machine.python)
    assert {"trio", "httpx", "fastapi", "uvicorn"} <= report.versions.keys()
    assert report.options == {"parts": " ".join(PART), "quick": "true", "repeats": "usual"}
    assert Report.from_json(report.to_json()) == report


def test_the_page_gets_every_figure_and_stays_the_same_otherwise(folder: Path, report: Report) -> None:
    made = (folder / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    outside = re.compile(r"(<!-- generated.*?-->).*?(<!-- end -->)", re.DOTALL)
    assert outside.sub(r"\1\2", made) == outside.sub(r"\1\2", PAGE)
    for table in report.tables:
        assert f"### {table.part}: {table.title}" in made
        for row in table.rows:
            assert f"| {' | '.join(row.labels.values())} | " in made
    assert (folder / "docs" / "benchmarks.svg").read_text(encoding="utf-8").count("processor time per turn") == 1


def test_the_pages_table_and_picture_are_those_of_its_report(tmp_path: Path) -> None:
    for name in ("benchmarks.md", "benchmarks.json"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    [page] = [command for command in COMMANDS if "benchmarks.page" in command]
    run(page, tmp_path)
    assert (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8") == PAGE
    assert (ROOT / "docs" / "benchmarks.svg").exists()


def test_the_page_names_every_part_and_every_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(PART)
    for command in MEASURING:
        # The help is printed only when what stands before it was understood.
        with pytest.raises(SystemExit, match="0"):
            main([*command[3:], "--help"])
    shown = capsys.readouterr().out
    assert all(part.summary in shown for part in PARTS)


def test_wrong_use_is_told() -> None:
    for wrong in (["nothing"], ["--repeats", "0"], ["--repeats", "many"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


def test_a_run_without_the_full_run_is_repeated_as_often_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    assert main(["primitives", "--quick", "--repeats", "3", "--json", str(file)]) == 0
    found = Report.from_json(file.read_bytes())
    assert {len(figure.values) for table in found.tables for row in table.rows for figure in row.figures.values()} == {
        3
    }
    assert "extract_completion" in capsys.readouterr().out


def test_a_part_takes_its_place_in_the_report_of_another_run(
    tmp_path: Path, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(report.to_json())
    assert main(["primitives", "--quick", "--merge", str(file)]) == 0
    merged = Report.read(file)
    assert merged.options == {**report.options, "later": "primitives"}
    assert {table.part for table in merged.tables} == set(PART)
    assert len(merged.tables) == len(report.tables)

    def tables(of: Report, *, part: bool) -> list[Table]:
        return [table for table in of.tables if (table.part == "primitives") is part]

    assert tables(merged, part=False) == tables(report, part=False)
    assert tables(merged, part=True) != tables(report, part=True)
    assert merged.with_parts_of(replace(report, tables=())).options["later"] == "primitives"


@pytest.mark.parametrize("other", ["machine", "versions", "quick"])
def test_what_was_measured_otherwise_is_not_merged_and_nothing_is_measured(
    tmp_path: Path, report: Report, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    if other == "machine":
        report = replace(report, machine=replace(report.machine, cpu="another"))
    elif other == "versions":
        report = replace(report, versions={**report.versions, "trio": "0"})
    file = tmp_path / "report.json"
    file.write_bytes(report.to_json())
    with pytest.raises(SystemExit, match="2"):
        main(["primitives", *([] if other == "quick" else ["--quick"]), "--merge", str(file)])
    assert f"nothing can be merged into {file}: it was measured" in capsys.readouterr().err
    assert file.read_bytes() == report.to_json()


async def test_both_servers_ask_the_engine_the_same_and_answer_the_same() -> None:
    records, answers = {}, {}
    with Show() as show:
        for server in (GATEWAY, PEER):
            async with stack(server, show) as ready:
                records[server.name], answers[server.name] = await _three_turns(ready.server.url)
    assert records["gateway"] == records["peer"]
    assert answers["gateway"] == answers["peer"]
    prompts = [record["input_ids"] for record in records["peer"]]
    # What stood, the ids that were sampled, and what was appended.
    assert [len(prompts[0]) > 100, prompts[1][: len(prompts[0])] == prompts[0]] == [True, True]
    assert prompts[1][len(prompts[0]) :][:20] == records["peer"][0]["sampled"]
    for record in records["peer"]:
        rows = len(record["input_ids"]) + len(record["sampled"]) - 1
        assert record["routed_experts"] == routing_payload(rows * 16).decode()


async def _three_turns(url: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    headers = {"x-bench-ids": "20", "x-bench-routing": "16"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Make the tests pass, naïve ✓."}]
    answers = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        session = (await client.post("/sessions")).json()["session_id"]
        path = f"/sessions/{session}"
        for turn in range(3):
            body = {"messages": messages, "tools": TOOLS}
            answer = await client.post(f"{path}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json())
            said = answers[-1]["choices"][0]["message"]
            messages = [*messages, said, {"role": "tool", "tool_call_id": "call_0", "content": f"line {turn}\n  ok"}]
        state = (await client.get(path)).json()
        diverged = await client.post(f"{path}/v1/chat/completions", json={"messages": messages[:1] * 2})
        assert diverged.status_code == 400
        assert (await client.delete(path)).status_code == 204
        assert (await client.delete(path)).status_code == 404
    found = []
    for record in state["records"]:
        meta = record["response"]["choices"][0]["meta_info"]
        sampled = [entry[1] for entry in meta["output_token_logprobs"]]
        kept = {"messages": record["request"]["messages"], "routed_experts": meta["routed_experts"]}
        found.append({"input_ids": record["request"]["input_ids"], "sampled": sampled, **kept})
    return found, answers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_everything_that_was_started(number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BENCHMARK_TEST": mark}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "peer", "--repeats", "1"], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        killer = threading.Timer(60, process.kill)
        killer.start()
        try:
            # In the middle of a load: engine, server and generator are there.
            assert any("1 of 1:" in line for line in process.stderr)
            assert len(set(_marked(mark))) >= 3
            process.send_signal(number)
            assert process.wait(30) == 128 + number
        finally:
            killer.cancel()
            process.kill()
    assert list(_marked(mark)) == []


def _marked(mark: str) -> Iterator[int]:
    """Processes that inherited the mark and run."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


async def test_a_server_that_does_not_start_is_told_with_its_last_words() -> None:
    broken = Server("broken", (sys.executable, "-c", "import sys; sys.exit('no tokenizer here')"))
    with (
        Show() as show,
        pytest.RaisesGroup(pytest.RaisesExc(ProcessFailed, match="no tokenizer here"), flatten_subgroups=True),
    ):
        async with stack(broken, show):
            raise AssertionError("it has not started")


async def test_a_server_that_fails_under_load_is_told_with_what_it_said() -> None:
    code = (
        "import http.server, sys\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
        "print(f'http://127.0.0.1:{server.server_port}', flush=True)\n"
        "server.serve_forever()\n"
    )
    deaf = Server("deaf", (sys.executable, "-c", code))
    found = pytest.RaisesExc(ProcessFailed, match=r"(?s)status 501.*the deaf said:.*POST /sessions")
    with Show() as show, pytest.RaisesGroup(found, flatten_subgroups=True):
        async with stack(deaf, show) as ready:
            await ready.drive(Load(name="one", sessions=1, turns=1), show)


async def test_a_process_that_hangs_is_stopped_when_its_block_is_left() -> None:
    code = (
        "import signal, threading\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('http://h:1', flush=True)\n"
        "threading.Event().wait()\n"
    )
    with trio.fail_after(40):
        async with running((sys.executable, "-c", code), what="it") as started:
            pass
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)


async def test_talking_gives_every_line_and_the_last_apart() -> None:
    lines: list[bytes] = []
    code = "import sys; print(1); print(2); print(sys.stdin.read())"
    last = await talk((sys.executable, "-c", code), what="it", send=b"three", on_line=lines.append)
    assert (lines, last) == ([b"1", b"2"], b"three")


async def test_turns_go_to_the_worker_that_has_the_session() -> None:
    with (
        _serving(lambda _: {"session_id": "s", "base_url": f"{owner.url}/sessions/s/v1"}) as front,
        _serving(lambda _: msgspec.json.decode(b"".join(answer_parts(20)))) as owner,
    ):
        job = Job(
            Load(name="two turns", sessions=1, turns=2, answer_ids=20), front.url, [os.getpid()], give_up_seconds=30
        )
        last = await talk(
            (sys.executable, "-m", "benchmarks.load.client"),
            what="the generator",
            send=msgspec.json.encode(job),
            on_line=lambda _: None,
        )
        assert msgspec.json.decode(last, type=Outcome).turns == 2
        assert [line for line, _ in front.requests] == ["POST /sessions"]
        turn = "POST /sessions/s/v1/chat/completions"
        assert [line for line, _ in owner.requests] == [turn, turn, "DELETE /sessions/s"]
    first, second = (msgspec.json.decode(body)["messages"] for _, body in owner.requests[:2])
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"]
    assert second[:2] == first
    assert second[2] == msgspec.json.decode(b"".join(answer_parts(20)))["choices"][0]["message"]


@dataclass
class _Serving:
    url: str
    requests: list[tuple[str, bytes]]


@contextmanager
def _serving(answer: Callable[[bytes], Any]) -> Iterator[_Serving]:
    """A server that answers every request with ``answer`` of its body, as JSON."""
    requests: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            asked = self.rfile.read(int(self.headers["content-length"]))
            requests.append((f"{self.command} {self.path}", asked))
            body = msgspec.json.encode(answer(asked))
            self.send_response(200)
            self.send_header("x-bench-engine-us", "1")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = _handle  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield _Serving(f"http://127.0.0.1:{server.server_port}", requests)
        finally:
            server.shutdown()
            thread.join()


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.01, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 0.5) == 7.0


def test_a_figure_knows_its_middle_and_its_ends() -> None:
    figure = Figure((3.0, 1.0, 2.0))
    assert (figure.low, figure.median, figure.high) == (1.0, 2.0, 3.0)
