"""A training sample: ids, what of them is trained, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PrefixCacheInfo", "Rows", "Sample", "Status"]

Rows: TypeAlias = npt.NDArray[np.int32]
"""Replay data, shape (rows, layers, top k): a row for every id but the last, which was sampled and never computed."""

Status: TypeAlias = Literal["pending", "completed", "truncated", "aborted", "failed"]
"""``completed``: the last turn ended by itself. ``truncated``: at the length limit, the engine's or the trainer's.
``aborted``: the engine gave it up. ``pending``: for a reason that is none of these. ``failed`` is never ours."""


@dataclass(frozen=True, slots=True)
class PrefixCacheInfo:
    """What the engine said of its prefix cache, added up over the turns of a sample.

    Attributes:
        cached_tokens: prompt ids that were found in the cache.
        total_prompt_tokens: prompt ids.
    """

    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One line of turns as a trainer takes it. Arrays are read-only; ``dataclasses.replace`` makes another sample.

    Attributes:
        tokens: all ids, int64, shape (n,).
        loss_mask: 1 where an id of the response is trained, else 0; uint8, shape (response_length,).
        rollout_log_probs: log probs as sampled, 0.0 where an id was not sampled; float64, shape (response_length,).
        response: text of the ids from the first sampled one on.
        response_length: how many ids that is: outputs and what came between them.
        status: how the last turn ended.
        weight_versions: the version that every turn's answer names, in order of turns; a turn without one adds none.
        prefix_cache_info: cache counters of the engine.
        metadata: JSON-like facts, see ``docs/samples.md``.
        rollout_routed_experts: experts every id was routed to, int32, shape (n - 1, layers, top k), or None.
        rollout_indexer_topk: choices of the sparse-attention indexer, as the experts, or None.
        reward: what the agent said the sample is worth, JSON-like, or None.

    Raises:
        ValueError: lengths or dtypes that do not fit each other.
    """

    tokens: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.uint8]
    rollout_log_probs: npt.NDArray[np.float64]
    response: str
    response_length: int
    status: Status
    weight_versions: tuple[str, ...]
    prefix_cache_info: PrefixCacheInfo
    metadata: Mapping[str, Any]
    rollout_routed_experts: Rows | None = None
    rollout_indexer_topk: Rows | None = None
    reward: Any = None

    def __post_init__(self) -> None:
        if not 0 <= self.response_length <= len(self.tokens):
            raise ValueError(f"response_length is {self.response_length} with {len(self.tokens)} tokens")
        self._check("tokens", self.tokens, np.int64, (len(self.tokens),))
        self._check("loss_mask", self.loss_mask, np.uint8, (self.response_length,))
        self._check("rollout_log_probs", self.rollout_log_probs, np.float64, (self.response_length,))
        for name in ("rollout_routed_experts", "rollout_indexer_topk"):
            rows: Rows | None = getattr(self, name)
            if rows is not None:
                self._check(name, rows, np.int32, (max(len(self.tokens) - 1, 0), *rows.shape[1:]))
                if rows.ndim != 3:
                    raise ValueError(f"{name} has shape {rows.shape}, not (rows, layers, top k)")

    @property
    def response_start(self) -> int:
        """Index of the first id of the response in ``tokens``."""
        return len(self.tokens) - self.response_length

    @staticmethod
    def _check(name: str, array: npt.NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{name} is {array.dtype} of shape {array.shape}, not {np.dtype(dtype).name} of shape {shape}"
            )
