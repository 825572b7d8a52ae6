"""A finished answer as a stream of chunks, each with the ids that it is about."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from trio_sessions.engine.embedded.reply import EngineReply, event_reply

__all__ = ["chunked_reply"]

_IDS_PER_CHUNK: Final = 4


def chunked_reply(answer: dict[str, Any], text: str, spelled: Sequence[bytes], *, include_usage: bool) -> EngineReply:
    """``answer`` in chunks: reasoning, content, tool calls, and behind them why it ended and the rest of ``meta_info``.

    Args:
        answer: the whole answer, with ``meta_info``.
        text: what was sampled, from which its message was parsed.
        spelled: the bytes of each id that was sampled.
        include_usage: whether a chunk without choices ends it, which has the usage.
    """
    head = {
        "id": answer["id"],
        "object": "chat.completion.chunk",
        "created": answer["created"],
        "model": answer["model"],
    }
    chunks = [{**head, "choices": [choice]} for choice in _choices(answer["choices"][0], text, spelled)]
    if include_usage:
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return event_reply([*map(msgspec.json.encode, chunks), b"[DONE]"])


def _choices(whole: dict[str, Any], text: str, spelled: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    message, meta = whole["message"], dict(whole["meta_info"])
    log_probs = meta.pop("output_token_logprobs", None)
    for start, delta in _deltas(message, text, spelled):
        some = slice(start, start + _IDS_PER_CHUNK)
        yield _choice(
            {"role": "assistant", "content": "", **delta} if start == 0 else delta,
            logprobs=whole["logprobs"] and {"content": whole["logprobs"]["content"][some]},
            meta_info={} if log_probs is None else {"output_token_logprobs": log_probs[some]},
        )
    for index, call in enumerate(message["tool_calls"] or ()):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield _choice({"tool_calls": [begun]})
        yield _choice({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    rest = {name: value for name, value in whole.items() if name not in ("message", "logprobs", "meta_info")}
    yield {**_choice({}, meta_info=meta), **rest}


def _choice(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None, **fields}


def _deltas(message: dict[str, Any], text: str, spelled: Sequence[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The index of the first id of each chunk, and the texts that end with its ids."""
    # Where the two are in what was sampled; markup around them belongs to neither.
    reasoning, content = message["reasoning_content"] or "", message["content"]
    reasoning_at = text.index(reasoning)
    content_at = text.index(content, reasoning_at + len(reasoning))
    # A character is there with the last of its bytes.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    before = 0
    for start in range(0, max(1, len(spelled)), _IDS_PER_CHUNK):
        last = start + _IDS_PER_CHUNK >= len(spelled)
        decoded = decoder.decode(b"".join(spelled[start : start + _IDS_PER_CHUNK]))
        until = len(text) if last else min(len(text), before + len(decoded))
        texts = {
            "reasoning_content": reasoning[max(0, before - reasoning_at) : max(0, until - reasoning_at)],
            "content": content[max(0, before - content_at) : max(0, until - content_at)],
        }
        before = until
        yield start, {name: part for name, part in texts.items() if part}
