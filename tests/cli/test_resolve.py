"""Where the value of a setting comes from, without a process."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path

import pytest

from trio_sessions.cli import kinds
from trio_sessions.cli.options import CONFIG, ENGINE_OPTIONS, SERVE_OPTIONS, Option, options_by_field
from trio_sessions.cli.resolve import (
    ConfigFile,
    config_path,
    parse_arguments,
    parse_config,
    read_config,
    resolve_settings,
)
from trio_sessions.config import Settings
from trio_sessions.errors import ConfigurationError

OPTIONS = options_by_field(SERVE_OPTIONS)

KEY = "a-key-of-24-characters-x"
HASHED = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()

# Per option: text as typed, the same as TOML, and the value both become.
VALUES: dict[str, tuple[str, str, object]] = {
    "host": ("0.0.0.0", '"0.0.0.0"', "0.0.0.0"),
    "port": ("9001", "9001", 9001),
    "workers": ("4", "4", 4),
    "worker_port_base": ("9100", "9100", 9100),
    "api_key": (KEY, f'["{KEY}"]', (HASHED,)),
    "api_key_file": ("keys.txt", '"keys.txt"', Path("keys.txt")),
    "insecure": ("1", "true", True),
    "tls_cert": ("c.pem", '"c.pem"', Path("c.pem")),
    "tls_key": ("k.pem", '"k.pem"', Path("k.pem")),
    "tls_ca": ("ca.pem", '"ca.pem"', Path("ca.pem")),
    "engine": ("http://127.0.0.1:1", '"http://127.0.0.1:1"', "http://127.0.0.1:1"),
    "tokenizer": ("some/model", '"some/model"', "some/model"),
    "family": ("qwen3", '"qwen3"', "qwen3"),
    "mode": ("linear", '"linear"', "linear"),
    "chat_template": ("a.jinja", '"a.jinja"', Path("a.jinja")),
    "chat_template_kwargs": ('{"a": [1]}', "{a = [1]}", {"a": [1]}),
    "special_tokens_in_content": ("reject", '"reject"', "reject"),
    "tools_as": ("given", '"given"', "given"),
    "on_truncated": ("refuse", '"refuse"', "refuse"),
    "on_tools_change": ("reject", '"reject"', "reject"),
    "message_matcher": ("loose_tool_call", '"loose_tool_call"', "loose_tool_call"),
    "routing_replay": ("true", "true", True),
    "indexer_replay": ("1", "true", True),
    "incremental_replay": ("false", "false", False),
    "num_layers": ("4", "4", 4),
    "sample_picker": ("longest", '"longest"', "longest"),
    "sample_postprocessor": ("my.hooks.finish", '"my.hooks.finish"', "my.hooks.finish"),
    "lora": ("adapter", '"adapter"', "adapter"),
    "instance_id": ("ab" * 16, f'"{"ab" * 16}"', "ab" * 16),
    "store": ("here.journal", '"here.journal"', "here.journal"),
    "durability": ("relaxed", '"relaxed"', "relaxed"),
    "max_sessions": ("7", "7", 7),
    "session_ttl": ("60", "60.0", 60.0),
    "max_memory_mb": ("512", "512.0", 512.0),
    "max_seq_len": ("4096", "4096", 4096),
    "session_deadline": ("60", "60", 60.0),
    "max_turns": ("8", "8", 8),
    "max_session_turns": ("2", "2", 2),
    "turn_queue": ("0", "0", 0),
    "turn_queue_timeout": ("1.5", "1.5", 1.5),
    "max_messages": ("400", "400", 400),
    "max_nodes": ("16", "16", 16),
    "max_session_tokens": ("4096", "4096", 4096),
    "max_json_values": ("1000", "1000", 1000),
    "retry_linger": ("5", "5", 5.0),
    "retry_window": ("0", "0", 0.0),
    "on_delete": ("cancel", '"cancel"', "cancel"),
    "engine_timeout": ("1.5", "1.5", 1.5),
    "stream_grace": ("2", "2", 2.0),
    "stream": ("real", '"real"', "real"),
    "stream_keep_alive": ("5", "5", 5.0),
    "max_body_mb": ("2", "2", 2.0),
    "body_timeout": ("2.5", "2.5", 2.5),
    "header_timeout": ("2.5", "2.5", 2.5),
    "send_timeout": ("2.5", "2.5", 2.5),
    "max_connections": ("16", "16", 16),
    "max_answer_mb": ("8", "8", 8.0),
    "open_proxy": ("True", "true", True),
    "drain_timeout": ("0", "0", 0.0),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}


NEEDED = {
    "host": {"insecure": True},
    "tls_ca": {"tls_cert": "c.pem", "tls_key": "k.pem"},
    "tls_cert": {"tls_key": "k.pem"},
    "tls_key": {"tls_cert": "c.pem"},
    "worker_port_base": {"workers": "2"},
}
"""What an option is refused without."""


def settings(arguments=None, environment=None, toml: str | None = None) -> Settings:
    file = parse_config(toml, "c.toml") if toml is not None else None
    return resolve_settings(arguments or {}, environment=environment or {}, file=file).settings


def refusal(arguments=None, environment=None, toml: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings(arguments, environment, toml)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_options_are_the_fields_of_settings_in_their_order():
    assert [option.field for option in SERVE_OPTIONS] == [field.name for field in dataclasses.fields(Settings)]


def test_nothing_set_is_the_defaults_of_settings_but_that_sessions_are_written_down():
    assert settings() == dataclasses.replace(Settings(), store="trio-sessions.journal")
    assert settings({"store": "memory"}) == Settings()


@pytest.mark.parametrize("field", VALUES)
def test_every_option_from_every_source(field):
    text, toml, value = VALUES[field]
    option = OPTIONS[field]
    argument = bool(value) if option.kind.is_flag else text
    needed = NEEDED.get(field, {})
    from_line = settings({field: argument, **needed})
    from_environment = settings(needed, environment={option.variable: text})
    from_file = settings(needed, toml=f"{field.replace('_', '-')} = {toml}")
    for resolved in (from_line, from_environment, from_file):
        assert getattr(resolved, field) == value
        if field != "chat_template_kwargs":  # kept read-only
            assert type(getattr(resolved, field)) is type(value)


def test_every_option_has_a_value_in_this_test():
    assert VALUES.keys() == OPTIONS.keys()


@pytest.mark.parametrize(
    ("line", "environment", "file", "expected"),
    [
        (None, None, None, 8700),
        (None, None, 3, 3),
        (None, "2", 3, 2),
        ("1", "2", 3, 1),
        ("1", None, 3, 1),
        ("1", "2", None, 1),
        (None, "", 3, 3),
    ],
)
def test_precedence(line, environment, file, expected):
    resolved = settings(
        {} if line is None else {"port": line},
        {} if environment is None else {"TRIO_SESSIONS_PORT": environment},
        None if file is None else f"port = {file}",
    )
    assert resolved.port == expected


def test_a_flag_can_be_taken_back_on_the_command_line():
    assert settings({"open_proxy": False}, {"TRIO_SESSIONS_OPEN_PROXY": "1"}).open_proxy is False


def test_a_value_that_loses_is_not_looked_at():
    assert settings({"port": "1"}, {"TRIO_SESSIONS_PORT": "x"}, "port = 'y'").port == 1


def test_sources_mix_option_by_option():
    resolved = settings({"port": "1"}, {"TRIO_SESSIONS_HOST": "::1"}, "lora = 'l'\nport = 2\nhost = 'no'")
    assert (resolved.port, resolved.host, resolved.lora) == (1, "::1", "l")


def test_origins_name_variables_and_files_but_not_the_command_line():
    resolved = resolve_settings(
        {"port": "1"},
        environment={"TRIO_SESSIONS_FAMILY": "x"},
        file=ConfigFile("c.toml", {"message_matcher": "m", "port": 2}),
    )
    assert resolved.origins == {"family": "TRIO_SESSIONS_FAMILY", "message_matcher": "c.toml"}
    assert resolved.explain("--family x: no") == "--family x: no (from TRIO_SESSIONS_FAMILY)"
    assert resolved.explain("--message-matcher: no") == "--message-matcher: no (from c.toml)"
    assert resolved.explain("--port 1: no") == "--port 1: no"
    assert resolved.explain("no option") == "no option"


@pytest.mark.parametrize(
    ("field", "text", "toml"),
    [
        ("port", "abc", "'1'"),
        ("port", "1.5", "1.5"),
        ("port", "-1", "-1"),
        ("port", "65536", "65536"),
        ("port", "", "true"),
        ("host", "  ", "1"),
        ("workers", "0", "0"),
        ("workers", "257", "1.5"),
        ("worker_port_base", "65536", "0"),
        ("engine", "localhost:30000", "'ftp://h'"),
        ("engine", "http://", "''"),
        ("engine", "http://h:99999", "[]"),
        ("mode", "bush", "'bush'"),
        ("mode", "both", "'both'"),
        ("durability", "some", "'some'"),
        ("chat_template", "", "1"),
        ("chat_template_kwargs", "{", "'{}'"),
        ("chat_template_kwargs", "[1]", "[1]"),
        ("chat_template_kwargs", '{"a": NaN}', "{a = nan}"),
        ("chat_template_kwargs", "[" * 100_000, "{a = 2020-01-01}"),
        ("tools_as", "openai", "[]"),
        ("on_truncated", "keep", "true"),
        ("on_tools_change", "ignore", "1"),
        ("on_tools_change", "branch", "'branch'"),
        ("num_layers", "0", "0"),
        ("instance_id", "XY", "'XY'"),
        ("max_seq_len", "1", "1"),
        ("session_deadline", "0", "0"),
        ("max_turns", "0", "0"),
        ("max_session_turns", "0", "0"),
        ("turn_queue", "-1", "-1"),
        ("turn_queue_timeout", "-1", "-1"),
        ("max_messages", "0", "0"),
        ("max_nodes", "0", "0"),
        ("max_session_tokens", "0", "0"),
        ("max_json_values", "999", "1.5"),
        ("body_timeout", "0", "0"),
        ("header_timeout", "0", "0"),
        ("send_timeout", "0", "0"),
        ("max_connections", "0", "0"),
        ("retry_window", "-1", "-1"),
        ("retry_linger", "-1", "-1"),
        ("on_delete", "forget", "'forget'"),
        ("engine_timeout", "0", "0"),
        ("engine_timeout", "inf", "inf"),
        ("engine_timeout", "nan", "nan"),
        ("stream_grace", "-1", "-1"),
        ("stream_keep_alive", "0", "0"),
        ("stream", "live", "'live'"),
        ("max_body_mb", "-2", "'2'"),
        ("drain_timeout", "-1", "-1"),
        ("log_level", "loud", "'loud'"),
        ("log_format", "xml", "'xml'"),
    ],
)
def test_a_wrong_value_names_its_option_and_where_it_is_from(field, text, toml):
    option = OPTIONS[field]
    on_line = refusal({field: text})
    assert option.flag in on_line
    assert "from" not in on_line
    if text:
        in_environment = refusal(environment={option.variable: text})
        assert in_environment == f"{on_line} (from {option.variable})"
    in_file = refusal(toml=f"{field} = {toml}")
    assert option.flag in in_file
    assert in_file.endswith(" (from c.toml)")


@pytest.mark.parametrize("word", ["yes", "2", "on", "maybe"])
def test_a_wrong_flag_in_the_environment(word):
    assert refusal(environment={"TRIO_SESSIONS_OPEN_PROXY": word}) == (
        f"--open-proxy must be 1, 0, true or false, got '{word}' (from TRIO_SESSIONS_OPEN_PROXY)"
    )


def test_a_wrong_flag_in_the_file():
    assert "--open-proxy" in refusal(toml="open-proxy = 'true'")


def test_options_that_need_each_other_name_where_the_first_is_from():
    assert refusal(environment={"TRIO_SESSIONS_INCREMENTAL_REPLAY": "1"}) == (
        "--incremental-replay needs --routing-replay (from TRIO_SESSIONS_INCREMENTAL_REPLAY)"
    )


def test_a_long_wrong_value_is_cut():
    assert len(refusal({"chat_template_kwargs": "x" * 10_000})) < 250


@pytest.mark.parametrize(
    "toml",
    [
        "max-body-mb = 3\nchat-template-kwargs = {a = 1}",
        "max_body_mb = 3\n[chat_template_kwargs]\na = 1",
        "[serve]\nmax-body-mb = 3\nchat_template_kwargs = {a = 1}",
        "[serve]\nmax_body_mb = 3\n[serve.chat-template-kwargs]\na = 1",
        "max-body-mb = 3\n[serve.chat-template-kwargs]\na = 1",
    ],
)
def test_spellings_of_a_file(toml):
    resolved = settings(toml=toml)
    assert resolved.max_body_mb == 3
    assert resolved.chat_template_kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("prot = 1", "'prot'"),
        ("[serve]\nprot = 1", "'prot'"),
        ("[other]\nport = 1", "'other'"),
        ("config = 'x'", "'config'"),
        ("port = 1\n[serve]\nport = 2", "'port'"),
        ("max-body-mb = 1\nmax_body_mb = 1", "'max_body_mb'"),
        ("serve = 1", "serve"),
        ("port = = 1", "line 1"),
        ("port = 1\nport = 2", "overwrite"),
    ],
)
def test_a_wrong_file_names_the_key_and_itself(toml, named):
    text = refusal(toml=toml)
    assert text.startswith("--config: ")
    assert named in text
    assert "c.toml" in text


def test_the_configuration_file_is_named_on_the_line_or_in_the_environment():
    environment = {"TRIO_SESSIONS_CONFIG": "e.toml"}
    assert config_path({}, {}) is None
    assert config_path({}, environment) == (Path("e.toml"), "TRIO_SESSIONS_CONFIG")
    assert config_path({"config": "l.toml"}, environment) == (Path("l.toml"), "")
    with pytest.raises(ConfigurationError, match="--config must be"):
        config_path({"config": ""}, {})


def test_reading_a_configuration_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("port = 7", encoding="utf-8")
    assert read_config(path) == ConfigFile(str(path), {"port": 7})
    path.write_bytes(b"host = '\xff'")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        read_config(path)
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file .* \(from TRIO_SESSIONS_CONFIG\)"):
        read_config(tmp_path / "absent.toml", origin="TRIO_SESSIONS_CONFIG")
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_config(tmp_path)


def test_a_command_without_environment_or_file():
    assert parse_arguments(ENGINE_OPTIONS, {})["port"] == 30000
    assert parse_arguments(ENGINE_OPTIONS, {"port": "0", "latency": "0.5"}) == {
        **{option.field: option.default for option in ENGINE_OPTIONS},
        "port": 0,
        "latency": 0.5,
    }
    with pytest.raises(ConfigurationError, match="--seed must be a whole number, got 'x'"):
        parse_arguments(ENGINE_OPTIONS, {"seed": "x"})


@pytest.mark.parametrize("option", [*SERVE_OPTIONS, CONFIG, *ENGINE_OPTIONS], ids=lambda option: option.field)
def test_options_explain_themselves(option: Option):
    assert re.fullmatch(r"--[a-z][a-z-]*", option.flag)
    assert re.fullmatch(r"TRIO_SESSIONS_[A-Z_]+", option.variable)
    assert option.meaning.endswith(".")
    assert option.default_text
    assert option.kind.metavar or option.kind is kinds.FLAG
