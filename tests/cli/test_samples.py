"""``trio-sessions samples``: what it writes and says, and how it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.client.scripted import DROP, SILENCE, Received, Reply, Scripted, free_port
from tests.core.samples.grown import Step, line_of
from trio_sessions.cli.app import main
from trio_sessions.cli.progress import progress_bar
from trio_sessions.core.samples import assemble, decode_samples, encode_samples
from trio_sessions.export import FORMATS

HEALTHY = Reply.json({"status": "ok", "session_server_instance_id": "i"})


def payload(first: int = 1) -> bytes:
    forest = line_of(Step(suffix=[first, 2], output=[1000, 1001, 1002]))
    return encode_samples([assemble(forest.line(), forest.rules())], {"n": first})


class Gateway(Scripted):
    """Sessions with numbers for names have a sample, others what is said here."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.url = ""
        self.sessions = {
            "empty": Reply(body=encode_samples([], {}, "no_records")),
            "cut": Reply(body=encode_samples([], {}, "all_truncated")),
            "broken": Reply(422, b"cursor 1 != 2", {"content-type": "text/plain"}),
            "junk": Reply(body=b"?"),
        }

    def serve(self, request: Received) -> Reply:
        if request.path == "/health":
            return HEALTHY
        name = request.path.split("/")[2]
        if name.isdecimal():
            return Reply(body=payload(int(name)))
        return self.sessions.get(name) or Reply.error(404, f"session not found: session_id={name}")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    with gateway.running() as gateway.url:
        yield gateway


def run(gateway: Gateway, *arguments: str, out: Path) -> int:
    return main(["samples", *arguments, "--out", str(out), "--gateway", gateway.url])


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sessions_are_written_in_the_order_given(gateway, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    names = [str(n) for n in range(30, 0, -1)]
    assert run(gateway, *names, out=path) == 0
    assert [(row["session_id"], row["tokens"][0]) for row in read(path)] == [(name, int(name)) for name in names]
    out, err = capsys.readouterr()
    assert out == f"{path}: 30 samples of 30 sessions, 150 ids, 90 trained (jsonl, schema version 1)\n"
    assert err == "Exporting 30 sessions ...\n"


def test_a_session_is_asked_for_once(gateway, tmp_path):
    assert run(gateway, "1", "2", "1", out=tmp_path / "s.jsonl") == 0
    assert [row["session_id"] for row in read(tmp_path / "s.jsonl")] == ["1", "2"]
    assert sorted(gateway.lines) == ["GET /health", "POST /sessions/1/samples", "POST /sessions/2/samples"]


def test_a_session_may_be_named_by_its_url(gateway, tmp_path):
    """That is what an agent was given, whatever comes behind it."""
    urls = ["http://h/sessions/1", "https://h:1/prefix/sessions/2/v1", "http://h/sessions/3/agents/a/v1/messages"]
    assert run(gateway, *urls, out=tmp_path / "s.jsonl") == 0
    assert [row["session_id"] for row in read(tmp_path / "s.jsonl")] == ["1", "2", "3"]


def test_what_has_no_samples_is_named(gateway, tmp_path, capsys):
    path = tmp_path / "s.safetensors"
    assert run(gateway, "empty", "7", "cut", out=path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "no samples of empty: no turn was recorded",
        "no samples of cut: nothing is left to train",
    ]
    reply = decode_samples(path.read_bytes())
    assert [s["session_id"] for s in reply.session_metadata["sessions"]] == ["empty", "7", "cut"]
    assert len(reply.samples) == 1


def test_a_session_that_fails_does_not_spoil_the_others(gateway, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    assert run(gateway, "gone", "1", "broken", "junk", "2", out=path) == 1
    assert [row["session_id"] for row in read(path)] == ["1", "2"]
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: 2 samples of 2 sessions")
    complaints = err.splitlines()[1:]
    assert complaints[:2] == [
        "trio-sessions: error: session gone: 404: session not found: session_id=gone",
        "trio-sessions: error: session broken: 422: cursor 1 != 2",
    ]
    assert complaints[2].startswith("trio-sessions: error: session junk: the answer to POST /sessions/junk/samples")
    assert len(complaints) == 3


def test_nothing_is_written_when_every_session_fails(gateway, tmp_path, capsys):
    assert run(gateway, "gone", out=tmp_path / "s.jsonl") == 1
    assert list(tmp_path.iterdir()) == []
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].endswith("every session failed; " + str(tmp_path / "s.jsonl") + " is not written")


def test_a_gateway_that_is_not_there_is_one_failure(tmp_path, capsys):
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["samples", *"123", "--out", str(tmp_path / "s.jsonl"), "--gateway", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trio-sessions: error: no answer from {url} to GET /health: ConnectError")
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_breaks_is_tried_again(gateway, tmp_path):
    gateway.script = [HEALTHY, DROP]
    assert run(gateway, "1", out=tmp_path / "s.jsonl") == 0


def test_the_length_limit_is_asked_for(gateway, tmp_path):
    assert run(gateway, "1", "--max-seq-len", "9", out=tmp_path / "s.jsonl") == 0
    assert json.loads(gateway.received[-1].body) == {"max_seq_len": 9}


def test_the_format_may_be_named(gateway, tmp_path):
    assert run(gateway, "1", "--format", "safetensors", out=tmp_path / "s.bin") == 0
    assert len(decode_samples((tmp_path / "s.bin").read_bytes()).samples) == 1


def test_a_file_is_replaced_only_with_force(gateway, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    path.write_text("precious")
    assert run(gateway, "1", out=path) == 2
    assert capsys.readouterr().err == f"trio-sessions: error: --out: {path} exists already; --force replaces it\n"
    assert (path.read_text(), gateway.received) == ("precious", [])
    assert run(gateway, "1", "--force", out=path) == 0
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--out", "s.jsonl"], "SESSION requires an argument"),
        (["a"], "--out requires an argument"),
        (["a", "--out", "s.txt"], "--out: s.txt does not end in one of .safetensors, .parquet, .jsonl"),
        (["a", "--out", "absent/s.jsonl"], "--out: cannot write absent/s.jsonl: No such file or directory"),
        (["a", "--out", "s.jsonl", "--format", "csv"], "--format must be safetensors, parquet or jsonl, got 'csv'"),
        (["a", "--out", "s.jsonl", "--gateway", "host"], "--gateway: the gateway must be an http or https URL"),
        (["a", "--out", "s.jsonl", "--max-seq-len", "0"], "--max-seq-len must be at least 1, got 0"),
        ([" ", "--out", "s.jsonl"], "SESSION must be text, not empty"),
    ],
)
def test_wrong_use_is_one_line(capsys, monkeypatch, tmp_path, arguments, text):
    monkeypatch.chdir(tmp_path)
    assert main(["samples", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing(gateway, tmp_path):
    gateway.script = [HEALTHY, SILENCE]
    # A run in the background of a script would have it ignored.
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trio_sessions.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "samples", "1", "--out", "s.jsonl", "--gateway", gateway.url]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(2):
            assert gateway.arrived.acquire(timeout=20)
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_full_disk_is_one_line(gateway, tmp_path, suffix):
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from trio_sessions.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    names = [str(n) for n in range(1, 30)]
    command = [sys.executable, "-c", program, "samples", *names, "--out", f"s.{suffix}", "--gateway", gateway.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [f"trio-sessions: error: cannot write s.{suffix}: File too large"]
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_there_is_a_bar():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, legacy_windows=False)
    with progress_bar("Exporting [b]3[/b] sessions ...", 3, console) as advance:
        for _ in range(3):
            advance()
    assert "Exporting [b]3[/b] sessions" in out.getvalue()
    assert "3/3" in out.getvalue()
