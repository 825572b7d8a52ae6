"""The schema of exported samples: one row a sample, the same in Parquet and JSON Lines.

A change that readers can notice is another ``SCHEMA_VERSION``; docs/samples.md has the table.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from trio_sessions.core.samples import Sample, SamplesReply

__all__ = ["COLUMNS", "SCHEMA_VERSION", "Column", "ColumnType", "Row", "rows_of"]

SCHEMA_VERSION: Final = 1

ColumnType: TypeAlias = Literal[
    "int64", "float64", "string", "list<int64>", "list<int32>", "list<uint8>", "list<float64>", "list<string>"
]
Row: TypeAlias = dict[str, Any]
"""Values by column; numbers in lists are numpy arrays."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: its name.
        type: of its values.
        nullable: whether a value may be missing.
    """

    name: str
    type: ColumnType
    nullable: bool = False


COLUMNS: Final = (
    Column("schema_version", "int64"),
    Column("session_id", "string"),
    Column("sample_index", "int64"),
    Column("tokens", "list<int64>"),
    Column("loss_mask", "list<uint8>"),
    Column("rollout_log_probs", "list<float64>"),
    Column("response", "string"),
    Column("response_length", "int64"),
    Column("status", "string"),
    Column("reward", "float64", nullable=True),
    Column("reward_json", "string", nullable=True),
    Column("weight_versions", "list<string>"),
    Column("cached_tokens", "int64"),
    Column("total_prompt_tokens", "int64"),
    Column("rollout_routed_experts", "list<int32>", nullable=True),
    Column("rollout_routed_experts_shape", "list<int64>", nullable=True),
    Column("rollout_indexer_topk", "list<int32>", nullable=True),
    Column("rollout_indexer_topk_shape", "list<int64>", nullable=True),
    Column("metadata", "string"),
)


def rows_of(session_id: str, reply: SamplesReply) -> list[Row]:
    """The rows of a session's samples.

    Raises:
        ValueError: a sample has a number that is not finite or too large, or metadata that is not JSON.
    """
    return [_row(session_id, index, sample) for index, sample in enumerate(reply.samples)]


def _row(session_id: str, index: int, sample: Sample) -> Row:
    if not np.isfinite(sample.rollout_log_probs).all():
        raise ValueError(f"sample {index} has a log prob that is not finite")
    number = _number(sample.reward)
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": session_id,
        "sample_index": index,
        "tokens": sample.tokens,
        "loss_mask": sample.loss_mask,
        "rollout_log_probs": sample.rollout_log_probs,
        "response": sample.response,
        "response_length": sample.response_length,
        "status": sample.status,
        "reward": number,
        "reward_json": None if number is not None or sample.reward is None else _json(sample.reward),
        "weight_versions": list(sample.weight_versions),
        "cached_tokens": _int64(sample.prefix_cache_info.cached_tokens),
        "total_prompt_tokens": _int64(sample.prefix_cache_info.total_prompt_tokens),
        **_flat("rollout_routed_experts", sample.rollout_routed_experts),
        **_flat("rollout_indexer_topk", sample.rollout_indexer_topk),
        "metadata": _json(dict(sample.metadata)),
    }


def _number(reward: Any) -> float | None:
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    try:
        number = float(reward)
    except OverflowError:
        return None
    # A whole number that a float cannot hold is kept as text.
    return number if math.isfinite(number) and number == reward else None


def _int64(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def _flat(name: str, rows: Any) -> Row:
    # Nested lists would cost a reader an object for every row and layer; a shape costs three numbers.
    if rows is None:
        return {name: None, f"{name}_shape": None}
    return {name: rows.reshape(-1), f"{name}_shape": np.array(rows.shape, dtype=np.int64)}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
