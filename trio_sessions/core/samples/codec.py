"""Samples as one safetensors payload, and back.

Source of the layout: docs/samples.md. Tensors are named ``<field>.<sample index>``; the
rest of a sample is compact JSON in the uint8 tensor ``_samples_meta``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from trio_sessions.core.samples.collect import EmptyReason
from trio_sessions.core.samples.layout import Piece, safetensors_pieces
from trio_sessions.core.samples.sample import PrefixCacheInfo, Sample, Status
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["SamplesReply", "decode_samples", "encode_samples", "encode_samples_in_pieces"]

_META: Final = "_samples_meta"
_TENSORS: Final = ("tokens", "loss_mask", "rollout_log_probs", "rollout_routed_experts", "rollout_indexer_topk")


@dataclass(frozen=True, slots=True)
class SamplesReply:
    """A decoded payload.

    Attributes:
        samples: in the order in which they were sent.
        session_metadata: JSON-like facts about the session.
        empty_reason: why there are no samples; None when there are any.
    """

    samples: tuple[Sample, ...]
    session_metadata: dict[str, Any]
    empty_reason: EmptyReason | None


class _Described(msgspec.Struct):
    response: str
    response_length: int
    status: Status
    weight_versions: tuple[str, ...]
    prefix_cache_info: PrefixCacheInfo
    metadata: dict[str, Any]
    nulls: list[Literal["rollout_routed_experts", "rollout_indexer_topk"]]
    reward: Any = None


class _Meta(msgspec.Struct):
    samples: list[_Described]
    session_metadata: dict[str, Any]
    empty_reason: EmptyReason | None


_meta_decoder = msgspec.json.Decoder(_Meta)


def encode_samples_in_pieces(
    samples: Sequence[Sample],
    session_metadata: Mapping[str, Any],
    empty_reason: EmptyReason | None = None,
    *,
    with_reward: bool = False,
) -> Sequence[Piece]:
    """The payload in pieces, of which the tensors' are views of the samples' arrays.

    Args:
        samples: in order.
        session_metadata: JSON-like facts about the session.
        empty_reason: why there are no samples.
        with_reward: whether the samples' rewards are sent; the contract has them in tree mode only.

    Raises:
        SampleAssemblyFailed: a hook left something in a sample that JSON does not have.
    """
    tensors: dict[str, npt.NDArray[Any]] = {}
    described = []
    for index, sample in enumerate(samples):
        nulls = []
        for name in _TENSORS:
            array = getattr(sample, name)
            if array is None:
                nulls.append(name)
            else:
                tensors[f"{name}.{index}"] = array
        try:
            described.append(_described(sample, nulls, with_reward=with_reward))
        except (AttributeError, TypeError, ValueError) as error:
            raise SampleAssemblyFailed(f"sample {index} is not what a sample has to be: {error}") from error
    meta = {"samples": described, "session_metadata": dict(session_metadata), "empty_reason": empty_reason}
    try:
        # The standard library's spelling of numbers is the contract's, and it refuses numbers that are not finite.
        text = json.dumps(meta, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleAssemblyFailed(f"the samples' metadata is not JSON: {error}") from error
    tensors[_META] = np.frombuffer(text, dtype=np.uint8)
    return safetensors_pieces(tensors)


def encode_samples(
    samples: Sequence[Sample],
    session_metadata: Mapping[str, Any],
    empty_reason: EmptyReason | None = None,
    *,
    with_reward: bool = False,
) -> bytes:
    """The payload in one string; as ``encode_samples_in_pieces``."""
    return b"".join(encode_samples_in_pieces(samples, session_metadata, empty_reason, with_reward=with_reward))


def decode_samples(payload: bytes) -> SamplesReply:
    """What ``payload`` holds; keys of a sample that we do not know are ignored.

    Raises:
        ValueError: it is not a payload of samples; the text says what is wrong with it.
    """
    try:
        tensors = load(payload)
    except SafetensorError as error:
        raise ValueError(f"not a safetensors payload: {error}") from error
    meta = _meta(tensors.pop(_META, None))
    samples = tuple(_sample(index, described, tensors) for index, described in enumerate(meta.samples))
    if tensors:
        raise ValueError(f"the payload has tensors that belong to no sample: {sorted(tensors)}")
    return SamplesReply(samples, meta.session_metadata, meta.empty_reason)


def _described(sample: Sample, nulls: list[str], *, with_reward: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "response": sample.response,
        "response_length": sample.response_length,
        "status": sample.status,
        "weight_versions": list(sample.weight_versions),
        "prefix_cache_info": {
            "cached_tokens": sample.prefix_cache_info.cached_tokens,
            "total_prompt_tokens": sample.prefix_cache_info.total_prompt_tokens,
        },
        "metadata": dict(sample.metadata),
    }
    if with_reward:
        described["reward"] = sample.reward
    described["nulls"] = nulls
    return described


def _meta(array: npt.NDArray[Any] | None) -> _Meta:
    if array is None:
        raise ValueError(f"the payload has no {_META}")
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError(f"{_META} must be a rank-one uint8 tensor, got {array.dtype} of rank {array.ndim}")
    try:
        return _meta_decoder.decode(array.tobytes())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{_META} is not what the contract says: {error}") from error


def _sample(index: int, described: _Described, tensors: dict[str, npt.NDArray[Any]]) -> Sample:
    arrays: dict[str, Any] = {}
    for name in _TENSORS:
        if name in described.nulls:
            continue
        array = tensors.pop(f"{name}.{index}", None)
        if array is None:
            raise ValueError(f"sample {index} has no tensor {name}")
        array.flags.writeable = False
        arrays[name] = array
    try:
        return Sample(
            response=described.response,
            response_length=described.response_length,
            status=described.status,
            weight_versions=described.weight_versions,
            prefix_cache_info=described.prefix_cache_info,
            metadata=described.metadata,
            reward=described.reward,
            **arrays,
        )
    except ValueError as error:
        raise ValueError(f"sample {index}: {error}") from error
