"""Hypothesis strategies for what a gateway sees: chat requests, engine answers, token lineages.

Every strategy yields plain JSON-like Python values or the bytes of a body, so that they can drive the pure core, a
running server or your own agent alike. Text and numbers are hostile by default: non-ASCII, control characters,
integers beyond 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover - the suite itself needs hypothesis
    raise ImportError("trio_sessions.testing.strategies needs Hypothesis: pip install 'trio-sessions[test]'") from error

__all__ = [
    "BrokenAnswer",
    "BrokenRule",
    "Extend",
    "broken_engine_answers",
    "chat_bodies",
    "conversations",
    "engine_answers",
    "json_values",
    "lineages",
    "messages",
    "replays",
    "respelled",
    "token_ids",
    "tool_calls",
    "tool_definitions",
]

Message = dict[str, Any]

_MAX_TOKEN_ID: Final = 2**31 - 1
_EMPTY: Final[tuple[Any, ...]] = (None, "", [])
_MAY_BE_EMPTY: Final = ("content", "reasoning_content", "tool_calls")


# -- JSON ---------------------------------------------------------------------------------------------------------


def json_values(*, max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Any JSON value as Python spells it: finite floats, integers of up to 130 bits, text without lone surrogates.

    Args:
        max_leaves: roughly how many scalars a value holds at most.
    """
    return st.recursive(
        _scalars(),
        lambda children: st.lists(children, max_size=3) | st.dictionaries(_words(), children, max_size=3),
        max_leaves=max_leaves,
    )


def _scalars() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**130), 2**130),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
        _words(),
    )


def _words() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "a", "b", "é", "\u2028", "😀", " x", "0", "null", '"'] * 2) | st.text(max_size=6)


def _json_objects() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(_words(), json_values(max_leaves=4), max_size=4)


# -- messages -----------------------------------------------------------------------------------------------------


def tool_definitions() -> st.SearchStrategy[list[dict[str, Any]]]:
    """The ``tools`` of a chat request: distinct functions with a JSON schema of their parameters."""
    return st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {
                        "name": _function_names(),
                        "parameters": st.fixed_dictionaries(
                            {
                                "type": st.just("object"),
                                "properties": st.dictionaries(
                                    st.sampled_from(["path", "query", "größe"]),
                                    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "object"}]),
                                    max_size=3,
                                ),
                            }
                        ),
                    },
                    optional={"description": st.text(max_size=12), "strict": st.booleans()},
                ),
            }
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda tool: str(tool["function"]["name"]),
    )


def _function_names() -> st.SearchStrategy[str]:
    return st.sampled_from(["search", "read_file", "f"])


@st.composite
def tool_calls(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The ``tool_calls`` of an assistant message, at least one; arguments as text, as an object, or empty."""
    calls = []
    for position in range(draw(st.integers(1, 3))):
        arguments = draw(_json_objects())
        call: dict[str, Any] = {
            "id": f"call_{position}",
            "type": "function",
            "function": {
                "name": draw(_function_names()),
                "arguments": draw(
                    st.sampled_from([arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)])
                    | st.sampled_from(["", "{}", None, {}])
                ),
            },
        }
        if draw(st.booleans()):
            call["index"] = position
        calls.append(call)
    return calls


def _contents() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "hello", "hello ", "  \n", "null", "<|im_end|>", "größe 😀"]) | st.text(max_size=10)


def _user_messages() -> st.SearchStrategy[Message]:
    parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _contents()}), min_size=1, max_size=2)
    return st.fixed_dictionaries({"role": st.just("user"), "content": _contents() | parts}, optional=_unread())


def _system_messages() -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"role": st.just("system"), "content": _contents()})


def _unread() -> dict[str, st.SearchStrategy[Any]]:
    """Keys that no built-in matcher reads."""
    return {"name": st.sampled_from(["alice", "bob"]), "x_extra": json_values(max_leaves=2)}


@st.composite
def _assistant_messages(draw: st.DrawFn, *, with_calls: bool | None = None) -> Message:
    message: Message = {"role": "assistant"}
    if draw(st.booleans()) if with_calls is None else with_calls:
        message["tool_calls"] = draw(tool_calls())
        message["content"] = draw(st.none() | _contents())
    else:
        message["content"] = draw(_contents())
    if draw(st.booleans()):
        message["reasoning_content"] = draw(st.none() | _contents())
    return message


def _tool_results(call: Mapping[str, Any]) -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just(call["id"]), "content": _contents()})


def messages() -> st.SearchStrategy[Message]:
    """One legal message of any role: system, user (text or parts), assistant with or without calls, tool result."""
    return st.one_of(
        _user_messages(),
        _assistant_messages(),
        _tool_results({"id": "call_0"}),
        _system_messages(),
    )


@st.composite
def conversations(draw: st.DrawFn, *, max_exchanges: int = 3) -> list[Message]:
    """A legal chat history that waits for the assistant: it ends with a user message or with tool results.

    An optional system message comes first. Every call of an assistant is answered by one tool result, in order.

    Args:
        max_exchanges: how many assistant messages it holds at most.
    """
    history = [draw(_system_messages())] if draw(st.booleans()) else []
    history.append(draw(_user_messages()))
    for _ in range(draw(st.integers(0, max_exchanges))):
        assistant = draw(_assistant_messages())
        history.append(assistant)
        if assistant.get("tool_calls"):
            history.extend(draw(_tool_results(call)) for call in assistant["tool_calls"])
        else:
            history.append(draw(_user_messages()))
    return history


@st.composite
def replays(draw: st.DrawFn, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A request of a client that has seen ``stored``: it repeats some of it in its own spelling, then goes on.

    It may be an extension, the stored messages once more, a retry of an earlier turn, an edit of an old message or a
    conversation of its own. Nothing is promised about which; compare it with ``stored`` to find out.

    Args:
        stored: the messages that the server holds.
    """
    kept = draw(
        st.sampled_from([len(stored), max(len(stored) - 1, 0), max(len(stored) - 2, 0)]) | st.integers(0, len(stored))
    )
    request = [draw(respelled(message)) for message in stored[:kept]]
    request += draw(st.lists(messages(), max_size=2))
    return request or [draw(_user_messages())]


# -- other spellings ----------------------------------------------------------------------------------------------


@st.composite
def respelled(draw: st.DrawFn, message: Mapping[str, Any]) -> Message:
    """``message`` in another spelling that the matcher ``loose_tool_call`` must call the same.

    Keys change their order, ``null``/``""``/``[]``/absence stand in for one another, ``index`` comes and goes in tool
    calls, keys that no matcher reads come and go, and arguments that spell an object are spelled anew (key order,
    white space, escapes, numbers; text or object).

    Args:
        message: any JSON object; what is not understood in it stays as it is.
    """
    new = {key: _copied(value) for key, value in message.items()}
    if isinstance(calls := new.get("tool_calls"), list) and calls:
        new["tool_calls"] = [draw(_respelled_call(call)) for call in calls]
    for key in _MAY_BE_EMPTY:
        if new.get(key) in _EMPTY:
            new.pop(key, None)
            if draw(st.booleans()):
                new[key] = _copied(draw(st.sampled_from(_EMPTY)))
    new.pop("x_extra", None)
    if draw(st.booleans()):
        new["x_extra"] = draw(json_values(max_leaves=2))
    return draw(_reordered(new))


@st.composite
def _respelled_call(draw: st.DrawFn, call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    new = {key: value for key, value in call.items() if key != "index"}
    if draw(st.booleans()):
        new["index"] = draw(st.integers(0, 3))
    if isinstance(function := new.get("function"), dict):
        function = dict(function)
        absent = object()
        arguments = draw(_respelled_arguments(function.pop("arguments", None), absent))
        if arguments is not absent:
            function["arguments"] = arguments
        new["function"] = draw(_reordered(function))
    return draw(_reordered(new))


@st.composite
def _respelled_arguments(draw: st.DrawFn, arguments: Any, absent: object) -> Any:
    spelled = _spelled_object(arguments)
    if spelled is None:
        return arguments
    if not spelled:
        return draw(st.sampled_from([absent, None, "", "{}", " { }\n", {}]))
    if draw(st.booleans()) and (as_object := _as_plain(spelled)) is not None:
        return draw(_reordered(as_object))
    return draw(_texts_of(spelled))


def _spelled_object(arguments: Any) -> dict[str, Any] | None:
    """The object, with every number a Decimal or an int; None when ``arguments`` does not spell exactly one."""
    if arguments is None or arguments == "":
        return {}
    try:
        text = json.dumps(arguments, allow_nan=False) if isinstance(arguments, dict) else arguments
        if not isinstance(text, str):
            return None
        value = json.loads(
            text, parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
        )
    except (ValueError, TypeError, RecursionError, ArithmeticError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate keys")
    return dict(pairs)


def _as_plain(value: Any) -> Any:
    """``value`` with floats for Decimals; None when one of them is no float exactly as Python prints it."""
    if isinstance(value, Decimal):
        as_float = float(value)
        return as_float if Decimal(repr(as_float)) == value else None
    if isinstance(value, list | dict):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        new = [(key, None if child is None else _as_plain(child)) for key, child in pairs]
        if any(child is None and before is not None for (_, before), (_, child) in zip(pairs, new, strict=True)):
            return None
        return dict(new) if isinstance(value, dict) else [child for _, child in new]
    return value


@st.composite
def _texts_of(draw: st.DrawFn, value: Any) -> str:
    def space() -> str:
        return draw(st.sampled_from(["", "", " ", "\n\t"]))

    def spell(item: Any) -> str:
        if isinstance(item, dict):
            keys = draw(st.permutations(list(item)))
            return "{" + ",".join(f"{space()}{spell(key)}{space()}:{spell(item[key])}" for key in keys) + "}"
        if isinstance(item, list):
            return "[" + ",".join(f"{space()}{spell(child)}{space()}" for child in item) + "]"
        if isinstance(item, str):
            return json.dumps(item, ensure_ascii=draw(st.booleans()))
        if isinstance(item, bool) or item is None:
            return json.dumps(item)
        if isinstance(item, int):
            return draw(st.sampled_from([f"{item}", f"{item}.0", f"{item}.00e0", f"{item}E+0"]))
        digits = f"{item}"
        return draw(st.sampled_from([digits, f"{digits}0" if "." in digits and "E" not in digits else digits]))

    return space() + spell(value) + space()


@st.composite
def _reordered(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in draw(st.permutations(list(value)))}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(child) for key, child in value.items()}
    return [_copied(child) for child in value] if isinstance(value, list) else value


# -- request bodies -----------------------------------------------------------------------------------------------

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
    return st.one_of(_legal_bodies(), _near_legal_bodies(), _damaged_bodies(), _dumped(json_values()), st.binary())


def _dumped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(),
        values,
        st.booleans(),
        st.sampled_from([None, 1]),
    )


def _legal_bodies() -> st.SearchStrategy[bytes]:
    return _dumped(
        st.fixed_dictionaries(
            {"messages": conversations()},
            optional={
                **{name: json_values(max_leaves=3) for name in _FIELDS},
                "chat_template_kwargs": st.none() | _json_objects(),
                "tools": st.none() | tool_definitions(),
            },
        )
    )


def _near_legal_bodies() -> st.SearchStrategy[bytes]:
    wrong_messages = st.one_of(json_values(), st.lists(messages() | json_values(max_leaves=3), max_size=3))
    return _dumped(
        st.dictionaries(st.sampled_from(_FIELDS) | _words(), json_values(max_leaves=3), max_size=4).flatmap(
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


# -- tokens -------------------------------------------------------------------------------------------------------


def token_ids(*, min_size: int = 0, max_size: int = 12, max_id: int = _MAX_TOKEN_ID) -> st.SearchStrategy[list[int]]:
    """Token ids, small ones favoured so that two draws share prefixes.

    Args:
        min_size: least number of ids.
        max_size: greatest number of ids.
        max_id: greatest id.
    """
    return st.lists(st.integers(0, min(3, max_id)) | st.integers(0, max_id), min_size=min_size, max_size=max_size)


@dataclass(frozen=True, slots=True)
class Extend:
    """One step of a lineage: a new path of some earlier path's first ``keep`` ids, followed by ``ids``.

    Attributes:
        parent: index of the earlier path; 0 is the empty path that every lineage begins with.
        keep: at most the length of that path.
        ids: what is added.
    """

    parent: int
    keep: int
    ids: Sequence[int]


@st.composite
def lineages(draw: st.DrawFn, *, max_steps: int = 12, max_dropped: int | None = None) -> list[Extend]:
    """Steps that grow a tree of token paths from the empty path, which has index 0; step ``n`` makes path ``n + 1``.

    Args:
        max_steps: greatest number of steps.
        max_dropped: how many trailing ids of its parent a step may drop; None for any number.
    """
    lengths = [0]
    steps = []
    for _ in range(draw(st.integers(1, max_steps))):
        # Recent paths are favoured, so that chains get long enough to matter.
        parent = draw(st.just(len(lengths) - 1) | st.integers(0, len(lengths) - 1))
        least = 0 if max_dropped is None else max(lengths[parent] - max_dropped, 0)
        keep = draw(st.just(lengths[parent]) | st.integers(least, lengths[parent]))
        ids = draw(token_ids(max_size=5))
        steps.append(Extend(parent, keep, ids))
        lengths.append(keep + len(ids))
    return steps


# -- engine answers -----------------------------------------------------------------------------------------------


def engine_answers(
    *, ids: st.SearchStrategy[list[int]] | None = None, prompt: Sequence[int] | None = None
) -> st.SearchStrategy[bytes]:
    """Bodies of legal 200 answers of SGLang's chat route: log probs, meta info, optional echo, usage and routing data.

    Args:
        ids: what is sampled; any ids by default.
        prompt: the ids that were sent. When given, some answers echo them as ``prompt_token_ids``.
    """
    return _dumped(_answers(token_ids() if ids is None else ids, prompt))


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
    message = draw(_assistant_messages())
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
    return draw(_reordered(answer))


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


_BROKEN_RULES: Final[tuple[BrokenRule, ...]] = (
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
)


def _lose(draw: st.DrawFn, holder: dict[str, Any], key: str, values: list[Any]) -> None:
    """Take ``key`` out, or give it one of ``values``."""
    value = draw(st.sampled_from([*values, _GONE]))
    if value is _GONE:
        del holder[key]
    else:
        holder[key] = value


_GONE: Final = object()
