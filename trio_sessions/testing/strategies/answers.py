"""Engine answers of SGLang's chat route: usable ones, and ones that break a rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from hypothesis import strategies as st

from trio_sessions.testing.strategies.bodies import dumped
from trio_sessions.testing.strategies.conversations import assistant_messages
from trio_sessions.testing.strategies.spellings import reordered
from trio_sessions.testing.strategies.tokens import token_ids

__all__ = ["BrokenAnswer", "BrokenRule", "broken_engine_answers", "engine_answers"]


def engine_answers(
    *, ids: st.SearchStrategy[list[int]] | None = None, prompt: Sequence[int] | None = None
) -> st.SearchStrategy[bytes]:
    """Bodies of legal 200 answers of SGLang's chat route: log probs, meta info, optional echo, usage and routing data.

    Args:
        ids: what is sampled; any ids by default.
        prompt: the ids that were sent. When given, some answers echo them as ``prompt_token_ids``.
    """
    return dumped(_answers(token_ids() if ids is None else ids, prompt))


@st.composite
def _answers(draw: st.DrawFn, ids: st.SearchStrategy[list[int]], prompt: Sequence[int] | None) -> dict[str, Any]:
    sampled = draw(ids)
    log_probs = st.floats(max_value=0, allow_nan=False, allow_infinity=False) | st.integers(-9, 0)
    entry_rests = st.sampled_from([(), (None,), ("é",), (None, 1)])
    meta: dict[str, Any] = {
        "output_token_logprobs": [[draw(log_probs), token, *draw(entry_rests)] for token in sampled],
        "completion_tokens": len(sampled),
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "prompt_tokens": st.integers(0, 10**6),
                    "weight_version": st.sampled_from(["default", "7"]),
                    "finish_reason": st.just({"type": "stop", "matched": 2}),
                    "routed_experts": st.just("AAAAAA=="),
                    "e2e_latency": st.floats(0, 9),
                },
            )
        ),
    }
    message = draw(assistant_messages())
    if message.get("content") is None:
        message["content"] = ""
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls", "abort"])),
        "meta_info": meta,
    }
    if prompt is not None and draw(st.booleans()):
        choice["prompt_token_ids"] = list(prompt)
    answer: dict[str, Any] = {
        "id": draw(st.sampled_from(["chatcmpl-1", "é"])),
        "object": "chat.completion",
        "choices": [choice],
    }
    if draw(st.booleans()):
        answer["usage"] = {"prompt_tokens": 3, "completion_tokens": len(sampled), "total_tokens": 3 + len(sampled)}
    if draw(st.booleans()):
        answer["choices"].append({"index": 1, "message": None})
    return draw(reordered(answer))


BrokenRule = Literal[
    "not_json",
    "no_choices",
    "no_meta_info",
    "no_log_probs",
    "null_message",
    "null_content",
    "no_count",
    "count_mismatch",
    "log_prob_not_finite",
    "malformed_entry",
    "impossible_token_id",
]


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """A body that must never be recorded.

    Attributes:
        body: what the engine answers with status 200.
        rule: the one rule that it breaks.
        text: what the error must contain.
    """

    body: bytes
    rule: BrokenRule
    text: str


@st.composite
def broken_engine_answers(draw: st.DrawFn, *, rule: BrokenRule | None = None) -> BrokenAnswer:
    """Answers that break exactly one rule each, with the rule and the text that the error must contain.

    Args:
        rule: the rule to break; any by default.
    """
    broken: BrokenRule = draw(st.sampled_from(_BROKEN_RULES)) if rule is None else rule
    answer = draw(_answers(token_ids(min_size=1), None))
    choice = answer["choices"][0]
    meta = choice["meta_info"]
    entries = meta["output_token_logprobs"]
    entry = draw(st.sampled_from(entries))
    text = "invalid chat completion response"
    match broken:
        case "not_json":
            damaged = json.dumps(answer)[: draw(st.integers(0, 40))].encode()
            return BrokenAnswer(
                draw(st.sampled_from([damaged, b"<html>", b"\xff", b"null", b"[]", b'"x"'])), broken, text
            )
        case "no_choices":
            _lose(draw, answer, "choices", [None, [], {}, "x", [None], [1]])
            text = "choices"
        case "no_meta_info":
            _lose(draw, choice, "meta_info", [None])
            text = "meta_info and output_token_logprobs must be in choice (requires logprobs=True)"
        case "no_log_probs":
            _lose(draw, meta, "output_token_logprobs", [None])
            text = "meta_info and output_token_logprobs must be in choice (requires logprobs=True)"
        case "null_message":
            _lose(draw, choice, "message", [None])
            text = "assistant message content is None"
        case "null_content":
            _lose(draw, choice["message"], "content", [None])
            text = "assistant message content is None"
        case "no_count":
            _lose(draw, meta, "completion_tokens", [None, True, "1", [], len(entries) + 0.5])
            text = "completion_tokens"
        case "count_mismatch":
            count = draw(st.integers(-1, 99) | st.just(2**70))
            meta["completion_tokens"] = count + (count == len(entries))
            text = f"len(output_token_logprobs)={len(entries)} != completion_tokens={meta['completion_tokens']}"
        case "log_prob_not_finite":
            entry[0] = draw(st.sampled_from([None, float("nan"), float("-inf"), "-1"]))
        case "malformed_entry":
            at = draw(st.integers(0, len(entries) - 1))
            entries[at] = draw(st.sampled_from([[], [-1.0], None, {}, "x", -1.0]))
            text = "output_token_logprobs"
        case "impossible_token_id":
            entry[1] = draw(st.sampled_from([-1, 2**31, 2**63, 2**80, None, "7", 1.5, True]))
            text = "output_token_logprobs"
    return BrokenAnswer(json.dumps(answer).encode(), broken, text)


_BROKEN_RULES: Final[tuple[BrokenRule, ...]] = get_args(BrokenRule)


def _lose(draw: st.DrawFn, holder: dict[str, Any], key: str, values: list[Any]) -> None:
    """Take ``key`` out, or give it one of ``values``."""
    value = draw(st.sampled_from([*values, _GONE]))
    if value is _GONE:
        del holder[key]
    else:
        holder[key] = value


_GONE: Final = object()
