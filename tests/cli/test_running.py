"""The commands as processes, from their first line to their exit status."""

from __future__ import annotations

import resource
import signal
import socket

import httpx
import pytest

from tests.cli.conftest import clean_environment
from tests.processes import command


def test_serve_tells_how_to_use_it_and_ends_with_0(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("port = 0\nhost = 'no.such.host.invalid'\n", encoding="utf-8")
    environment = {"TRIO_SESSIONS_HOST": "127.0.0.1", "TRIO_SESSIONS_INSTANCE_ID": "ab" * 16}
    with command("serve", "--config", str(config), env=environment) as gateway:
        health = httpx.get(f"{gateway.url}/health").json()
        assert health == {"status": "ok", "session_server_instance_id": "ab" * 16}
        assert gateway.stop(signal.SIGINT) == 0
    banner = "".join(gateway.output)
    assert f"curl -sX POST {gateway.url}/sessions\n" in banner
    assert f"{gateway.url}/sessions/<id>/v1\n" in banner
    assert "a toy" in banner
    log = "".join(gateway.log)
    assert "loading tokenizer builtin" in log
    assert "Traceback" not in log


def test_serve_says_where_the_system_allows_too_few_connections():
    """Of a gateway that would like more than any system has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    environment = clean_environment()
    with command("serve", "--port", "0", "--max-connections", str(10**9), env=environment) as gateway:
        assert gateway.stop() == 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    [line] = [line for line in gateway.log if "too few open files" in line]
    assert "--max-connections" in line
    assert f"wanted={10**9 + 1024 + 64}" in line


def test_an_address_that_is_taken_is_one_line_and_status_1(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (["serve"], ["engine"]):
            done = run(*arguments, "--port", str(port))
            complaint = done.err.splitlines()[-1]
            assert done.status == 1
            assert complaint.startswith(f"trio-sessions: error: cannot listen on 127.0.0.1:{port}: ")
            assert "--port" in complaint
            assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "environment", "parts"),
    [
        (["--tokenizer", "."], {}, ["--tokenizer: cannot load '.'"]),
        (["--chat-template", "absent.jinja"], {}, ["--chat-template absent.jinja"]),
        (
            [],
            {"TRIO_SESSIONS_CHAT_TEMPLATE": "absent.jinja"},
            ["--chat-template absent.jinja", "(from TRIO_SESSIONS_CHAT_TEMPLATE)"],
        ),
    ],
)
def test_what_is_only_found_wrong_when_loading(run, arguments, environment, parts):
    done = run("serve", "--port", "0", *arguments, environment=environment)
    complaint = done.err.splitlines()[-1]
    assert done.status == 2
    assert complaint.startswith("trio-sessions: error: ")
    assert all(part in complaint for part in parts)
    assert "Traceback" not in done.err


def test_a_tokenizer_that_the_engine_cannot_load(run):
    done = run("engine", "--tokenizer", ".")
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith("trio-sessions: error: --tokenizer: ")


def test_a_wrong_fault_lists_the_kinds(run):
    done = run("engine", "--fault", "gremlins")
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith("trio-sessions: error: --fault: ")
    assert "Traceback" not in done.err


def test_engine_prints_its_url_and_ends_with_0():
    with command("engine", "--port", "0", "--seed", "3", env=clean_environment()) as engine:
        assert httpx.get(f"{engine.url}/v1/models").status_code == 200
        assert engine.stop() == 0


def test_the_demo_is_exact_and_the_same_seed_prints_the_same(run):
    first = run("demo", "--seed", "5")
    assert first.status == 0, first.err
    assert first.err == "Running an engine, a gateway and an agent of three turns ...\n"
    assert "\x1b" not in first.out
    for part in ("get_weather(", "[turn 1, prompt", "[turn 2, template", "[turn 3, sampled", "Exact:"):
        assert part in first.out
    assert "[turn 4" not in first.out
    assert run("demo", "--seed", "5").out == first.out
