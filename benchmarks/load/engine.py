"""An engine that answers chat requests with bytes made beforehand: ``python -m benchmarks.load.engine``.

It listens on a free port, prints its URL, and serves until its input is closed. What to answer stands in headers of the
request, which session servers pass on:

- ``x-bench-ids``: how many ids were sampled;
- ``x-bench-seconds``: how long to wait before the answer;
- ``x-bench-routing``: bytes of routing replay per token, 0 for none.

Answers carry ``x-bench-engine-us``: microseconds between the whole request and the answer.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
import sys
import time
from functools import cache
from typing import Final

import msgspec
import numpy as np

from benchmarks.load.shapes import SMALLEST_CALL

__all__ = ["END_OF_TURN", "answer_parts", "routing_payload"]

# The id of <|im_end|> in Qwen3's vocabulary: an answer ends as the template ends a turn.
END_OF_TURN: Final = 151645
_CHARACTERS_PER_TOKEN: Final = 4
_INSTRUCTION: Final = re.compile(rb"\r\nx-bench-(ids|seconds|routing): *([0-9.]+)", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_WORDS: Final = "the build is green and all tests passed, see the report of line seven for what changed and why; "


def main() -> None:
    """Serve until standard input is closed."""
    asyncio.run(_serve())


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


class _Connection(asyncio.Protocol):
    """One keep-alive connection. asyncio sets TCP_NODELAY on it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = bytearray()
        self._body_at = 0
        self._whole = 0

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._whole:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._buffer, 0, end + 2)
            self._body_at = end + 4
            self._whole = self._body_at + (int(length[1]) if length else 0)
        if len(self._buffer) >= self._whole:
            request = bytes(self._buffer[: self._whole])
            del self._buffer[: self._whole]
            self._whole = 0
            self._handle(request, time.perf_counter())

    def _handle(self, request: bytes, came: float) -> None:
        asked = {match[1].lower(): match[2] for match in _INSTRUCTION.finditer(request, 0, self._body_at)}
        seconds = float(asked.get(b"seconds", b"0"))
        body = _answer(request, ids=int(asked.get(b"ids", b"16")), routing_bytes=int(asked.get(b"routing", b"0")))
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._send, body, came)
        else:
            self._send(body, came)

    def _send(self, body: bytes, came: float) -> None:
        took = round((time.perf_counter() - came) * 1e6)
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-bench-engine-us: {took}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


def _answer(request: bytes, *, ids: int, routing_bytes: int) -> bytes:
    head, tail = answer_parts(ids)
    if not routing_bytes:
        return head + tail
    began = request.rindex(b'"input_ids":')
    prompt = request.count(b",", began, request.index(b"]", began)) + 1
    # A row for every token but the last, which no layer has seen.
    payload = routing_payload((prompt + ids - 1) * routing_bytes)
    return b"".join((head, b',"routed_experts":"', payload, b'"', tail))


@cache
def answer_parts(ids: int) -> tuple[bytes, bytes]:
    """An answer of so many ids, cut where more meta info may be put in."""
    draw = random.Random(ids)  # noqa: S311
    called = ids >= SMALLEST_CALL
    text = (_WORDS * (ids * _CHARACTERS_PER_TOKEN // len(_WORDS) + 1))[: ids * _CHARACTERS_PER_TOKEN]
    sampled = [draw.randrange(1000, 100_000) for _ in range(ids - 1)] + [END_OF_TURN]
    function = {"name": "run", "arguments": '{"command": "make test", "timeout": 60}'}
    call = {"id": "call_0", "index": 0, "type": "function", "function": function}
    meta = {
        "id": "bench",
        "finish_reason": {"type": "stop", "matched": END_OF_TURN},
        "weight_version": "1",
        "completion_tokens": ids,
        "cached_tokens": 0,
        "output_token_logprobs": [[_log_prob(draw), id_, None] for id_ in sampled],
    }
    answer = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "reasoning_content": None,
                    "tool_calls": [call] if called else None,
                },
                "logprobs": None,
                "finish_reason": "tool_calls" if called else "stop",
                "meta_info": meta,
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": ids, "total_tokens": 1 + ids},
    }
    encoded = msgspec.json.encode(answer)
    cut = encoded.rindex(b"]]") + 2
    return encoded[:cut], encoded[cut:]


def _log_prob(draw: random.Random) -> float:
    # A float32 in all its digits, as engines write them.
    return -float(np.float32(draw.random()))


def routing_payload(size: int) -> bytes:
    """Base64 of ``size`` bytes of experts, as int32."""
    whole, rest = divmod(size, 3)
    if whole * 4 > len(_experts()):
        raise ValueError(f"{size} bytes of routing replay are more than this engine has")
    return _experts()[: whole * 4] + (b"", b"AA==", b"AAA=")[rest]


@cache
def _experts() -> bytes:
    # Enough for 50,000 tokens of 384 bytes.
    rows = np.random.default_rng(0).integers(0, 128, size=50_000 * 96, dtype=np.int32)
    return base64.b64encode(rows.tobytes()[: rows.nbytes - rows.nbytes % 3])


if __name__ == "__main__":
    main()
