"""The records of a session's turns as JSON.

Source of the rules: the HTTP contract (docs/wire.md), "record".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import encode_engine_request

__all__ = ["encode_records"]

_PATH: Final = "/v1/chat/completions"


def encode_records(path: Sequence[Checkpoint]) -> Iterator[bytes]:
    """The record of each turn of ``path``, which begins at a root; each is one compact JSON object.

    A record repeats the whole conversation before it, so that all of them together are much larger than the session:
    take one at a time.
    """
    # As the client of the turn spelled it; each message is encoded once.
    sent: list[bytes] = []
    for checkpoint in path:
        *appended, said = checkpoint.messages
        for index, message in checkpoint.record.respelled.items():
            sent[index] = json.encode(message)
        sent.extend(map(json.encode, appended))
        yield _encode(checkpoint, b"[%b]" % b",".join(sent))
        sent.append(json.encode(said))


def _encode(checkpoint: Checkpoint, messages: bytes) -> bytes:
    record = checkpoint.record
    head = json.encode(
        {
            "timestamp": record.timestamp,
            "request_timestamp": record.request_timestamp,
            "method": record.method,
            "path": _PATH,
        }
    )
    prompt = checkpoint.tokens.materialize()[: checkpoint.prompt_length]
    return b"".join(
        (
            head[:-1],
            b',"request":',
            encode_engine_request(record.request_fields, record.routed_experts_start, messages, prompt),
            b',"response":',
            record.response,
            b',"status_code":',
            json.encode(record.status_code),
            b"}",
        )
    )
