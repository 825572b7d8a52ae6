"""Wrong use ends with one line on stderr and exit status 2."""

from __future__ import annotations

import os

import pytest

from trio_sessions.cli.app import main

# In processes of their own: one case of each way to be wrong.
IN_A_PROCESS = [
    (["serve", "--port", "abc"], {}, "--port must be a whole number, got 'abc'"),
    (["serve", "--engine", "localhost"], {}, "--engine must be an http or https URL"),
    (["serve", "--chat-template-kwargs", "{bad"], {}, "--chat-template-kwargs must be a JSON object"),
    (["serve", "--message-matcher", "fuzzy"], {}, "--message-matcher: unknown message matcher 'fuzzy'"),
    (["serve", "--mode", "bush"], {}, "--mode must be linear or tree, got bush"),
    (["serve", "--no-such"], {}, "Unknown option: --no-such"),
    (["serv"], {}, 'Did you mean "serve"?'),
    (["serve"], {"TRIO_SESSIONS_PORT": "abc"}, "got 'abc' (from TRIO_SESSIONS_PORT)"),
]
IN_THIS_PROCESS = [
    (["serve", "--port", "-1"], {}, "--port must be between 0 and 65535, got -1"),
    (["serve", "--port"], {}, "--port requires an argument"),
    (["serve", "--port", "1", "--port", "2"], {}, "--port specified multiple times"),
    (["serve", "--message-matcher", "no.such"], {}, "--message-matcher: cannot import message matcher 'no.such'"),
    (["serve", "--tokenizer", "./absent"], {}, "--tokenizer: ./absent is not a folder"),
    (["serve", "--family", "klingon"], {}, "--family must be one of auto, default, qwen3"),
    (["serve"], {"TRIO_SESSIONS_FAMILY": "klingon"}, "got 'klingon' (from TRIO_SESSIONS_FAMILY)"),
    (["serve", "--routing-replay=maybe"], {}, "--routing-replay"),
    (["serve", "--config", "absent.toml"], {}, "--config: cannot read absent.toml: No such file"),
    (["serve", "stray"], {}, "unexpected argument 'stray'"),
    (["--no-such"], {}, "unknown option --no-such"),
    (["engine", "--tokenizer", "/absent"], {}, "--tokenizer: /absent is not a folder"),
    (["engine", "--model", "/absent"], {}, "--model: /absent is not a folder"),
    (["engine", "--model", "/absent", "--tokenizer", "."], {}, "--model and --tokenizer exclude each other"),
    (["engine", "--port", "-1"], {}, "--port must be between 0 and 65535, got -1"),
    (["engine", "--latency", "-1"], {}, "--latency must not be negative, got -1"),
    (["engine", "--latency", "-1x"], {}, "--latency must be a number, got '-1x'"),
    (["verify"], {}, 'Command "verify" parameter TOKENIZER requires an argument'),
    (["verify", "builtin", "stray"], {}, "unexpected argument 'stray'"),
    (["verify", " "], {}, "TOKENIZER must be text, not empty"),
    (["verify", "./absent"], {}, "./absent is not a folder"),
    (["verify", "builtin", "--family", "klingon"], {}, "--family must be one of auto, default, qwen3"),
    (["verify", "builtin", "--chat-template-kwargs", "[]"], {}, "--chat-template-kwargs must be a JSON object"),
    (["demo", "--seed", "x"], {}, "--seed must be a whole number, got 'x'"),
    (["serve"], {"TRIO_SESSIONS_MODE": "bush"}, "got bush (from TRIO_SESSIONS_MODE)"),
    (["serve"], {"TRIO_SESSIONS_MESSAGE_MATCHER": "fuzzy"}, "(from TRIO_SESSIONS_MESSAGE_MATCHER)"),
    (["serve"], {"TRIO_SESSIONS_TOKENIZER": "/absent"}, "(from TRIO_SESSIONS_TOKENIZER)"),
    (["serve"], {"TRIO_SESSIONS_CONFIG": "absent.toml"}, "(from TRIO_SESSIONS_CONFIG)"),
]


def assert_one_line(status: int, out: str, err: str, text: str) -> None:
    assert status == 2
    assert out == ""
    assert err.startswith("trio-sessions: error: ")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "environment", "text"), IN_A_PROCESS)
def test_one_line_and_status_2(run, arguments, environment, text):
    done = run(*arguments, environment=environment)
    assert_one_line(done.status, done.out, done.err, text)


@pytest.mark.parametrize(("arguments", "environment", "text"), IN_THIS_PROCESS)
def test_one_line_and_status_2_of_main(capsys, monkeypatch, tmp_path, arguments, environment, text):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TRIO_SESSIONS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status = main(arguments)
    assert_one_line(status, *capsys.readouterr(), text)


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("port = = 1", "--config: c.toml is not valid TOML: Invalid value (at line 1"),
        ("prot = 1", "--config: unknown key 'prot' in c.toml"),
        ("[serve]\nport = 'x'", "--port must be a whole number, got 'x' (from c.toml)"),
    ],
)
def test_a_wrong_file(run, tmp_path, toml, text):
    (tmp_path / "c.toml").write_text(toml, encoding="utf-8")
    done = run("serve", "--config", "c.toml")
    assert_one_line(done.status, done.out, done.err, text)
