"""Settings refuse what could not be served."""

from __future__ import annotations

from typing import Any

import pytest

from trio_sessions.config import Settings
from trio_sessions.errors import ConfigurationError


def _nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return {"a": value}


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("port", -1, "--port"),
        ("port", 65536, "--port"),
        ("engine", "localhost:30000", "--engine"),
        ("engine", "http://", "--engine"),
        ("engine", "http://h:99999", "--engine"),
        ("engine", "ftp://h", "--engine"),
        ("engine", "http://h:30000/v1/", "--engine"),
        ("mode", "tree", "--mode"),
        ("mode", "other", "--mode"),
        ("store", "disk", "--store"),
        ("instance_id", "F" * 32, "--instance-id"),
        ("instance_id", "f" * 31, "--instance-id"),
        ("num_layers", 0, "--num-layers"),
        ("incremental_replay", True, "--routing-replay"),
        ("engine_timeout", 0, "--engine-timeout"),
        ("engine_timeout", 1e308, "--engine-timeout"),
        ("engine_timeout", float("nan"), "--engine-timeout"),
        ("max_body_mb", 1e308, "--max-body-mb"),
        ("max_body_mb", -1, "--max-body-mb"),
        ("drain_timeout", float("inf"), "--drain-timeout"),
        ("host", "a\0b", "--host"),
        ("special_tokens_in_content", "deny", "--special-tokens-in-content"),
        ("lora", "a\udcffb", "--lora"),
        ("chat_template_kwargs", {"x": "\ud800"}, "--chat-template-kwargs"),
        ("chat_template_kwargs", {"x": float("nan")}, "--chat-template-kwargs"),
        ("chat_template_kwargs", _nested(200), "--chat-template-kwargs"),
    ],
)
def test_a_value_that_cannot_be_served_is_refused_by_its_option(field: str, value: Any, option: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**{field: value})
    assert option in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_defaults_are_safe() -> None:
    settings = Settings()
    assert settings.host == "127.0.0.1"
    assert not settings.open_proxy
    assert settings.max_body_bytes == 64 * 2**20
