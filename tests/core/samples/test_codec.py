"""The payload: what is in it byte by byte, and that nothing is lost on the way."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from tests.core import PATIENT
from tests.core.samples.grown import Step, forests, line_of
from trio_sessions.core.samples import (
    PrefixCacheInfo,
    Sample,
    assemble,
    assemble_leaves,
    decode_samples,
    encode_samples,
)
from trio_sessions.errors import SampleAssemblyFailed
from trio_sessions.testing.strategies import json_values

FIELDS = ("tokens", "loss_mask", "rollout_log_probs", "rollout_routed_experts", "rollout_indexer_topk")
DTYPES = {"I64": np.int64, "U8": np.uint8, "F64": np.float64, "I32": np.int32}


def parsed(payload: bytes) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Tensors and metadata of a safetensors file, read by its specification."""
    (length,) = struct.unpack("<Q", payload[:8])
    header, data = json.loads(payload[8 : 8 + length]), payload[8 + length :]
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        array = np.frombuffer(data[start:end], dtype=np.dtype(DTYPES[entry["dtype"]]).newbyteorder("<"))
        tensors[name] = array.reshape(entry["shape"])
    return tensors, json.loads(tensors.pop("_samples_meta").tobytes())


def same(left: Sample, right: Sample) -> bool:
    for name in FIELDS:
        a, b = getattr(left, name), getattr(right, name)
        if (a is None) is not (b is None):
            return False
        if a is not None and (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
            return False
    names = ("response", "response_length", "status", "weight_versions", "prefix_cache_info", "metadata", "reward")
    return all(getattr(left, name) == getattr(right, name) for name in names)


@pytest.fixture
def sample() -> Sample:
    forest = line_of(Step(suffix=[1, 2], output=[1000, 1001], experts=True, version="é7", cached=3, prompt_tokens=2))
    sample = assemble(forest.line(), forest.rules())
    assert sample is not None
    return replace(sample, metadata={"x": 1.5, "é": [None, True]})


@PATIENT
@given(
    forests(),
    st.none() | st.integers(0, 20),
    st.dictionaries(st.text(), json_values(), max_size=3),
    json_values(),
    st.booleans(),
)
def test_nothing_is_lost(forest, max_seq_len, agent, reward, with_reward):
    samples = assemble_leaves(forest.forest(), forest.rules(), mismatches=lambda leaf: None, max_seq_len=max_seq_len)
    samples = [replace(sample, reward=reward, metadata={**sample.metadata, "agent": agent}) for sample in samples]
    session = {"accumulated_token_ids": [1], "agent": agent}
    payload = encode_samples(samples, session, None if samples else "all_truncated", with_reward=with_reward)
    reply = decode_samples(payload)
    assert reply.session_metadata == session
    assert reply.empty_reason == (None if samples else "all_truncated")
    assert len(reply.samples) == len(samples)
    for got, sent in zip(reply.samples, samples, strict=True):
        assert same(got, sent if with_reward else replace(sent, reward=None))
    tensors, meta = parsed(payload)
    assert tensors.keys() == {
        f"{name}.{index}" for index, sent in enumerate(samples) for name in FIELDS if getattr(sent, name) is not None
    }
    for index, (sent, described) in enumerate(zip(samples, meta["samples"], strict=True)):
        assert described["nulls"] == [name for name in FIELDS if getattr(sent, name) is None]
        for name in FIELDS:
            if name not in described["nulls"]:
                assert np.array_equal(tensors[f"{name}.{index}"], getattr(sent, name))
                assert tensors[f"{name}.{index}"].dtype == getattr(sent, name).dtype


def test_the_layout(sample):
    tensors, meta = parsed(encode_samples([sample], {"max_trim_tokens": 1}))
    assert {name: (array.dtype.name, array.shape) for name, array in tensors.items()} == {
        "tokens.0": ("int64", (4,)),
        "loss_mask.0": ("uint8", (2,)),
        "rollout_log_probs.0": ("float64", (2,)),
        "rollout_routed_experts.0": ("int32", (3, 2, 2)),
    }
    assert meta == {
        "samples": [
            {
                "response": "[1000 1001]",
                "response_length": 2,
                "status": "completed",
                "weight_versions": ["é7"],
                "prefix_cache_info": {"cached_tokens": 3, "total_prompt_tokens": 2},
                "metadata": {"x": 1.5, "é": [None, True]},
                "nulls": ["rollout_indexer_topk"],
            }
        ],
        "session_metadata": {"max_trim_tokens": 1},
        "empty_reason": None,
    }


def test_the_json_is_compact_and_in_order(sample):
    payload = encode_samples([replace(sample, reward=0.5)], {}, with_reward=True)
    text = load(payload)["_samples_meta"].tobytes().decode()
    assert text == (
        '{"samples":[{"response":"[1000 1001]","response_length":2,"status":"completed","weight_versions":["é7"],'
        '"prefix_cache_info":{"cached_tokens":3,"total_prompt_tokens":2},"metadata":{"x":1.5,"é":[null,true]},'
        '"reward":0.5,"nulls":["rollout_indexer_topk"]}],"session_metadata":{},"empty_reason":null}'
    )


@pytest.mark.parametrize("reason", ["no_records", "all_truncated"])
def test_an_empty_reply(reason):
    payload = encode_samples([], {"a": 1}, reason)
    assert parsed(payload) == ({}, {"samples": [], "session_metadata": {"a": 1}, "empty_reason": reason})
    reply = decode_samples(payload)
    assert (reply.samples, reply.session_metadata, reply.empty_reason) == ((), {"a": 1}, reason)


@pytest.mark.parametrize(
    "awkward",
    [
        lambda rows: np.asfortranarray(rows),
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
        lambda rows: rows[::-1][::-1][:, ::-1][:, ::-1],
        lambda rows: rows.transpose(0, 2, 1).copy().transpose(0, 2, 1),
        lambda rows: np.broadcast_to(rows[:1], rows.shape),
    ],
    ids=["fortran", "strided", "reversed twice", "transposed", "broadcast"],
)
def test_arrays_that_are_not_contiguous(sample, awkward):
    rows = awkward(np.arange(12, dtype=np.int32).reshape(3, 2, 2))
    sent = replace(sample, rollout_routed_experts=rows, rollout_indexer_topk=rows)
    (got,) = decode_samples(encode_samples([sent], {})).samples
    assert got.rollout_routed_experts.tolist() == got.rollout_indexer_topk.tolist() == rows.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), b"x", np.float64(1) + 0j, "\ud800"])
def test_what_json_has_not_is_refused(sample, value):
    for broken in (replace(sample, metadata={"x": value}), replace(sample, reward=value)):
        with pytest.raises(SampleAssemblyFailed, match=r"^the samples' metadata is not JSON"):
            encode_samples([broken], {}, with_reward=True)


def test_decoded_arrays_are_read_only(sample):
    (got,) = decode_samples(encode_samples([sample], {})).samples
    with pytest.raises(ValueError, match="read-only"):
        got.tokens[0] = 7
    assert got.prefix_cache_info == PrefixCacheInfo(3, 2)


# -- payloads that are none ---------------------------------------------------------------------------------------


def changed(sample: Sample, change) -> bytes:
    """A payload whose tensors and metadata ``change`` has changed."""
    tensors = load(encode_samples([sample], {}))
    meta = json.loads(tensors.pop("_samples_meta").tobytes())
    change(tensors, meta)
    tensors.setdefault("_samples_meta", np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8))
    return save(tensors)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t, m: t.pop("tokens.0"), "sample 0 has no tensor tokens"),
        (lambda t, m: t.pop("rollout_routed_experts.0"), "sample 0 has no tensor rollout_routed_experts"),
        (lambda t, m: t.update({"tokens.1": t["tokens.0"]}), r"belong to no sample: \['tokens\.1'\]"),
        (lambda t, m: t.update({"rollout_indexer_topk.0": t["tokens.0"]}), "belong to no sample"),
        (lambda t, m: t.update({"loss_mask.0": np.ones(2)}), "sample 0: loss_mask is float64"),
        (lambda t, m: t.update({"tokens.0": t["tokens.0"].astype(np.int32)}), "sample 0: tokens is int32"),
        (lambda t, m: m["samples"][0].pop("nulls"), "`nulls`"),
        (lambda t, m: m["samples"][0].update(nulls=["tokens"]), "tokens"),
        (lambda t, m: m["samples"][0].update(status="done"), "done"),
        (lambda t, m: m["samples"][0].update(response_length=3), "sample 0: loss_mask is uint8 of shape"),
        (lambda t, m: m["samples"][0].update(response=None), "response"),
        (lambda t, m: m["samples"][0].update(metadata=[]), "metadata"),
        (lambda t, m: m["samples"][0].pop("prefix_cache_info"), "prefix_cache_info"),
        (lambda t, m: m.pop("session_metadata"), "session_metadata"),
        (lambda t, m: m.pop("empty_reason"), "empty_reason"),
        (lambda t, m: m.update(empty_reason="other"), "other"),
        (lambda t, m: m.update(samples={}), "samples"),
        (lambda t, m: t.update({"_samples_meta": np.zeros((1, 1), np.uint8)}), "rank-one uint8 tensor, got uint8 of"),
        (lambda t, m: t.update({"_samples_meta": np.zeros(1)}), "rank-one uint8 tensor, got float64 of rank 1"),
        (lambda t, m: t.update({"_samples_meta": np.frombuffer(b"{", np.uint8)}), "_samples_meta is not what"),
        (lambda t, m: t.update({"_samples_meta": np.frombuffer(b'"\xff"', np.uint8)}), "_samples_meta is not what"),
    ],
)
def test_a_payload_that_is_not_what_it_promises_is_refused(sample, change, text):
    with pytest.raises(ValueError, match=text):
        decode_samples(changed(sample, change))


def test_a_payload_without_metadata_is_refused():
    with pytest.raises(ValueError, match="no _samples_meta"):
        decode_samples(save({"tokens.0": np.zeros(1)}))


@PATIENT
@given(st.binary(max_size=40))
def test_bytes_that_are_no_payload_are_refused(payload):
    with pytest.raises(ValueError, match=r"not a safetensors payload|_samples_meta"):
        decode_samples(payload)


def test_what_a_newer_server_adds_is_ignored(sample):
    payload = changed(sample, lambda t, m: (m.update(more=1), m["samples"][0].update(spec_info={})))
    (got,) = decode_samples(payload).samples
    assert same(got, sample)
