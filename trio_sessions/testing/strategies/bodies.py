"""Chat request bodies: legal, nearly legal, and anything at all."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

from trio_sessions.testing.strategies.conversations import conversations, messages, tool_definitions
from trio_sessions.testing.strategies.values import json_objects, json_values, words

__all__ = ["chat_bodies", "dumped"]

_FIELDS: Final = (
    "model",
    "temperature",
    "stream",
    "stream_options",
    "input_ids",
    "logprobs",
    "return_meta_info",
    "no_stop_trim",
    "return_routed_experts",
    "return_indexer_topk",
    "lora_path",
    "routed_experts_start_len",
    "logprob_start_len",
    "chat_template_kwargs",
    "tools",
    "größe",
)


def chat_bodies() -> st.SearchStrategy[bytes]:
    """Bodies that a client may post to the chat route, from legal ones to noise.

    Legal requests, requests with arbitrary values in the fields that a gateway must own, wrong messages, arbitrary
    JSON, and damaged JSON (cut off, NaN, lone surrogates, invalid UTF-8, duplicate keys, nesting without bound).
    """
    return st.one_of(_legal_bodies(), _near_legal_bodies(), _damaged_bodies(), dumped(json_values()), st.binary())


def dumped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(),
        values,
        st.booleans(),
        st.sampled_from([None, 1]),
    )


def _legal_bodies() -> st.SearchStrategy[bytes]:
    return dumped(
        st.fixed_dictionaries(
            {"messages": conversations()},
            optional={
                **{name: json_values(max_leaves=3) for name in _FIELDS},
                "chat_template_kwargs": st.none() | json_objects(),
                "tools": st.none() | tool_definitions(),
            },
        )
    )


def _near_legal_bodies() -> st.SearchStrategy[bytes]:
    wrong_messages = st.one_of(json_values(), st.lists(messages() | json_values(max_leaves=3), max_size=3))
    return dumped(
        st.dictionaries(st.sampled_from(_FIELDS) | words(), json_values(max_leaves=3), max_size=4).flatmap(
            lambda fields: st.builds(
                lambda value: {**fields, "messages": value}, wrong_messages | conversations(max_exchanges=1)
            )
        )
    )


@st.composite
def _damaged_bodies(draw: st.DrawFn) -> bytes:
    body = draw(_legal_bodies())
    match draw(st.sampled_from(["cut", "flip", "constant", "surrogate", "duplicate", "deep", "mark"])):
        case "cut":
            return body[: draw(st.integers(0, len(body) - 1))]
        case "flip":
            at = draw(st.integers(0, len(body) - 1))
            return body[:at] + draw(st.binary(max_size=2)) + body[at + 1 :]
        case "constant":
            return (
                body[:1] + b'"temperature":' + draw(st.sampled_from([b"NaN", b"-Infinity", b"1e999"])) + b"," + body[1:]
            )
        case "surrogate":
            return (
                body[:1]
                + b'"user":"'
                + draw(st.sampled_from([b"\\ud800", b"\\udc00", b"\xed\xa0\x80"]))
                + b'",'
                + body[1:]
            )
        case "duplicate":
            return body[:1] + b'"logprobs":false,"messages":[],"logprobs":true,' + body[1:]
        case "deep":
            depth = draw(st.sampled_from([120, 130, 1_000, 50_000]))
            return body[:1] + b'"deep":' + b"[" * depth + b"]" * depth + b"," + body[1:]
        case _:
            return b"\xef\xbb\xbf" + body
