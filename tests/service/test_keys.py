"""Keys from settings and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from trio_sessions.config import Settings
from trio_sessions.errors import ConfigurationError
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.keys import api_keys_of, with_keys_of_file
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer

KEY, OTHER = "a-key-of-24-characters-x", "another-key-of-some-more"


def written(folder: Path, content: bytes) -> Path:
    path = folder / "keys.txt"
    path.write_bytes(content)
    return path


def test_keys_of_the_file_join_the_others(tmp_path: Path) -> None:
    path = written(tmp_path, f"\n{OTHER}\r\n\n  second-key-in-this-file  ".encode())
    with capture_logs() as logs:
        keys = api_keys_of(Settings(api_key=(KEY,), api_key_file=path))
    assert all(keys.open(key.encode()) for key in (KEY, OTHER, "second-key-in-this-file"))
    assert not keys.open(b"")
    assert logs == []
    settled = with_keys_of_file(Settings(api_key_file=path))
    assert (len(settled.api_key), settled.api_key_file) == (2, None)
    assert with_keys_of_file(settled) is settled


def test_a_gateway_reads_the_file_whoever_makes_it(tmp_path: Path) -> None:
    settings = Settings(api_key_file=written(tmp_path, KEY.encode()), host="0.0.0.0")
    gateway = Gateway(settings, engine=ScriptedEngine(), renderer=ToyRenderer())
    assert gateway.keys
    assert gateway.keys.open(KEY.encode())
    assert not Gateway(Settings(), engine=ScriptedEngine(), renderer=ToyRenderer()).keys


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no keys"),
        (b" \n\n", "has no keys"),
        (f"{KEY}\nwith space\n".encode(), "line 2"),
        ("clé-très-secrète".encode(), "line 1"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_list_of_keys(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        api_keys_of(Settings(api_key_file=written(tmp_path, content)))
    assert "--api-key-file" in str(refused.value)
    assert not any(word in str(refused.value) for word in (KEY, "with space", "secr"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigurationError, match="--api-key-file: cannot read"):
            api_keys_of(Settings(api_key_file=path))


def test_a_short_key_in_the_file_is_warned_of(tmp_path: Path) -> None:
    with capture_logs() as logs:
        api_keys_of(Settings(api_key_file=written(tmp_path, b"short")))
    assert [(line["log_level"], "short" in line["event"]) for line in logs] == [("warning", True)]


def test_settings_show_no_key_and_keep_none() -> None:
    settings = Settings(api_key=(KEY,))
    assert KEY not in repr(settings)
    assert "sha256" not in repr(settings)
    assert KEY not in str(settings.api_key)


@pytest.mark.parametrize("keys", [("",), ("a b",), (KEY, "\u00e9"), "text"])
def test_what_is_no_key_is_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="--api-key") as refused:
        Settings(api_key=keys)
    assert "a b" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost", "::ffff:127.0.0.1"])
def test_without_keys_this_machine_can_be_listened_to(host: str) -> None:
    assert Settings(host=host).host == host


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "gateway.example", "localhost.example", "128.0.0.1", "127.1", "::2"]
)
def test_without_keys_others_can_not_be_listened_to(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(host=host)
    assert all(remedy in str(refused.value) for remedy in ("--host", "--api-key KEY", "--insecure"))
    assert Settings(host=host, insecure=True).host == host
    assert Settings(host=host, api_key=(KEY,)).guarded
    assert Settings(host=host, api_key_file=tmp_path / "k").guarded
