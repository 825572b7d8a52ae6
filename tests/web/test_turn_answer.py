"""What a client gets for a turn, and what is kept of it ("one chat turn", after the engine answered)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.web.support import (
    CHAT,
    OPENER,
    Serve,
    Session,
    assert_error,
    assistant,
    compact,
    error_text,
    spelled,
    user,
)
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import EngineUnreachable, TokenizationFailed
from trio_sessions.render.base import Extension
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids

JSON = (("content-type", "application/json"),)
META = "meta_info and output_token_logprobs must be in choice (requires logprobs=True)"


def answering(body: Any, *, status: int = 200, headers: Any = JSON) -> EngineAnswer:
    """An engine's answer of these bytes, or of this value."""
    return EngineAnswer(status=status, headers=headers, body=body if isinstance(body, bytes) else compact(body))


def altered(change: Any, text: str = "ok", **options: Any) -> EngineAnswer:
    """A usable answer after ``change(answer, choice, meta_info)``."""
    answer = json.loads(chat_answer(text, **options).body)
    choice = answer["choices"][0]
    change(answer, choice, choice["meta_info"])
    return answering(answer)


async def script(serve: Serve, *answers: Any, **settings: Any) -> Session:
    """A session of a gateway whose engine answers that."""
    return await (await serve(ScriptedEngine(*answers), **settings)).session()


async def test_the_answer_is_the_engines_json(session: Session) -> None:
    response = await session.chat(user("hi"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.content == chat_answer().body


async def test_the_answer_is_compact_with_non_ascii_text_and_numbers_as_the_engine_spelled_them(serve: Serve) -> None:
    pretty = (
        b'{ "id" : "x",\n "big": 123456789012345678901234567890, "exp": 1e-07, "n": "caf\xc3\xa9", "choices": [ '
        b'{"index": 0, "message": {"role": "assistant", "content": "caf\xc3\xa9"}, "finish_reason": "stop",'
        b' "meta_info": {"output_token_logprobs": [[-0.50, 65, null], [-1.0E0, 257, null]],'
        b' "completion_tokens": 2}} ] }'
    )
    expected = (
        b'{"id":"x","big":123456789012345678901234567890,"exp":1e-07,"n":"caf\xc3\xa9","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"caf\xc3\xa9"},"finish_reason":"stop","meta_info":'
        b'{"output_token_logprobs":[[-0.50,65,null],[-1.0E0,257,null]],"completion_tokens":2}}]}'
    )
    session = await script(serve, answering(pretty))
    assert (await session.chat(user("hi"))).content == expected
    assert b'"response":' + expected in await session.state()


async def test_escaped_text_of_the_engine_is_rendered_as_it_is(serve: Serve) -> None:
    answer = json.loads(chat_answer("é天").body)
    session = await script(serve, answering(json.dumps(answer, indent=2).encode()))
    response = await session.chat(user("hi"))
    assert response.content == compact(answer)
    assert "é天".encode() in await session.state()


class TestPassThrough:
    @pytest.mark.parametrize("status", [201, 204, 302, 400, 401, 404, 418, 429, 500, 503, 599])
    async def test_a_status_other_than_200_goes_through_and_records_nothing(self, serve: Serve, status: int) -> None:
        body = b"" if status == 204 else b'{"error":{"message":"no"}}'
        session = await script(serve, answering(body, status=status))
        async with session.unchanged():
            response = await session.chat(user("hi"))
        assert (response.status_code, response.content) == (status, body)

    async def test_json_is_rendered_compactly(self, serve: Serve) -> None:
        session = await script(serve, answering(b'{\n  "object": "error",\n  "m": "\\u00e9", "x": 1.50 }', status=400))
        response = await session.chat(user("hi"))
        assert response.content == '{"object":"error","m":"é","x":1.50}'.encode()
        assert response.headers["content-length"] == str(len(response.content))

    @pytest.mark.parametrize(
        "body",
        [b"Service  Unavailable\n", b"\xff\xfe\x00binary", b"", b'{"a": NaN }', b'{"a": 1', b"<html> </html>"],
    )
    async def test_other_bytes_go_through_verbatim(self, serve: Serve, body: bytes) -> None:
        headers = [("Content-Type", "text/html; charset=latin-1")]
        session = await script(serve, answering(body, status=503, headers=headers))
        response = await session.chat(user("hi"))
        assert (response.status_code, response.content) == (503, body)
        assert response.headers.get_list("content-type") == ["text/html; charset=latin-1"]

    async def test_the_engines_content_type_is_kept_also_for_json(self, serve: Serve) -> None:
        session = await script(
            serve, answering(b"{}", status=500, headers=[("content-type", "application/problem+json")])
        )
        assert (await session.chat(user("hi"))).headers.get_list("content-type") == ["application/problem+json"]

    async def test_retry_after_and_other_headers_are_passed_on(self, serve: Serve) -> None:
        headers = [*JSON, ("Retry-After", "7"), ("x-a", "1"), ("x-a", "2")]
        session = await script(serve, answering(b"{}", status=429, headers=headers))
        response = await session.chat(user("hi"))
        assert response.headers["retry-after"] == "7"
        assert response.headers.get_list("x-a") == ["1", "2"]

    async def test_a_failed_first_turn_may_be_followed_by_a_different_one(self, serve: Serve) -> None:
        session = await script(serve, answering(b"{}", status=500))
        assert (await session.chat({"role": "system", "content": "s"}, user("one"))).status_code == 500
        await session.turn(user("two"))
        assert [record["request"]["messages"] for record in await session.records()] == [[user("two")]]

    async def test_a_failed_later_turn_may_be_followed_by_a_different_one(self, serve: Serve) -> None:
        session = await script(serve, chat_answer("a"), answering(b"{}", status=500))
        answer = await session.turn(user("one"))
        async with session.unchanged():
            assert (await session.chat(user("one"), answer, user("two"))).status_code == 500
        await session.turn(user("one"), answer, user("three"))
        assert (await session.records())[1]["request"]["messages"] == [user("one"), answer, user("three")]


class TestUnreachable:
    async def test_what_the_client_raised_is_the_text_of_a_502(self, serve: Serve) -> None:
        text = "backend transport error: ConnectError: All connection attempts failed"
        session = await script(serve, EngineUnreachable("ConnectError", "All connection attempts failed"))
        async with session.unchanged():
            assert_error(await session.chat(user("hi")), 502, text)

    async def test_a_defect_of_ours_is_a_500_that_quotes_nothing(self, serve: Serve) -> None:
        session = await script(serve, RuntimeError("the conversation said: secret"))
        async with session.unchanged():
            response = await session.chat(user("secret"))
        assert "secret" not in error_text(response, 500)
        await session.turn(user("hi"))


def no_meta(answer: Any, choice: Any, meta: Any) -> None:
    del choice["meta_info"]


def null_meta(answer: Any, choice: Any, meta: Any) -> None:
    choice["meta_info"] = None


def no_log_probs(answer: Any, choice: Any, meta: Any) -> None:
    del meta["output_token_logprobs"]


def null_log_probs(answer: Any, choice: Any, meta: Any) -> None:
    meta["output_token_logprobs"] = None


def null_content(answer: Any, choice: Any, meta: Any) -> None:
    choice["message"]["content"] = None


def null_message(answer: Any, choice: Any, meta: Any) -> None:
    choice["message"] = None


def one_too_many(answer: Any, choice: Any, meta: Any) -> None:
    meta["completion_tokens"] += 1


class TestUnusableAnswers:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("change", [no_meta, null_meta, no_log_probs, null_log_probs])
    async def test_missing_meta_info_or_log_probs(self, serve: Serve, change: Any, stream: bool) -> None:
        session = await script(serve, altered(change))
        async with session.unchanged():
            assert_error(await session.chat(user("hi"), stream=stream), 502, META)

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("change", [null_content, null_message])
    async def test_null_content_or_message(self, serve: Serve, change: Any, stream: bool) -> None:
        session = await script(serve, altered(change))
        async with session.unchanged():
            text = error_text(await session.chat(user("hi"), stream=stream), 502)
        assert "assistant message content is None" in text

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_count_mismatch_has_both_numbers(self, serve: Serve, stream: bool) -> None:
        session = await script(serve, altered(one_too_many, "four"))
        async with session.unchanged():
            text = error_text(await session.chat(user("hi"), stream=stream), 502)
        assert "len(output_token_logprobs)=5 != completion_tokens=6" in text

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"null",
            b"[]",
            b"not json",
            b"{",
            b"\xff",
            b"{}",
            b'{"choices":null}',
            b'{"choices":{}}',
            b'{"choices":[]}',
            b'{"choices":[null]}',
            b'{"choices":[[]]}',
        ],
    )
    async def test_an_answer_without_a_choice(self, serve: Serve, body: bytes) -> None:
        session = await script(serve, answering(body))
        async with session.unchanged():
            text = error_text(await session.chat(user("hi")), 502)
        assert text.startswith("invalid chat completion response: ")

    @pytest.mark.parametrize("entry", ["-Infinity", "NaN", "Infinity", "1e999", "null", '"-1"', "true"])
    async def test_log_probs_that_are_not_finite_numbers(self, serve: Serve, entry: str) -> None:
        body = chat_answer("o").body.replace(b"[[-0.25,", b"[[" + entry.encode() + b",")
        assert entry.encode() in body
        session = await script(serve, answering(body))
        async with session.unchanged():
            error_text(await session.chat(user("hi")), 502)

    @pytest.mark.parametrize("id_", ["-1", "2147483648", "1.5", "null", '"7"', "99999999999999999999"])
    async def test_ids_that_are_not_31_bit_integers(self, serve: Serve, id_: str) -> None:
        body = chat_answer("o", token_ids=[77]).body.replace(b",77,", b"," + id_.encode() + b",")
        session = await script(serve, answering(body))
        async with session.unchanged():
            error_text(await session.chat(user("hi")), 502)

    @pytest.mark.parametrize("count", ["null", "2.5", '"2"'])
    async def test_a_count_that_is_no_integer(self, serve: Serve, count: str) -> None:
        body = chat_answer("o").body.replace(
            b'"completion_tokens":2}}', b'"completion_tokens":' + count.encode() + b"}}"
        )
        session = await script(serve, answering(body))
        async with session.unchanged():
            assert "completion_tokens" in error_text(await session.chat(user("hi")), 502)

    async def test_a_missing_count(self, serve: Serve) -> None:
        session = await script(serve, altered(lambda _, __, meta: meta.pop("completion_tokens")))
        async with session.unchanged():
            assert "completion_tokens" in error_text(await session.chat(user("hi")), 502)

    async def test_an_echoed_prompt_that_is_not_the_one_sent(self, serve: Serve) -> None:
        session = await script(serve, altered(lambda _, choice, __: choice.update(prompt_token_ids=[1, 2])))
        async with session.unchanged():
            error_text(await session.chat(user("hi")), 502)

    async def test_an_echoed_prompt_that_is_the_one_sent(self, serve: Serve) -> None:
        prompt = spelled(user("hi")) + OPENER
        session = await script(serve, altered(lambda _, choice, __: choice.update(prompt_token_ids=prompt)))
        await session.turn(user("hi"))

    async def test_a_nan_anywhere_in_the_answer(self, serve: Serve) -> None:
        session = await script(serve, answering(chat_answer().body[:-1] + b',"x":NaN}'))
        async with session.unchanged():
            error_text(await session.chat(user("hi")), 502)

    async def test_the_session_goes_on_after_all_of_these(self, serve: Serve) -> None:
        session = await script(serve, answering(b"{"), altered(no_meta), altered(null_content), chat_answer("fine"))
        for _ in range(3):
            assert (await session.chat(user("hi"))).status_code == 502
        assert await session.turn(user("hi")) == assistant("fine")
        assert len(await session.records()) == 1


def with_replay(answer: Any, choice: Any, meta: Any) -> None:
    meta.update(routed_experts="AAEC", indexer_topk="BBBB", cached_tokens=3)
    answer["choices"].append(json.loads(json.dumps(choice)) | {"index": 1})
    answer["choices"].append({"index": 2, "message": {"role": "assistant", "content": "bare"}})


class TestReplayPayloads:
    async def test_they_are_removed_from_every_choice_and_kept_in_the_record(self, serve: Serve) -> None:
        answer = altered(with_replay)
        session = await script(serve, answer, routing_replay=True, indexer_replay=True)
        response = await session.chat(user("hi"))
        expected = json.loads(answer.body)
        for choice in expected["choices"][:2]:
            del choice["meta_info"]["routed_experts"], choice["meta_info"]["indexer_topk"]
        assert response.content == compact(expected)
        assert response.headers["content-length"] == str(len(response.content))
        assert b'"response":' + answer.body in await session.state()

    async def test_a_choice_without_meta_info_does_not_get_one(self, serve: Serve) -> None:
        session = await script(serve, altered(with_replay))
        response = await session.chat(user("hi"))
        assert response.json()["choices"][2] == {"index": 2, "message": {"role": "assistant", "content": "bare"}}

    async def test_the_words_in_a_text_are_left_alone(self, serve: Serve) -> None:
        text = '"routed_experts":"x","indexer_topk"'
        session = await script(serve, chat_answer(text, meta_info={"routed_experts": "AA"}, routed_experts="top"))
        response = await session.chat(user("hi"))
        assert response.json()["choices"][0]["message"] == assistant(text)
        assert response.json()["routed_experts"] == "top"
        assert "routed_experts" not in response.json()["choices"][0]["meta_info"]


class TestRecords:
    async def test_a_turn_is_recorded_to_the_byte(self, serve: Serve) -> None:
        clock = itertools.count(1000.5).__next__
        session = await script(serve, chat_answer("a"), clock=clock)
        await session.chat(user("hé"), model="m")
        prompt = spelled(user("hé")) + OPENER
        request = {"model": "m", "logprobs": True, "return_meta_info": True, "no_stop_trim": False}
        assert await session.state() == (
            b'{"session_id":"'
            + session.id.encode()
            + b'","records":[{"timestamp":1001.5,"request_timestamp":1000.5,"method":"POST",'
            + b'"path":"/v1/chat/completions","request":'
            + compact({**request, "messages": [user("hé")], "input_ids": prompt})
            + b',"response":'
            + chat_answer("a").body
            + b',"status_code":200}],"metadata":'
            + compact(
                {
                    "tito_session_mismatch": [],
                    "accumulated_token_ids": prompt + sampled_ids("a"),
                    "max_trim_tokens": 0,
                }
            )
            + b"}"
        )

    async def test_there_is_one_record_for_each_committed_turn_in_order(self, serve: Serve) -> None:
        session = await script(serve, chat_answer("a"), chat_answer("b"), chat_answer("c"))
        messages: list[Any] = []
        for text in "abc":
            messages += [user(text), await session.turn(*messages, user(text))]
        records = await session.records()
        assert [list(record) for record in records] == [
            ["timestamp", "request_timestamp", "method", "path", "request", "response", "status_code"]
        ] * 3
        assert [record["request"]["messages"] for record in records] == [messages[:1], messages[:3], messages[:5]]
        assert [record["response"]["choices"][0]["message"] for record in records] == messages[1::2]
        assert [record["path"] for record in records] == [f"/{CHAT}"] * 3

    async def test_each_prompt_starts_with_all_that_was_sampled_before(self, serve: Serve) -> None:
        session = await script(serve, chat_answer("a"), chat_answer("b", finish_reason="length", token_ids=[98]))
        messages: list[Any] = []
        for text in "abc":
            messages += [user(text), await session.turn(*messages, user(text))]
        stored: list[int] = []
        for record in await session.records():
            prompt = record["request"]["input_ids"]
            assert prompt[: len(stored)] == stored
            entries = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
            stored = prompt + [entry[1] for entry in entries]
        assert (await session.metadata())["accumulated_token_ids"] == stored

    async def test_a_record_has_the_clients_spelling_and_the_engines_whole_answer(self, serve: Serve) -> None:
        session = await script(serve, altered(with_replay), chat_answer("b"))
        answer = await session.turn(user("hi"))
        replayed = {**answer, "tool_calls": [], "extra": 1}
        await session.turn({**user("hi"), "name": "n"}, replayed, user("more"))
        records = await session.records()
        assert records[1]["request"]["messages"] == [{**user("hi"), "name": "n"}, replayed, user("more")]
        assert records[0]["response"]["choices"][1]["meta_info"]["routed_experts"] == "AAEC"

    async def test_reading_twice_gives_the_same_bytes(self, session: Session) -> None:
        await session.turn(user("hi"))
        assert await session.state() == await session.state()

    async def test_a_mismatch_names_its_place_and_both_texts(self, serve: Serve) -> None:
        session = await script(serve, chat_answer("shown", token_ids=sampled_ids("served")))
        await session.turn(user("hi"))
        (mismatch,) = (await session.metadata())["tito_session_mismatch"]
        assert list(mismatch) == ["type", "segment_index", "expected_text", "actual_text", "detail"]
        assert mismatch["type"] == "assistant_text"
        assert "shown" in mismatch["expected_text"]
        assert "served" in mismatch["actual_text"]

    async def test_the_mismatch_is_absent_when_it_cannot_be_computed(self, serve: Serve) -> None:
        session = await script(serve, chat_answer(), renderer=Uncomparable())
        await session.turn(user("hi"))
        assert list(await session.metadata()) == ["accumulated_token_ids", "max_trim_tokens"]

    async def test_max_trim_tokens_is_the_renderers(self, serve: Serve) -> None:
        session = await script(serve, renderer=Trimming())
        assert (await session.metadata())["max_trim_tokens"] == 1


class Uncomparable(ToyRenderer):
    """Cannot say how the template would spell a conversation."""

    def canonical(self, messages: Any, *, tools: Any, kwargs: Any, now: Any = None) -> Any:
        raise TokenizationFailed("no canonical rendering")


class Trimming(ToyRenderer):
    """Replaces the last stored id, as families do whose stop id is the opener of the next role."""

    max_trim_tokens = 1
    trims = 1

    def extend(self, stored_ids: Any, **options: Any) -> Extension:
        kept = super().extend(stored_ids, **options)
        return Extension(keep=len(stored_ids) - self.trims, token_ids=kept.token_ids)


class OverTrimming(Trimming):
    """A defective renderer."""

    trims = 3


class TestPrefixCheck:
    async def test_trailing_differences_within_the_tolerance_are_committed(self, serve: Serve) -> None:
        session = await script(serve, renderer=Trimming())
        answer = await session.turn(user("hi"))
        await session.turn(user("hi"), answer, user("more"))
        first = spelled(user("hi")) + OPENER + sampled_ids("ok")
        second = first[:-1] + spelled(user("more")) + OPENER + sampled_ids("ok")
        assert (await session.metadata())["accumulated_token_ids"] == second

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_failure_is_a_500_with_all_its_numbers(self, serve: Serve, stream: bool) -> None:
        session = await script(serve, renderer=OverTrimming())
        answer = await session.turn(user("hi"))
        messages = [user("hi"), answer, user("more")]
        async with session.unchanged():
            response = await session.chat(*messages, stream=stream)
        stored = len(spelled(user("hi")) + OPENER + sampled_ids("ok"))
        total = stored - 3 + len(spelled(user("more")) + OPENER + sampled_ids("ok"))
        assert_error(
            response,
            500,
            f"pretokenized prefix mismatch: stored {stored} tokens (checking first {stored - 1}, allowing 1 trailing) "
            f"are not a prefix of prompt_token_ids + completion_token_ids ({total} tokens), "
            f"first mismatch at index {stored - 3}, matched {stored - 3}/{stored - 1} prefix tokens\n"
            f"request_messages={messages}\n"
            f"assistant_message={assistant('ok')}",
        )
