"""An engine's answer as it is recorded, and as it is passed on without its replay payloads.

A payload may be megabytes. It is cut out by where it lies in the bytes, and neither decoded nor written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from trio_sessions.core import json

__all__ = ["SplitAnswer", "hollow_answer", "split_answer", "without_replay_payloads"]

_REPLAY_KEYS: Final = ("routed_experts", "indexer_topk")
_QUOTED_KEYS: Final = tuple(b'"%b"' % key.encode() for key in _REPLAY_KEYS)
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


def hollow_answer(body: bytes) -> bytes:
    """``body`` with null in the place of every replay payload; ``body`` itself where there is none.

    That is also so where it is not what an engine sends, or where a payload is spelled as base64 never is.

    Args:
        body: an engine's answer as it came, checked or not.
    """
    # Most answers have none, which is seen sooner than an answer is looked through.
    if not any(key in body for key in _QUOTED_KEYS):
        return body
    try:
        choices = _answer_decoder.decode(body).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    pieces = []
    at = 0
    ascii_alone = body.isascii()
    for choice in choices:
        for payload in _payloads(choice.meta_info):
            start = _address(payload) - _address(body)
            end = start + len(memoryview(payload))
            # Only a string of ASCII without escapes is the same in compact JSON.
            if body.find(b"\\", start, end) >= 0 or not (ascii_alone or body[start:end].isascii()):
                return body
            pieces.append(body[at:start])
            at = end
    if not pieces:
        return body
    pieces.append(body[at:])
    return _HOLLOW.join(pieces)


def split_answer(body: bytes, hollow: bytes) -> SplitAnswer:
    """The two forms of a chat completion.

    Args:
        body: JSON whose ``choices`` is a list.
        hollow: from ``hollow_answer``.

    Raises:
        InvalidJSON: as ``json.compact``.
    """
    compact = json.compact(hollow)
    whole = compact if hollow is body else body if compact is hollow else json.compact(body)
    bare = without_replay_payloads(compact) if any(key in compact for key in _QUOTED_KEYS) else compact
    return SplitAnswer(whole=whole, bare=bare)


def without_replay_payloads(answer: bytes) -> bytes:
    """A chat completion without ``routed_experts`` and ``indexer_topk`` in any choice's ``meta_info``.

    Args:
        answer: compact JSON whose ``choices`` is a list.
    """
    completion = _object_decoder.decode(answer)
    choices = _list_decoder.decode(completion["choices"])
    completion["choices"] = msgspec.Raw(msgspec.json.encode([_stripped(choice) for choice in choices]))
    return msgspec.json.encode(completion)


def _payloads(meta: _MetaInfo | None) -> list[msgspec.Raw]:
    """The strings among the payloads of a choice, in the order in which they lie in the answer."""
    if meta is None:
        return []
    held = [raw for raw in (meta.routed_experts, meta.indexer_topk) if not isinstance(raw, msgspec.UnsetType)]
    return sorted((raw for raw in held if bytes(memoryview(raw)[:1]) == b'"'), key=_address)


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
