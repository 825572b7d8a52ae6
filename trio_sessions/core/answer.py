"""An engine's answer as it is recorded, and as it is passed on without its replay payloads.

A payload may be megabytes. It is cut out by where it lies in the bytes, and neither decoded nor written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from trio_sessions.core import json

__all__ = ["SplitAnswer", "split_answer", "without_replay_payloads"]

_REPLAY_KEYS: Final = ("routed_experts", "indexer_topk")
_HOLLOW: Final = b"null"


@dataclass(frozen=True, slots=True, eq=False)
class SplitAnswer:
    """Both are compact JSON.

    Attributes:
        whole: everything the engine answered; the very bytes it sent where they were compact.
        bare: the same without the replay payloads of any choice.
    """

    whole: bytes
    bare: bytes


class _MetaInfo(msgspec.Struct, gc=False):
    routed_experts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    indexer_topk: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Choice(msgspec.Struct, gc=False):
    meta_info: _MetaInfo | None = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice]


_answer_decoder = msgspec.json.Decoder(_Answer)
# Values stay raw bytes: what is not changed is passed on in the engine's own spelling.
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def split_answer(body: bytes) -> SplitAnswer:
    """The two forms of a chat completion.

    Args:
        body: JSON whose ``choices`` is a list.

    Raises:
        InvalidJSON: as ``json.compact``.
    """
    if not any(b'"%b"' % key.encode() in body for key in _REPLAY_KEYS):
        whole = json.compact(body)
        return SplitAnswer(whole=whole, bare=whole)
    hollow = _hollow(body)
    compact = None if hollow is None else json.compact(hollow)
    if compact is not None and compact == hollow:
        return SplitAnswer(whole=body, bare=without_replay_payloads(compact))
    whole = json.compact(body)
    return SplitAnswer(whole=whole, bare=without_replay_payloads(whole if compact is None else compact))


def without_replay_payloads(answer: bytes) -> bytes:
    """A chat completion without ``routed_experts`` and ``indexer_topk`` in any choice's ``meta_info``.

    Args:
        answer: compact JSON whose ``choices`` is a list.
    """
    completion = _object_decoder.decode(answer)
    choices = _list_decoder.decode(completion["choices"])
    completion["choices"] = msgspec.Raw(msgspec.json.encode([_stripped(choice) for choice in choices]))
    return msgspec.json.encode(completion)


def _hollow(body: bytes) -> bytes | None:
    """``body`` with null for every payload; None where it is not what an engine sends."""
    try:
        choices = _answer_decoder.decode(body).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    pieces = []
    at = 0
    for choice in choices:
        for payload in _payloads(choice.meta_info):
            text = bytes(payload)
            if not text.startswith(b'"') or b"\\" in text or not text.isascii():
                # Not a string of base64 that is spelled as compact JSON spells it.
                return None
            start = _address(payload) - _address(body)
            pieces.append(body[at:start])
            at = start + len(text)
    pieces.append(body[at:])
    return _HOLLOW.join(pieces)


def _payloads(meta: _MetaInfo | None) -> list[msgspec.Raw]:
    """The payloads of a choice in the order in which they lie in the answer."""
    if meta is None:
        return []
    held = [raw for raw in (meta.routed_experts, meta.indexer_topk) if not isinstance(raw, msgspec.UnsetType)]
    return sorted((raw for raw in held if bytes(memoryview(raw)[:4]) != _HOLLOW), key=_address)


def _address(view: bytes | msgspec.Raw) -> int:
    address: int = np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0]
    return address


def _stripped(choice: msgspec.Raw) -> msgspec.Raw:
    try:
        fields = _object_decoder.decode(choice)
        meta = _object_decoder.decode(fields.get("meta_info", b"null"))
    except msgspec.ValidationError:
        return choice
    for key in _REPLAY_KEYS:
        meta.pop(key, None)
    fields["meta_info"] = msgspec.Raw(msgspec.json.encode(meta))
    return msgspec.Raw(msgspec.json.encode(fields))
