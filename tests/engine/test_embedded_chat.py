"""The chat contract: what an answer holds, what a request may ask for, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.embedded_fixtures import WEATHER, body, chat, engine, output
from trio_sessions.core.completion import extract_completion
from trio_sessions.engine.embedded import EmbeddedEngine
from trio_sessions.errors import ConfigurationError

_NAMES = ["builtin", "qwen3"]
_USER = {"role": "user", "content": "hello"}


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def _arguments(answer: dict[str, Any]) -> Any:
    return json.loads(_message(answer)["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("name", _NAMES)
def test_an_answer_is_accepted_by_the_gateways_own_reader(name: str) -> None:
    prompt = [1, 2, 3]
    raw = engine(name).complete(body(input_ids=prompt, return_prompt_token_ids=True)).body
    completion = extract_completion(raw, prompt=np.asarray(prompt, dtype=np.int32))
    answer = json.loads(raw)
    meta = answer["choices"][0]["meta_info"]
    assert completion.token_ids[-1] == engine(name).family.stop_id
    assert meta["completion_tokens"] == len(completion.token_ids) == answer["usage"]["completion_tokens"]
    assert meta["prompt_tokens"] == 3
    assert answer["usage"]["total_tokens"] == 3 + meta["completion_tokens"]
    assert meta["finish_reason"] == {"type": "stop", "matched": engine(name).family.stop_id}
    assert meta["weight_version"] == "default"
    assert meta["e2e_latency"] > 0
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (completion.log_probs <= 0).all()


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_message_rendered_again_is_the_text_that_was_sampled(name: str, thinking: bool) -> None:
    toy = engine(name)
    kwargs = {"enable_thinking": thinking}
    prompt = toy._tokenizer.apply_chat_template([_USER], tokenize=False, add_generation_prompt=True, **kwargs)
    thoughts = 0
    for seed in range(20):
        answer = chat(name, seed=seed, chat_template_kwargs=kwargs)
        message = _message(answer)
        sampled = toy.vocabulary.decode(output(answer)[0])
        reasoning = message["reasoning_content"]
        think = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
        assert sampled == think + message["content"] + "<|im_end|>"
        assert message["content"].strip() == message["content"] != ""
        assert message["tool_calls"] is None
        thoughts += reasoning is not None
        if name == "builtin":
            spoken = {key: value for key, value in message.items() if value is not None}
            again = toy._tokenizer.apply_chat_template([_USER, spoken], tokenize=False, **kwargs)
            assert again == prompt + sampled + "\n"
    assert (thoughts > 0) == thinking


@pytest.mark.parametrize("name", _NAMES)
def test_tools_are_called_and_their_results_answered(name: str) -> None:
    called = chat(name, tools=[WEATHER], seed=1)
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    assert called["choices"][0]["meta_info"]["finish_reason"]["type"] == "stop"
    message = _message(called)
    assert message["content"] == ""
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    history = [_USER, message, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    answered = chat(name, tools=[WEATHER], messages=history, seed=1)
    assert _message(answered)["tool_calls"] is None
    assert answered["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("choice", "last", "called"),
    [
        ("auto", _USER, {"get_weather", "other"}),
        ("none", _USER, set()),
        ("required", {"role": "tool", "content": "x"}, {"get_weather", "other"}),
        ({"type": "function", "function": {"name": "other"}}, _USER, {"other"}),
    ],
)
def test_tool_choice(choice: Any, last: dict[str, Any], called: set[str]) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    seen = set()
    for seed in range(30):
        answer = chat(tools=[WEATHER, other], tool_choice=choice, messages=[_USER, last], seed=seed)
        seen |= {call["function"]["name"] for call in _message(answer)["tool_calls"] or []}
    assert seen == called


def test_parallel_calls_come_one_a_line() -> None:
    numbers = set()
    for seed in range(60):
        answer = chat(tools=[WEATHER], parallel_tool_calls=True, seed=seed)
        calls = _message(answer)["tool_calls"]
        numbers.add(len(calls))
        assert [call["index"] for call in calls] == list(range(len(calls)))
    assert numbers == {1, 2}


_SIGNS = st.characters(exclude_categories=["Cs"])
_SCALARS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "number", "minimum": 0.25, "exclusiveMaximum": 3},
            {"type": "string", "minLength": 3, "maxLength": 5},
            {"type": ["string", "null"], "format": "date"},
            {"type": "integer", "exclusiveMinimum": 2, "maximum": 9, "multipleOf": 3},
            {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            {"$ref": "#/$defs/word"},
        ]
    ),
    st.integers(-99, 99).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 3}),
    st.lists(
        st.one_of(st.integers(), st.text(_SIGNS, max_size=6), st.none()),
        min_size=1,
        max_size=3,
    ).map(lambda values: {"enum": values}),
)
_SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}),
        st.dictionaries(st.text(_SIGNS, max_size=5), inner, max_size=3).flatmap(
            lambda properties: st.sets(st.sampled_from(sorted(properties) or [""])).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": sorted(required & set(properties)),
                }
            )
        ),
    ),
    max_leaves=5,
)


def _satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """A second reading of the schemas above, independent of the engine's."""
    if "enum" in schema:
        return any(value == allowed and type(value) is type(allowed) for allowed in schema["enum"])
    if "anyOf" in schema:
        return any(_satisfies(value, part) for part in schema["anyOf"])
    if "$ref" in schema:
        return value in ("one", "two")
    kind = schema["type"]
    if isinstance(kind, list):
        return isinstance(value, str) or value is None
    if kind == "object":
        return set(schema["required"]) <= set(value) <= set(schema["properties"]) and all(
            _satisfies(item, schema["properties"][key]) for key, item in value.items()
        )
    if kind == "array":
        return 1 <= len(value) <= 2 and all(_satisfies(item, schema["items"]) for item in value)
    if kind in ("integer", "number"):
        return (
            isinstance(value, int if kind == "integer" else int | float)
            and not isinstance(value, bool)
            and value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and value > schema.get("exclusiveMinimum", value - 1)
            and value < schema.get("exclusiveMaximum", value + 1)
            and value % schema.get("multipleOf", 1 if kind == "integer" else 0.25) == 0
        )
    if kind == "string":
        return isinstance(value, str) and schema.get("minLength", 1) <= len(value) <= schema.get("maxLength", 999)
    return isinstance(value, bool) if kind == "boolean" else value is None


@settings(deadline=None, max_examples=150)
@given(_SCHEMAS, st.integers(0, 2**31))
def test_arguments_satisfy_the_schema(schema: dict[str, Any], seed: int) -> None:
    parameters = {
        "type": "object",
        "properties": {"value": schema},
        "required": ["value"],
        "$defs": {"word": {"enum": ["one", "two"]}},
    }
    answer = chat(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}], seed=seed)
    arguments = _arguments(answer)
    assert list(arguments) == ["value"]
    assert _satisfies(arguments["value"], schema)


_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(_SIGNS),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(_SIGNS), inner, max_size=3)),
    max_leaves=6,
)
_WORDS_OF_SCHEMAS = [
    "type", "enum", "const", "properties", "required", "items", "minItems", "maxItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "format", "anyOf", "allOf", "$ref",
]  # fmt: skip
_KINDS = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", "date", "#", "#/x"])
_NONSENSE = st.recursive(
    st.one_of(_JSON, _KINDS),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(_WORDS_OF_SCHEMAS), st.one_of(inner, _KINDS, st.lists(inner, max_size=2))),
        st.dictionaries(st.sampled_from(["a", "b"]), inner),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(st.sampled_from(_WORDS_OF_SCHEMAS), _NONSENSE))
@example({"type": {}, "required": [[]]})
def test_whatever_a_schema_says_the_arguments_are_an_object(parameters: dict[str, Any]) -> None:
    answer = chat(tools=[{"function": {"name": "f", "parameters": parameters}}], seed=1)
    assert isinstance(_arguments(answer), dict)


def test_a_schema_that_contains_itself_comes_to_an_end() -> None:
    parameters = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
        "required": ["name"],
    }
    for seed in range(20):
        answer = chat(tools=[{"function": {"name": "f", "parameters": parameters}}], seed=seed)
        assert isinstance(_arguments(answer)["name"], str)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#"},
        {"properties": {"a": {"type": "array", "minItems": 5, "maxItems": 2}}, "required": ["a"]},
        {"properties": {"a": {"type": "string", "minLength": 10**9}}, "required": ["a"]},
        {"properties": {"a": {"type": "integer", "minimum": 1e300, "multipleOf": 1e-300}}, "required": ["a"]},
    ],
)
def test_a_schema_that_nothing_satisfies_comes_to_an_end(parameters: dict[str, Any]) -> None:
    answer = chat(tools=[{"function": {"name": "f", "parameters": parameters}}], seed=1)
    assert isinstance(_arguments(answer), dict)


def test_a_response_schema_is_kept() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}, seed=1)
    assert json.loads(_message(answer)["content"]) in ({"ok": True}, {"ok": False})


def test_a_cut_off_call_stays_in_the_content() -> None:
    kwargs = {"enable_thinking": False}
    answer = chat(tools=[WEATHER], chat_template_kwargs=kwargs, max_tokens=6, seed=2)
    assert _message(answer)["tool_calls"] is None
    assert _message(answer)["content"] == engine().vocabulary.decode(output(answer)[0])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


def test_a_prompt_that_opens_the_reasoning_is_continued_inside_it() -> None:
    ids = engine()._encoder.encode("<|im_start|>assistant\n<think>\n", add_special_tokens=False).ids
    answer = chat(input_ids=ids, seed=1)
    assert _message(answer)["reasoning_content"]
    assert _message(answer)["content"]
    assert "<think>" not in engine().vocabulary.decode(output(answer)[0])


def test_a_stop_text_ends_the_answer_and_its_ids_stay() -> None:
    kwargs = {"enable_thinking": False}
    answer = chat(stop=["e"], chat_template_kwargs=kwargs, seed=1)
    text = engine().vocabulary.decode(output(answer)[0])
    assert text.count("e") >= 1
    assert text.startswith(_message(answer)["content"] + "e")
    assert "e" not in _message(answer)["content"]
    assert answer["choices"][0]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "e"}


def test_cached_tokens_are_the_longest_known_prefix() -> None:
    fresh = EmbeddedEngine(seed=1)

    def cached(ids: list[int]) -> tuple[int, list[int]]:
        answer = json.loads(fresh.complete(body(input_ids=ids, seed=1)).body)
        return answer["choices"][0]["meta_info"]["cached_tokens"], output(answer)[0]

    nothing, sampled = cached([5, 6, 7])
    assert nothing == 0
    assert cached([5, 6, 7, *sampled, 8])[0] == 3 + len(sampled)
    assert cached([5, 6, 9, 9])[0] == 2
    assert cached([5, 6, 7])[0] == 2  # the last id is always computed
    assert fresh.handle("POST", "/flush_cache", b"").status == 200
    assert cached([5, 6, 7])[0] == 0


def _rows(answer: dict[str, Any], field: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    raw = base64.b64decode(answer["choices"][0]["meta_info"][field])
    return np.frombuffer(raw, dtype=np.int32).reshape(-1, 2, 2)


@pytest.mark.parametrize("field", ["routed_experts", "indexer_topk"])
def test_replay_rows_put_together_are_those_of_the_whole(field: str) -> None:
    prompt = list(range(20, 31))
    asked: dict[str, Any] = {"input_ids": prompt, f"return_{field}": True, "seed": 3}
    whole = chat(**asked)
    rows = _rows(whole, field)
    ids, _ = output(whole)
    assert len(rows) == len(prompt) + len(ids) - 1
    later = chat(**asked, routed_experts_start_len=8)
    np.testing.assert_array_equal(_rows(later, field), rows[8:])
    assert len(np.unique(rows)) > 4
    assert ("indexer_topk_num_layers" in whole["choices"][0]["meta_info"]) == (field == "indexer_topk")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [{"role": "wizard"}]}, r"messages[0].role"),
        ({"messages": "hello"}, "Expected `array`, got `str` - at `$.messages`"),
        ({"temperature": -1}, "temperature must be"),
        ({"top_p": 0}, "top_p must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"n": 2}, "n must be 1"),
        ({"input_ids": []}, "must not be empty"),
        ({"input_ids": [8192]}, "between 0 and 8191"),
        ({"input_ids": [-1]}, "between 0 and 8191"),
        ({"input_ids": ["1"]}, "Expected `int`, got `str`"),
        ({"input_ids": [1] * 131_072}, "longer than the model's context length (131072 tokens)"),
        ({"tools": [{"type": "function"}]}, "tools[0] has no function name"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "f"}}}, "not among the tools"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice must be"),
        ({"messages": [{"role": "user", "content": 1}]}, "the chat template refuses"),
    ],
)
def test_what_is_refused_and_how(fields: dict[str, Any], text: str) -> None:
    reply = engine().complete(body(**fields))
    error = json.loads(reply.body)
    assert (reply.status, error["code"], error["object"], error["type"]) == (400, 400, "error", "BadRequestError")
    assert text in error["message"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"messages":[{"role":"user","content":"\\ud800"}]}']
)
def test_bodies_that_are_no_object_are_refused(raw: bytes) -> None:
    assert engine().complete(raw).status == 400


def test_a_stream_without_meta_info_is_one_chunk() -> None:
    reply = engine().complete(body(stream=True, return_meta_info=False, logprobs=False, seed=1))
    first, done, rest = reply.body.decode().split("\n\n")
    chunk = json.loads(first.removeprefix("data: "))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"]["content"]
    assert (done, rest) == ("data: [DONE]", "")


def _call(method: str, path: str, **fields: Any) -> tuple[int, Any]:
    reply = engine().handle(method, path, json.dumps(fields).encode())
    return reply.status, json.loads(reply.body) if reply.body else None


def test_the_other_routes() -> None:
    assert _call("GET", "/health") == (200, None)
    assert _call("GET", "/v1/models")[1]["data"][0]["id"] == "embedded"
    status, answer = _call("POST", "/tokenize", prompt="a queue")
    assert (status, answer["count"]) == (200, len(answer["tokens"]))
    assert _call("POST", "/detokenize", tokens=answer["tokens"]) == (200, {"text": "a queue"})
    stop = engine().family.stop_id
    assert _call("POST", "/detokenize", tokens=[[stop], answer["tokens"]])[1] == {"text": ["", "a queue"]}
    assert _call("POST", "/detokenize", tokens=[stop], skip_special_tokens=False)[1] == {"text": "<|im_end|>"}
    assert _call("POST", "/detokenize", tokens=[9000])[0] == 400
    assert _call("POST", "/detokenize", tokens=[-1])[0] == 400
    status, answer = _call("POST", "/v1/completions", prompt="hello", max_tokens=3)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert _call("POST", "/update_weights")[0] == 404


def test_a_tokenizer_that_is_not_there_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="--tokenizer: cannot load"):
        EmbeddedEngine("/nowhere/at/all")
