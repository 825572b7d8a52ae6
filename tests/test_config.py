"""Settings refuse what could not be served."""

from __future__ import annotations

from typing import Any

import pytest

from trio_sessions.config import Settings
from trio_sessions.core.history import SeamPolicy
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
        ("workers", 0, "--workers"),
        ("workers", 257, "--workers"),
        ("worker_port_base", 0, "--worker-port-base"),
        ("worker_port_base", 65536, "--worker-port-base"),
        ("engine", "localhost:30000", "--engine"),
        ("engine", "http://", "--engine"),
        ("engine", "http://h:99999", "--engine"),
        ("engine", "ftp://h", "--engine"),
        ("engine", "http://h:30000/v1/", "--engine"),
        ("mode", "bush", "--mode"),
        ("mode", "other", "--mode"),
        ("store", "", "--store"),
        ("durability", "some", "--durability"),
        ("max_sessions", 0, "--max-sessions"),
        ("session_ttl", 0.0, "--session-ttl"),
        ("max_memory_mb", 0.0, "--max-memory-mb"),
        ("instance_id", "F" * 32, "--instance-id"),
        ("instance_id", "f" * 31, "--instance-id"),
        ("num_layers", 0, "--num-layers"),
        ("incremental_replay", True, "--routing-replay"),
        ("engine_timeout", 0, "--engine-timeout"),
        ("engine_timeout", 1e308, "--engine-timeout"),
        ("engine_timeout", float("nan"), "--engine-timeout"),
        ("max_body_mb", 1e308, "--max-body-mb"),
        ("max_body_mb", -1, "--max-body-mb"),
        ("max_answer_mb", 0, "--max-answer-mb"),
        ("max_answer_mb", float("nan"), "--max-answer-mb"),
        ("drain_timeout", float("inf"), "--drain-timeout"),
        ("host", "a\0b", "--host"),
        ("special_tokens_in_content", "deny", "--special-tokens-in-content"),
        ("on_truncated", "keep", "--on-truncated"),
        ("on_tools_change", "ignore", "--on-tools-change"),
        ("tools_as", "openai", "--tools-as"),
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


@pytest.mark.parametrize("port", [9100, 9103])
def test_the_port_of_all_is_none_of_the_workers(port: int) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(port=port, workers=4, worker_port_base=9100)
    told = f"--worker-port-base 9100 gives workers the ports 9100 to 9103, which include --port {port}"
    assert str(refused.value) == told
    for free in (9099, 9104):
        assert Settings(port=free, workers=4, worker_port_base=9100).port == free


def test_branching_needs_the_mode_that_branches() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(on_tools_change="branch")
    assert str(refused.value) == (
        "--on-tools-change branch needs --mode tree: --mode linear has one line of turns; use report or reject"
    )


def test_a_linear_session_closes_what_was_cut_unless_told_otherwise() -> None:
    assert Settings().seam_policy == SeamPolicy(on_truncated="close", on_tools_change="report")
    assert Settings(on_truncated="refuse").seam_policy.on_truncated == "refuse"
    assert Settings(on_tools_change="reject").seam_policy.on_tools_change == "reject"


def test_the_defaults_are_safe() -> None:
    settings = Settings()
    assert settings.host == "127.0.0.1"
    assert not settings.open_proxy
    assert settings.max_body_bytes == 64 * 2**20
