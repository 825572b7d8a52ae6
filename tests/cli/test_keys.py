"""Keys on the command line: from every source, never shown, and what is refused before anything is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.client.scripted import Received, Reply, Scripted
from trio_sessions.cli import serving
from trio_sessions.cli.app import main
from trio_sessions.cli.resolve import parse_config, resolve_settings
from trio_sessions.cli.serving import banner
from trio_sessions.config import Settings
from trio_sessions.core.samples import encode_samples
from trio_sessions.errors import ConfigurationError
from trio_sessions.serve import Running

KEY, OTHER = "a-key-of-24-characters-x", "another-key-of-some-more"
VARIABLE = "TRIO_SESSIONS_API_KEY"


def hashed(*keys: str) -> tuple[str, ...]:
    return tuple(f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for key in keys)


def keys(arguments=None, environment=None, toml=None) -> tuple[str, ...]:
    file = None if toml is None else parse_config(toml, "c.toml")
    return resolve_settings(arguments or {}, environment=environment or {}, file=file).settings.api_key


def test_several_keys_from_every_source() -> None:
    assert keys({"api_key": [KEY, OTHER]}) == hashed(KEY, OTHER)
    assert keys(environment={VARIABLE: f" {KEY}  {OTHER}\n"}) == hashed(KEY, OTHER)
    assert keys(toml=f"api-key = ['{KEY}', '{OTHER}']") == hashed(KEY, OTHER)
    assert keys(toml=f"[serve]\napi_key = '{KEY}'") == hashed(KEY)
    assert keys({"api_key": [OTHER]}, {VARIABLE: KEY}, f"api-key = '{KEY}'") == hashed(OTHER)
    assert keys({"api_key": [*hashed(KEY)]}) == hashed(KEY)


@pytest.mark.parametrize(
    ("arguments", "environment", "toml"),
    [
        ({"api_key": [""]}, None, None),
        ({"api_key": ["secret secret"]}, None, None),
        ({"api_key": ["secr\u00e9t"]}, None, None),
        (None, {VARIABLE: "  "}, None),
        (None, {VARIABLE: "secr\u00e9t"}, None),
        (None, None, "api-key = []"),
        (None, None, "api-key = ''"),
        (None, None, "api-key = 17"),
        (None, None, "api-key = ['secret secret']"),
        (None, None, "api-key = [['secret']]"),
        (None, None, "api-key = {secret = 'secret'}"),
    ],
)
def test_a_wrong_key_is_refused_and_not_shown(arguments, environment, toml) -> None:
    with pytest.raises(ConfigurationError) as refused:
        keys(arguments, environment, toml)
    text = str(refused.value)
    assert text.startswith("--api-key")
    assert "secr" not in text
    assert "17" not in text
    assert text.endswith(f"(from {VARIABLE})" if environment else "(from c.toml)" if toml else "")


def test_a_short_key_is_a_warning() -> None:
    def warnings(*given: str) -> tuple[str, ...]:
        return resolve_settings({"api_key": list(given)}, environment={}).warnings

    [text] = warnings(KEY, "short")
    assert text.startswith("--api-key")
    assert warnings(KEY) == warnings(*hashed("short")) == ()


@pytest.fixture
def _nothing_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def started(*_: object) -> None:
        raise AssertionError("began to serve")

    monkeypatch.setattr(serving, "progress", started)
    monkeypatch.chdir(tmp_path)
    for name in ("HOST", "API_KEY", "API_KEY_FILE", "INSECURE"):
        monkeypatch.delenv(f"TRIO_SESSIONS_{name}", raising=False)


@pytest.mark.usefixtures("_nothing_is_served")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], ["--host 0.0.0.0", "--api-key KEY", "--insecure"]),
        (["--host", "gateway.example", "--workers", "2"], ["--host gateway.example"]),
        (["--api-key-file", "absent.txt"], ["--api-key-file: cannot read absent.txt"]),
        (["--host", "::", "--api-key-file", "absent.txt"], ["--api-key-file"]),
        (["--api-key", KEY, "--api-key", "a b"], ["--api-key: a key must be ASCII without white space"]),
        (["--tls-cert", "c.pem"], ["--tls-cert and --tls-key"]),
        (["--tls-cert", "c.pem", "--tls-key", "k.pem", "--workers", "2"], ["--workers is 2"]),
    ],
)
def test_what_is_refused_before_anything_is_loaded(capsys, arguments, told) -> None:
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(part in err for part in told)
    assert KEY not in err


def test_the_help_shows_no_key_from_the_environment(capsys, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    for command in ("serve", "samples"):
        main([command, "--help"])
        out = capsys.readouterr().out
        assert "--api-key" in out
        assert KEY not in out


def test_the_banner_says_how_to_show_a_key_and_shows_none() -> None:
    running = Running(base_url="https://127.0.0.1:1", engine_url="e", instance_id="i", family="f")
    guarded, plain = banner(Settings(api_key=(KEY,)), running), banner(Settings(), running)
    assert 'curl -sX POST https://127.0.0.1:1/sessions -H "authorization: Bearer $TRIO_SESSIONS_API_KEY"\n' in guarded
    assert "authorization" not in plain
    assert KEY not in guarded
    assert "sha256" not in guarded


@pytest.mark.parametrize(("option", "variable"), [(KEY, None), (None, KEY), (KEY, OTHER)])
def test_samples_are_fetched_with_the_key(tmp_path, monkeypatch, option, variable) -> None:
    def answer(request: Received) -> Reply:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply.error(401, "no valid API key")
        if request.path == "/health":
            return Reply.json({"status": "ok", "session_server_instance_id": "i"})
        return Reply(body=encode_samples([], {}, "no_records"))

    monkeypatch.delenv(VARIABLE, raising=False)
    if variable:
        monkeypatch.setenv(VARIABLE, variable)
    with Scripted(answer).running() as url:
        arguments = ["samples", "s", "--out", str(tmp_path / "s.jsonl"), "--gateway", url]
        assert main([*arguments, *(["--api-key", option] if option else [])]) == 0


def test_samples_without_the_key_say_what_is_missing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with Scripted(lambda _: Reply.error(401, "no valid API key")).running() as url:
        assert main(["samples", "s", "--out", str(tmp_path / "s.jsonl"), "--gateway", url]) == 1
    assert "no valid API key" in capsys.readouterr().err
    assert main(["samples", "s", "--out", "s.jsonl", "--gateway", url, "--api-key", "a b"]) == 2
    assert "--api-key" in (err := capsys.readouterr().err)
    assert "a b" not in err
