"""The snippets of docs/trainers.md run as they stand, and make what the frameworks' own classes accept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import command
from trio_sessions.client import Client

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
PYTHON = "".join(block for language, block in BLOCKS if language == "python")
SHELL = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]

# What the frameworks declare, as far as these samples fill it in.
CHECKS = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

from pydantic import BaseModel

model_ids = sample.tokens[sample.response_start:][sample.loss_mask == 1]
assert 0 < len(model_ids) < sample.response_length < len(sample.tokens)
assert sample.rollout_log_probs[sample.loss_mask == 1].max() <= 0.0
assert split(sample)[0] + split(sample)[1] == sample.tokens.tolist()
assert [message["role"] for message in messages] == ["user"]

# TRL: lists of one length, an inner list for every prompt.
assert {"prompt_ids", "completion_ids", "logprobs"} <= rollouts.keys()
assert {len(value) for value in rollouts.values()} == {2}
for ids, log_probs, mask in zip(rollouts["completion_ids"], rollouts["logprobs"], rollouts["env_mask"], strict=True):
    assert len(ids) == len(log_probs) == len(mask)
    assert set(mask) == {0, 1}
    assert {type(id_) for id_ in ids} == {int}
    assert {type(log_prob) for log_prob in log_probs} == {float}
assert rollouts["status"] == ["completed"] * 2


# verl
class AgentLoopMetrics(BaseModel):
    generate_sequences: float = 0.0
    tool_calls: float = 0.0


class AgentLoopOutput(BaseModel, extra="forbid", strict=True):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: Optional[list[float]] = None
    routed_experts: Optional[Any] = None
    reward_score: Optional[float] = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}


loop = AgentLoopOutput(**output)
assert len(loop.response_ids) == len(loop.response_mask) == len(loop.response_logprobs) == sum(loop.response_mask)
assert (loop.num_turns, loop.reward_score) == (2, 1.0)


# slime and miles
class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class TheirSample:
    tokens: list = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: Any = None
    weight_versions: list = field(default_factory=list)
    rollout_log_probs: Any = None
    rollout_routed_experts: Any = None
    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)
    prefix_cache_info: Any = None


theirs = TheirSample(**{**fields, "status": Status(fields["status"])})
assert theirs.status is Status.COMPLETED
assert theirs.response_length == len(theirs.loss_mask) == len(theirs.rollout_log_probs) <= len(theirs.tokens)
assert set(theirs.loss_mask) == {0, 1}
assert theirs.prefix_cache_info.keys() == {"cached_tokens", "total_prompt_tokens"}

# Padded tensors.
short = __import__("dataclasses").replace(
    sample, tokens=sample.tokens[1:-1], loss_mask=sample.loss_mask[:-1],
    rollout_log_probs=sample.rollout_log_probs[:-1], response_length=sample.response_length - 1,
)
two = padded([sample, short], pad_id=-1)
assert two["input_ids"].shape == two["attention_mask"].shape == (2, len(sample.tokens))
assert two["input_ids"][1, 0] == two["input_ids"][1, -1] == -1
assert two["attention_mask"].sum(axis=1).tolist() == [len(sample.tokens), len(sample.tokens) - 2]
assert two["input_ids"][1, 1:-1].tolist() == short.tokens.tolist()
assert batch["response_mask"].tolist() == [sample.loss_mask.tolist()]

flat = {"rollout_routed_experts": [1, 2, 3, 4], "rollout_routed_experts_shape": [1, 2, 2]}
assert routed_experts(flat).tolist() == [[[1, 2], [3, 4]]]
assert routed_experts({"rollout_routed_experts": None}) is None
"""


def test_the_snippets_run_one_after_the_other_against_a_gateway() -> None:
    with command("serve", "--port", "0") as gateway:
        program = PYTHON.replace("http://127.0.0.1:8700", gateway.url)
        assert program.count(gateway.url) == 2
        done = subprocess.run(
            [sys.executable, "-c", program + CHECKS], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("suffix", ["parquet", "safetensors", "jsonl"])
def test_the_command_writes_a_session(tmp_path: Path, suffix: str) -> None:
    [line] = SHELL
    with command("serve", "--port", "0") as gateway, Client(gateway.url) as client, client.session() as session:
        session.chat([{"role": "user", "content": "What is a prefix?"}])
        arguments = line.replace("SESSION", session.id).replace("samples.parquet", f"samples.{suffix}").split()
        done = subprocess.run(
            [sys.executable, "-m", "trio_sessions.cli", *arguments[1:], "--gateway", gateway.url],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"samples.{suffix}: 1 sample of 1 session, ")
        assert [path.name for path in tmp_path.iterdir()] == [f"samples.{suffix}"]


def test_the_table_of_errors_names_them_all() -> None:
    from trio_sessions import client

    named = set(re.findall(r"`([A-Z]\w+)`", PAGE.partition("## Prompt and response")[0]))
    errors = {name for name in client.__all__ if name.endswith(("Error", "Refused", "Found", "Failed"))}
    errors |= {"GatewayUnreachable", "TruncatedGeneration", "UnusableAnswer"}
    assert errors - {"StatusError"} <= named
