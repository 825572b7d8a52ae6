"""An engine's stream, however it is cut, comes to the answer that it would have given whole, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core import json as core_json
from trio_sessions.core.completion import extract_completion
from trio_sessions.core.stream import AnswerAssembler, Delta, EventSplitter
from trio_sessions.errors import BadEngineAnswer
from trio_sessions.testing.strategies import json_values

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
HEAD = {"id": "c-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}


def split(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [data for piece in pieces for data in splitter.feed(piece)]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """``data`` in pieces that end at these places; some may be empty."""
    places = sorted(place % (len(data) + 1) for place in at)
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
EVENT = st.builds(
    lambda data, before, space: (data, before, space),
    st.lists(
        TEXT.map(lambda text: "".join(text.splitlines())).filter(lambda text: not text.startswith(" ")), min_size=1
    )
    .filter(any)
    .map(lambda lines: [line.encode() for line in lines]),
    st.lists(st.sampled_from([b": comment", b"event: chunk", b"id: 1", b"retry: 5", b"database: no", b"x", b"data"])),
    st.booleans(),
)


@PATIENT
@given(st.lists(EVENT, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), CUTS)
def test_events_are_the_same_wherever_the_bytes_are_cut(events: Any, end: bytes, at: list[int]) -> None:
    stream = b""
    for data, before, space in events:
        lines = [*before, *(b"data:" + (b" " if space else b"") + line for line in data), b""]
        stream += b"".join(line + end for line in lines)
    assert split(cut(stream, at)) == [b"\n".join(data) for data, _, _ in events]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\r\n\r\ndata: c\r\r", [b"a", b"b", b"c"]),
        (b"data:a\ndata:  b\n\n", [b"a\n b"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data: a\rdata: b\r\r", [b"a\nb"]),
        (b"data: \xc3\xa9\n\n", ["é".encode()]),
        (b": ping\n\n\n\ndata: a\n\n", [b"a"]),
        (b"data:\n\ndata\n\n", []),
        (b"event: x\ndata: a\nid: 1\n\n", [b"a"]),
        (b"data: never ended\n", []),
        (b"data: never ended", []),
        (b"data: a\x0bb\x0c\x1c\xe2\x80\xa8\n\n", [b"a\x0bb\x0c\x1c\xe2\x80\xa8"]),
    ],
)
def test_server_sent_events(stream: bytes, events: list[bytes]) -> None:
    assert split([stream]) == events
    assert split([stream[index : index + 1] for index in range(len(stream))]) == events


class _Counting(bytes):
    """A piece that counts how often it is looked through."""

    looks = 0

    def splitlines(self, keepends: bool = False) -> list[bytes]:
        _Counting.looks += 1
        return super().splitlines(keepends)


def test_a_line_of_many_pieces_is_looked_through_once() -> None:
    """What a piece leaves behind is not touched before its line ends."""
    splitter = EventSplitter()
    pieces = [_Counting(b"data: "), *(_Counting(b"x" * 1000) for _ in range(500)), _Counting(b"\n\n")]
    _Counting.looks = 0
    [data] = [data for piece in pieces for data in splitter.feed(piece)]
    assert len(data) == 500_000
    assert _Counting.looks == len(pieces)


def answer(
    content: str, reasoning: str | None, calls: list[dict[str, Any]], entries: list[Any], **meta: Any
) -> dict[str, Any]:
    """A whole answer, as an assembler spells it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return {
        **HEAD,
        "object": "chat.completion",
        "usage": {"prompt_tokens": 3, "completion_tokens": len(entries)},
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop",
                "matched_stop": 7,
                "meta_info": {"completion_tokens": len(entries), **meta, "output_token_logprobs": entries},
            }
        ],
    }


def cut_text(text: str, at: list[int]) -> list[str]:
    places = sorted(place % (len(text) + 1) for place in at)
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def answers_in_chunks(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer, and chunks that an engine could have sent for it."""
    calls: list[dict[str, Any]] = [
        {"id": f"c{index}", "index": index, "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(draw(st.lists(st.tuples(TEXT, TEXT), max_size=3)))
    ]
    content, reasoning = draw(TEXT), draw(st.none() | TEXT)
    entries = draw(
        st.lists(
            st.tuples(st.floats(-50, 0), st.integers(0, 2**31 - 1), st.none() | TEXT).map(list), min_size=1, max_size=9
        )
    )
    whole = answer(content, reasoning, calls, entries, weight_version="v", routed_experts="AAAA")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": draw(st.sampled_from([None, ""]))}]
    deltas += [{"reasoning_content": part} for part in cut_text(reasoning or "", draw(CUTS))]
    deltas += [{"content": part, "reasoning_content": None} for part in cut_text(content, draw(CUTS))]
    for call in calls:
        function = call["function"]
        begun = {**call, "function": {"name": function["name"], "arguments": draw(st.sampled_from([None, ""]))}}
        deltas.append({"tool_calls": [begun]})
        for part in cut_text(function["arguments"], draw(CUTS)):
            deltas.append({"tool_calls": [{"index": call["index"], "function": {"arguments": part}}]})
    chunks = [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    # Ids come with any chunks, in order; so do counts, which grow.
    sent = 0
    for place in sorted(draw(st.lists(st.integers(0, len(chunks) - 1), min_size=1, max_size=4))):
        choice: dict[str, Any] = chunks[place]["choices"][0]
        if "meta_info" in choice:
            continue
        more = draw(st.integers(0, len(entries) - sent))
        choice["meta_info"] = {
            "output_token_logprobs": entries[sent : sent + more],
            "completion_tokens": sent + more,
            "weight_version": "v",
        }
        sent += more
        chunks[place]["usage"] = {"completion_tokens": sent}
    last = whole["choices"][0]
    meta = {**last["meta_info"], "output_token_logprobs": entries[sent:]}
    end = {"index": 0, "delta": {}, "finish_reason": last["finish_reason"], "matched_stop": 7, "meta_info": meta}
    if draw(st.booleans()):
        chunks += [{**HEAD, "choices": [end]}, {**HEAD, "choices": [], "usage": whole["usage"]}]
    else:
        chunks.append({**HEAD, "choices": [end], "usage": whole["usage"]})
    return whole, chunks


def events_of(chunks: list[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def assembled(pieces: list[bytes]) -> tuple[bytes, list[Delta]]:
    splitter, assembler = EventSplitter(), AnswerAssembler()
    deltas = []
    for piece in pieces:
        for data in splitter.feed(piece):
            delta = assembler.add(data)
            if delta is not None:
                assert delta.reasoning or delta.content
                deltas.append(delta)
    return assembler.answer(), deltas


@PATIENT
@given(answers_in_chunks(), CUTS)
def test_chunks_come_to_the_whole_answer(given_: Any, at: list[int]) -> None:
    whole, chunks = given_
    body, deltas = assembled(cut(events_of(chunks), at))
    assert json.loads(body) == whole
    message = whole["choices"][0]["message"]
    assert "".join(delta.content for delta in deltas) == message["content"]
    assert "".join(delta.reasoning for delta in deltas) == message.get("reasoning_content", "")
    assert all(delta.head == {name: HEAD[name] for name in ("id", "created", "model")} for delta in deltas)
    # It is what the gateway takes from an engine that answers whole.
    completion = extract_completion(body)
    assert completion.token_ids.tolist() == [
        entry[1] for entry in whole["choices"][0]["meta_info"]["output_token_logprobs"]
    ]
    assert core_json.compact(body) == body


NAMES = st.sampled_from(
    [
        *("choices", "delta", "meta_info", "output_token_logprobs", "completion_tokens", "usage", "error", "object"),
        *("tool_calls", "function", "index", "name", "arguments", "content", "reasoning_content", "role", "id"),
        *("logprobs", "finish_reason", "message"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "choices": ANYTHING
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": SCALARS | st.just(0),
                    "delta": ANYTHING
                    | st.fixed_dictionaries(
                        {},
                        optional={
                            "content": ANYTHING,
                            "tool_calls": ANYTHING
                            | st.lists(
                                st.fixed_dictionaries({}, optional={"index": ANYTHING, "function": ANYTHING}),
                                max_size=2,
                            ),
                        },
                    ),
                    "meta_info": ANYTHING
                    | st.fixed_dictionaries({}, optional={"output_token_logprobs": ANYTHING | st.just([[-1.0, 5]])}),
                    "message": ANYTHING,
                },
            ),
            min_size=1,
            max_size=2,
        ),
        "usage": ANYTHING | st.builds(lambda count: {"completion_tokens": count}, SCALARS | st.integers(0, 2)),
        "error": SCALARS,
        "created": SCALARS,
    },
)
RAW = st.sampled_from([b"[DONE]", b"{", b"NaN", b"\xff", b"[]", b'{"a":1e999}', b'{"id":"\\ud800"}', b"[" * 200])


@PATIENT
@given(st.lists(CHUNK.map(lambda chunk: json.dumps(chunk).encode()) | json_values().map(core_json.encode) | RAW))
@example([b'{"choices":[{"delta":{"tool_calls":1}}]}'])
@example([b'{"choices":[{"delta":{"tool_calls":[{"index":true}]}}]}'])
@example([b'{"choices":[{"delta":{"tool_calls":[{"index":123456789012345678901234567890,"id":2}]}}]}', b"[DONE]"])
@example([b'{"created":123456789012345678901234567890}', b"[DONE]"])
@example(
    [
        b'{"created":123456789012345678901234567890,"choices":[{"meta_info":{"output_token_logprobs":[]}}],'
        b'"usage":{"completion_tokens":0}}',
        b"[DONE]",
    ]
)
def test_any_events_make_an_answer_or_are_a_bad_one(events: list[bytes]) -> None:
    assembler = AnswerAssembler()
    try:
        for data in events:
            assembler.add(data)
        body = assembler.answer()
        completion = extract_completion(body)
    except BadEngineAnswer:
        return
    assert len(completion.token_ids) == json.loads(body)["usage"]["completion_tokens"]
    assert isinstance(completion.message["content"], str)


@PATIENT
@given(answers_in_chunks(), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1, max_size=3))
def test_damaged_bytes_make_an_answer_or_are_a_bad_one(given_: Any, damages: list[tuple[int, bytes]]) -> None:
    stream = events_of(given_[1])
    for place, damage in damages:
        at = place % len(stream)
        stream = stream[:at] + damage + stream[at + len(damage) :]
    try:
        body, _ = assembled([stream])
        extract_completion(body)
    except BadEngineAnswer:
        return


def chunk(delta: Any = None, *entries: Any, completion_tokens: Any = None, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"delta": delta or {}, "meta_info": {"output_token_logprobs": list(entries)}}
    usage = {} if completion_tokens is None else {"usage": {"completion_tokens": completion_tokens}}
    return {**HEAD, "choices": [{**choice, **fields}], **usage}


A, B, C = ([-0.5, id_, None] for id_ in (1, 2, 3))
GOOD = [chunk({"content": "a"}, A), chunk({"content": "b"}, B, completion_tokens=2)]


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        (GOOD[:1], r"len\(output_token_logprobs\)=1 != usage.completion_tokens=None"),
        ([*GOOD, chunk(completion_tokens=3)], r"len\(output_token_logprobs\)=2 != usage.completion_tokens=3"),
        # Every chunk repeats the ids before it.
        (
            [chunk({"content": "a"}, A), chunk({"content": "b"}, A, B), chunk({}, A, B, C, completion_tokens=3)],
            "=6 != ",
        ),
        ([*GOOD, chunk(completion_tokens=True)], "completion_tokens=None"),
        ([*GOOD, chunk(completion_tokens=2.0)], "completion_tokens=None"),
        ([*GOOD, chunk(completion_tokens="2")], "completion_tokens=None"),
        ([*GOOD, {"usage": 5}], "completion_tokens=None"),
        ([{**HEAD, "choices": [], "usage": {"completion_tokens": 0}}], "no chunk has output_token_logprobs"),
        ([chunk(index=1)], "more than one choice"),
        ([{"choices": [{}, {}]}], "more than one choice"),
        ([{"choices": 5}], "choices must be a list"),
        ([{"choices": [5]}], r"choices\[0\] must be an object"),
        ([[]], "a chunk must be an object"),
        ([chunk(message={"content": "x"})], "a message where a delta should be"),
        ([chunk([5])], "delta must be an object"),
        ([chunk({"content": ["a"]})], "content must be a string"),
        ([chunk({"role": "user"})], "role must be assistant"),
        ([chunk({"tool_calls": 5})], "tool_calls must be a list"),
        ([chunk({"tool_calls": [5]})], "a tool call must be an object"),
        ([chunk({"tool_calls": [{"index": None}]})], "index of a tool call must be an integer"),
        ([chunk({"tool_calls": [{"function": "f"}]})], "function must be an object"),
        ([chunk({"tool_calls": [{"function": {"arguments": {}}}]})], "arguments must be a string"),
        ([chunk(meta_info=[5])], "meta_info must be an object"),
        ([chunk(meta_info={"output_token_logprobs": {}})], "output_token_logprobs must be a list"),
        ([GOOD[0], chunk({"reasoning_content": "late"}, B, completion_tokens=2)], "reasoning comes behind content"),
        ([GOOD[0], {"error": {"message": "secret"}}], "broke it off with an error$"),
        ([GOOD[0], {"object": "error", "message": "secret"}], "broke it off with an error$"),
    ],
)
def test_what_is_no_answer(chunks: list[Any], why: str) -> None:
    with pytest.raises(BadEngineAnswer, match=f"^invalid chat completion stream: .*{why}"):
        assembled([events_of(chunks)])


def test_the_end_is_the_end() -> None:
    whole = events_of(GOOD)
    expected, _ = assembled([whole])
    with pytest.raises(BadEngineAnswer, match=r"ended before \[DONE\]"):
        assembled([whole.replace(b"[DONE]", b"{}")])
    with pytest.raises(BadEngineAnswer, match=r"comes after \[DONE\]"):
        assembled([whole + b'data: {"usage":{"completion_tokens":1}}\n\n'])
    assert assembled([whole + b"data: [DONE]\n\n: bye\n\n"])[0] == expected


def test_what_is_left_out_and_what_is_missing() -> None:
    choice = json.loads(assembled([events_of([*GOOD, chunk(logprobs={"content": []})])])[0])["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "ab"}
    assert "logprobs" not in choice
    assert choice["finish_reason"] is None


def test_the_last_word_on_a_count_is_that_of_the_meta_info_too() -> None:
    with pytest.raises(BadEngineAnswer, match=r"len\(output_token_logprobs\)=2 != completion_tokens=1"):
        extract_completion(
            assembled([events_of([*GOOD, chunk(meta_info={"completion_tokens": 1}), chunk(completion_tokens=2)])])[0]
        )


def test_its_weight_is_that_of_all_that_was_added() -> None:
    assembler = AnswerAssembler()
    for chunk_ in [*GOOD, {"usage": {"completion_tokens": 2}, "x": "y" * 100_000}]:
        assembler.add(json.dumps(chunk_).encode())
    assembler.add(b"[DONE]")
    assert assembler.weight >= core_json.weight(assembler.answer())


def test_null_takes_nothing_back() -> None:
    said = chunk({"content": "a"}, A, completion_tokens=1, finish_reason="stop")
    nothing = {**HEAD, "usage": None, "created": None, "choices": [{"delta": {}, "finish_reason": None}]}
    whole = json.loads(assembled([events_of([said, nothing])])[0])
    assert (whole["choices"][0]["finish_reason"], whole["created"]) == ("stop", 5)


def test_calls_may_come_in_turns() -> None:
    def part(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **fields, "function": {"arguments": arguments}}]})

    parts = [part(1, "x", id="c1"), part(0, "y", id="c0"), part(1, "X", id=None), part(0, "Y")]
    [choice] = json.loads(assembled([events_of([*parts, *GOOD])])[0])["choices"]
    assert choice["message"]["tool_calls"] == [
        {"index": 0, "id": "c0", "function": {"name": "", "arguments": "yY"}},
        {"index": 1, "id": "c1", "function": {"name": "", "arguments": "xX"}},
    ]
