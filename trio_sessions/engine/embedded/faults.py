"""Things that go wrong with engines, on demand.

A fault is named by a spec such as ``status:503``. ``SPEC@N`` strikes every N-th request only, ``SPEC*N`` only the first
N requests. The engine takes one for all requests, and one for a single request in the header ``x-engine-fault``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.engine.embedded.reply import EngineReply, error_reply, event_reply

__all__ = ["FAULT_HEADER", "FAULT_KINDS", "Fault", "damaged", "parse_fault"]

FAULT_HEADER: Final = "x-engine-fault"

_SPEC: Final = re.compile(r"(?P<kind>[a-z-]+)(?::(?P<argument>[^@*]+))?(?:@(?P<every>\d+)|\*(?P<first>\d+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of ``FAULT_KINDS``.
        argument: the part behind the colon, "" for none: a status code, seconds, or a variant.
        every: strike every N-th request only, None for no such limit.
        first: strike the first N requests only, None for no such limit.
    """

    kind: str
    argument: str = ""
    every: int | None = None
    first: int | None = None

    def strikes(self, ordinal: int) -> bool:
        """Whether it strikes the request with this ordinal, counted from 1."""
        if self.every is not None:
            return ordinal % self.every == 0
        return self.first is None or ordinal <= self.first

    @property
    def seconds(self) -> float:
        """How long a slow answer takes."""
        return float(self.argument) if self.kind == "slow" else 0.0


def parse_fault(spec: str) -> Fault:
    """The fault that ``spec`` names.

    Raises:
        ValueError: no such kind, or an argument or limit that does not fit; the text lists the kinds.
    """
    match = _SPEC.fullmatch(spec.strip())
    kind = match["kind"] if match else ""
    if match is None or kind not in FAULT_KINDS:
        raise ValueError(f"unknown fault {spec!r}; {_HELP}")
    argument = match["argument"] or ""
    every, first = (int(match[name]) if match[name] else None for name in ("every", "first"))
    if not _ARGUMENTS.get(kind, _is_empty)(argument) or every == 0:
        raise ValueError(f"fault {spec!r} does not fit its kind; {_HELP}")
    return Fault(kind, argument, every, first)


def damaged(fault: Fault, reply: EngineReply) -> EngineReply:
    """``reply`` as the fault leaves it; faults of time and transport leave it alone."""
    if fault.kind == "status":
        return error_reply(int(fault.argument), f"injected fault: status {fault.argument}", kind="InjectedFault")
    if fault.kind == "status-text":
        body = f"injected fault: status {fault.argument}".encode()
        return EngineReply(int(fault.argument), (("content-type", "text/plain; charset=utf-8"),), body)
    if reply.status != 200:
        return reply
    if fault.kind == "not-json":
        return EngineReply(200, reply.headers, reply.body[: max(1, len(reply.body) // 2)])
    if fault.kind == "not-object":
        return EngineReply(200, reply.headers, b"[]")
    change = _CHANGES.get(fault.kind)
    if change is None:
        return reply
    if reply.events is None:
        return EngineReply(200, reply.headers, _changed(reply.body, change, fault))
    return event_reply(
        # Only what has choices can be damaged.
        _changed(data, change, fault) if b'"choices":[{' in data else data
        for data in reply.events
    )


def _changed(answer: bytes, change: Callable[[dict[str, Any], Fault], None], fault: Fault) -> bytes:
    decoded = json.loads(answer)
    change(decoded, fault)
    # The standard library writes bare NaN and Infinity, which is what a broken engine does.
    return json.dumps(decoded, ensure_ascii=False).encode()


def _meta(answer: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = answer["choices"][0].setdefault("meta_info", {})
    return meta


def _no_log_probs(answer: dict[str, Any], _: Fault) -> None:
    _meta(answer).pop("output_token_logprobs", None)
    answer["choices"][0].pop("logprobs", None)


def _count_mismatch(answer: dict[str, Any], _: Fault) -> None:
    meta = _meta(answer)
    meta["completion_tokens"] = meta.get("completion_tokens", 0) + 1


def _null_content(answer: dict[str, Any], _: Fault) -> None:
    choice = answer["choices"][0]
    choice[_said(choice)]["content"] = None


def _null_message(answer: dict[str, Any], _: Fault) -> None:
    choice = answer["choices"][0]
    choice[_said(choice)] = None


def _said(choice: dict[str, Any]) -> str:
    """Where a choice has its text; in a chunk that is another place."""
    return "delta" if "delta" in choice else "message"


def _first_log_prob(value: float | None) -> Callable[[dict[str, Any], Fault], None]:
    def change(answer: dict[str, Any], _: Fault) -> None:
        for entry in _meta(answer).get("output_token_logprobs", [])[:1]:
            entry[0] = value

    return change


def _bad_token_id(answer: dict[str, Any], fault: Fault) -> None:
    for entry in _meta(answer).get("output_token_logprobs", [])[:1]:
        entry[1] = str(entry[1]) if fault.argument == "string" else -1


_CHANGES: Final[dict[str, Callable[[dict[str, Any], Fault], None]]] = {
    "empty-choices": lambda answer, _: answer.update(choices=[]),
    "no-choices": lambda answer, _: answer.pop("choices"),
    "no-meta": lambda answer, _: answer["choices"][0].pop("meta_info", None),
    "no-logprobs": _no_log_probs,
    "no-completion-tokens": lambda answer, _: _meta(answer).pop("completion_tokens", None),
    "count-mismatch": _count_mismatch,
    "null-content": _null_content,
    "null-message": _null_message,
    "nan-logprob": _first_log_prob(math.nan),
    "inf-logprob": _first_log_prob(-math.inf),
    "null-logprob": _first_log_prob(None),
    "bad-token-id": _bad_token_id,
}

FAULT_KINDS: Final[dict[str, str]] = {
    "status": "status:CODE - that status with a JSON error body",
    "status-text": "status-text:CODE - that status with a body that is not JSON",
    "not-json": "a 200 whose JSON breaks off",
    "not-object": "a 200 with a list instead of an object",
    "empty-choices": "an empty list of choices",
    "no-choices": "no choices",
    "no-meta": "no meta_info",
    "no-logprobs": "no output_token_logprobs",
    "no-completion-tokens": "no completion_tokens in meta_info",
    "count-mismatch": "completion_tokens is not the number of log probs",
    "null-content": "a message whose content is null",
    "null-message": "null instead of a message",
    "nan-logprob": "a bare NaN as log prob",
    "inf-logprob": "a bare -Infinity as log prob",
    "null-logprob": "null as log prob",
    "bad-token-id": "bad-token-id[:negative|:string] - an id that is none",
    "abort": "a graceful 200 with finish_reason abort and no stop token",
    "length": "cut off before the stop token",
    "slow": "slow:SECONDS - that much later",
    "disconnect": "the connection breaks in the middle of the body",
    "hang": "never answers",
}
"""Kinds of faults, with what each does."""

_HELP: Final = "kinds are: " + ", ".join(FAULT_KINDS) + "; SPEC@N strikes every N-th request, SPEC*N the first N"


def _is_empty(text: str) -> bool:
    return not text


def _is_status(text: str) -> bool:
    return text.isascii() and text.isdigit() and 200 <= int(text) <= 599


def _is_seconds(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


_ARGUMENTS: Final[dict[str, Callable[[str], bool]]] = {
    "status": _is_status,
    "status-text": _is_status,
    "slow": _is_seconds,
    "bad-token-id": lambda text: text in ("", "negative", "string"),
}
