"""The pure functions that a turn is made of, over the size of what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.conversations import agent_conversation
from benchmarks.figures import Row, Table
from benchmarks.histories import by_length, by_shape
from benchmarks.load.engine import answer_parts
from benchmarks.options import Options
from benchmarks.timing import microseconds
from trio_sessions.core.answer import hollow_answer, split_answer
from trio_sessions.core.completion import extract_completion
from trio_sessions.core.matchers import MATCHERS, matching_prefix_length
from trio_sessions.core.prefix import assert_pretokenized_prefix
from trio_sessions.core.request import EngineRequest, SentMessages, prepare_chat_request
from trio_sessions.core.tokens import as_token_ids

__all__ = ["measure"]

PART: Final = "primitives"
_REPEATS: Final = 15
_BODY_BYTES: Final = (64 << 10, 512 << 10, 4 << 20)
_ANSWER_IDS: Final = (1_800, 14_500, 115_000)
_PROMPT_IDS: Final = (1_000, 10_000, 100_000)


def measure(options: Options) -> list[Table]:
    """A table of functions and sizes, and two of histories."""
    rows = [_row(name, size, function, options) for name, size, function in _cases(quick=options.quick)]
    return [
        Table(PART, "by the size of what they are given", tuple(rows)),
        by_length(options, part=PART),
        by_shape(options, part=PART),
    ]


def _row(name: str, size: str, function: Callable[[], object], options: Options) -> Row:
    options.show.step(f"{name}: {size}")
    found = microseconds(function, repeats=options.times(_REPEATS))
    return Row({"function": name, "given": size}, {"us": found})


def _cases(*, quick: bool) -> list[tuple[str, str, Callable[[], object]]]:
    few = 1 if quick else None
    return [
        *(_prepare(size) for size in _BODY_BYTES[:few]),
        *(_prepare_again(size) for size in _BODY_BYTES[:few]),
        *(_match(name, size) for name in MATCHERS for size in _BODY_BYTES[:few]),
        *(_encode(ids) for ids in _PROMPT_IDS[:few]),
        *(_extract(ids) for ids in _ANSWER_IDS[:few]),
        *(_cut(size) for size in _BODY_BYTES[:few]),
        *(_prefix(ids) for ids in _PROMPT_IDS[:few]),
    ]


def _prepare(size: int) -> tuple[str, str, Callable[[], object]]:
    body = msgspec.json.encode({"model": "m", "messages": agent_conversation(size)})
    return "prepare_chat_request", _bytes(body), lambda: prepare_chat_request(body)


def _prepare_again(size: int) -> tuple[str, str, Callable[[], object]]:
    messages = agent_conversation(size)
    first = prepare_chat_request(msgspec.json.encode({"model": "m", "messages": messages[:-2]}))
    body = msgspec.json.encode({"model": "m", "messages": messages})
    sent = SentMessages.of(first.spelled_messages, first.messages)
    return "prepare, all but two messages known", _bytes(body), lambda: prepare_chat_request(body, sent=sent)


def _cut(size: int) -> tuple[str, str, Callable[[], object]]:
    head, tail = answer_parts(128)
    body = b'%b,"routed_experts":"%b"%b' % (head, b"A" * size, tail)
    return "cut the payload out", _bytes(body), lambda: split_answer(body, hollow_answer(body))


def _match(name: str, size: int) -> tuple[str, str, Callable[[], object]]:
    stored = agent_conversation(size)
    # As decoded from a body, and for the matchers that care in another spelling: no text is the same object.
    respelled = agent_conversation(size, indent=1 if name in ("loose_tool_call", "agent") else None)
    encoded = msgspec.json.encode(respelled)
    replayed: list[dict[str, Any]] = msgspec.json.decode(encoded)
    matcher = MATCHERS[name]
    if matching_prefix_length(stored, replayed, matcher) != len(stored):
        raise AssertionError(f"{name} does not match what it is measured on")
    return f"matcher {name}", _bytes(encoded), lambda: matching_prefix_length(stored, replayed, matcher)


def _encode(ids: int) -> tuple[str, str, Callable[[], object]]:
    request = EngineRequest(fields=b"{}", routed_experts_start=None, messages=[], input_ids=_ids(ids))
    return "EngineRequest.encode", f"{ids:,} ids", request.encode


def _extract(ids: int) -> tuple[str, str, Callable[[], object]]:
    body = b"".join(answer_parts(ids))
    return "extract_completion", f"{_bytes(body)}, {ids:,} ids", lambda: extract_completion(body)


def _prefix(ids: int) -> tuple[str, str, Callable[[], object]]:
    stored, whole = _ids(ids), _ids(ids + 1_000)
    return (
        "assert_pretokenized_prefix",
        f"{ids:,} ids",
        lambda: assert_pretokenized_prefix(stored, whole, max_trim_tokens=0, request_messages=[], assistant_message={}),
    )


def _ids(count: int) -> npt.NDArray[np.int32]:
    return as_token_ids(np.arange(count, dtype=np.int32))


def _bytes(body: bytes) -> str:
    return f"{len(body) / 1024:,.0f} KiB"
