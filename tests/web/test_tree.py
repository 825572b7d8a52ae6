"""Tree mode and training samples, over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import trio

from tests.web.support import Serve, Session, assert_error, assistant, user
from trio_sessions.core.samples import Sample, SamplesReply, decode_samples
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.toy import sampled_ids

Q = [user(f"q{index}") for index in range(4)]

# A first turn, two that go on from it, and one behind the second of them: the model says a, b, c, d.
BRANCHES = (
    [Q[0]],
    [Q[0], assistant("a"), Q[1]],
    [Q[0], assistant("a"), Q[2]],
    [Q[0], assistant("a"), Q[2], assistant("c"), Q[3]],
)


def answers(*texts: str, **facts: Any) -> list[Any]:
    """Answers that say ``texts``, with response ids ``r-<text>``."""
    return [chat_answer(text, **{"id": f"r-{text}", **facts}) for text in texts]


async def tree_session(serve: Serve, *then: Any, **settings: Any) -> Session:
    return await (await serve(ScriptedEngine(*then), mode="tree", **settings)).session()


async def samples_of(session: Session, **body: Any) -> SamplesReply:
    response = await ask(session, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    return decode_samples(response.content)


async def ask(session: Session, **body: Any) -> httpx.Response:
    return await session.served.client.post(f"{session.path}/samples", content=json.dumps(body) if body else b"")


def trained(reply: SamplesReply) -> list[int]:
    """All trained ids of all samples."""
    return [
        int(token)
        for sample in reply.samples
        for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True)
        if mask
    ]


class TestTree:
    async def test_what_does_not_extend_grows_a_branch(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "b", "c", "d"))
        await session.turn(Q[0])
        await session.turn(Q[0], assistant("a"), Q[1])
        # Two turns back: a linear session refuses this.
        await session.turn(Q[0], assistant("a"), Q[2])
        await session.turn(user("another"))
        tree = (await session.metadata())["tree"]
        assert [(node["id"], node["parent"], node["response_id"]) for node in tree["nodes"]] == [
            (0, None, "r-a"),
            (1, 0, "r-b"),
            (2, 0, "r-c"),
            (3, None, "r-d"),
        ]
        assert tree["leaves"] == [
            {"node_id": 1, "path_node_ids": [0, 1]},
            {"node_id": 2, "path_node_ids": [0, 2]},
            {"node_id": 3, "path_node_ids": [3]},
        ]
        assert tree["active"] == 3

    async def test_the_records_are_those_of_the_active_path(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "b", "c"))
        for request in ([Q[0]], [Q[0], assistant("a"), Q[1]], [Q[0], assistant("a"), Q[2]]):
            await session.turn(*request)
        assert [record["response"]["id"] for record in await session.records()] == ["r-a", "r-c"]
        metadata = await session.metadata()
        assert list(metadata)[-1] == "tree"
        spans = [node["completion_span"] for node in metadata["tree"]["nodes"]]
        assert metadata["accumulated_token_ids"][slice(*spans[2])] == sampled_ids("c")
        assert metadata["tree"]["nodes"][2]["num_tokens"] == len(metadata["accumulated_token_ids"])

    async def test_a_branch_keeps_the_ids_of_the_node_it_grows_from(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "b", "c"))
        await session.turn(Q[0])
        stored = (await session.metadata())["accumulated_token_ids"]
        for question in (Q[1], Q[2]):
            await session.turn(Q[0], assistant("a"), question)
            assert session.served.engine.body()["input_ids"][: len(stored)] == stored

    async def test_concurrent_turns_from_one_place_become_siblings(self, serve: Serve) -> None:
        calls = HeldCalls()
        session = await (await serve(ScriptedEngine(otherwise=calls), mode="tree")).session()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(session.turn, Q[0])
            while len(calls.waiting) < 3:
                await trio.testing.wait_all_tasks_blocked(0.01)
            for number, call in enumerate(list(calls.waiting)):
                call.answer(chat_answer(str(number), id=f"r{number}"))
        nodes = (await session.metadata())["tree"]["nodes"]
        assert [node["parent"] for node in nodes] == [None] * 3
        assert {node["response_id"] for node in nodes} == {"r0", "r1", "r2"}

    async def test_a_truncated_generation_is_not_extended(self, serve: Serve) -> None:
        cut = chat_answer("a", token_ids=sampled_ids("a")[:-1], finish_reason="length")
        session = await tree_session(serve, cut)
        await session.turn(Q[0])
        async with session.unchanged():
            response = await session.chat(Q[0], assistant("a"), Q[1])
        assert response.status_code == 409
        assert "truncated generation cannot be extended" in response.json()["error"]
        assert (await session.metadata())["tree"]["nodes"][0]["truncated"] is True

    async def test_a_failed_turn_leaves_nothing(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a"), EngineAnswer(500, (), b"{}"))
        await session.turn(Q[0])
        async with session.unchanged():
            assert (await session.chat(Q[0], assistant("a"), Q[1])).status_code == 500

    async def test_changed_tools_start_a_root_of_their_own_where_that_is_wanted(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "b"), on_tools_change="branch")
        await session.turn(Q[0])
        await session.turn(Q[0], assistant("a"), Q[1], tools=[{"type": "function", "function": {"name": "f"}}])
        assert [node["parent"] for node in (await session.metadata())["tree"]["nodes"]] == [None, None]


class TestSamples:
    async def test_a_linear_session_is_one_sample(self, serve: Serve) -> None:
        session = await (await serve(ScriptedEngine(*answers("a", "b")))).session()
        await session.turn(Q[0])
        await session.turn(Q[0], assistant("a"), Q[1])
        reply = await samples_of(session)
        metadata = await session.metadata()
        [sample] = reply.samples
        assert sample.tokens.tolist() == metadata["accumulated_token_ids"]
        assert trained(reply) == [*sampled_ids("a"), *sampled_ids("b")]
        assert (sample.status, sample.reward) == ("completed", None)
        assert reply.session_metadata == metadata
        assert np.isfinite(sample.rollout_log_probs).all()

    @pytest.mark.parametrize("mode", ["linear", "tree"])
    async def test_a_session_without_turns_has_none(self, serve: Serve, mode: str) -> None:
        session = await (await serve(mode=mode)).session()
        reply = await samples_of(session)
        assert (reply.samples, reply.empty_reason) == ((), "no_records")

    async def test_a_forest_trains_every_kept_id_once(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "b", "c", "d"))
        for request in BRANCHES:
            await session.turn(*request)
        reply = await samples_of(session)
        # b was superseded by its later sibling.
        assert [sample.metadata["leaf"]["path_node_ids"] for sample in reply.samples] == [[0, 2, 3]]
        everything = await samples_of(await every_leaf(serve))
        assert sorted(trained(everything)) == sorted(i for text in "abcd" for i in sampled_ids(text))

    async def test_rewards_of_branches_win_over_the_one_for_all(self, serve: Serve) -> None:
        session = await every_leaf(serve)
        reply = await samples_of(session, metadata={"reward": 0.25, "task": "t"}, rewards={"r-d": 1})
        by_leaf = {sample.metadata["leaf"]["response_id"]: sample for sample in reply.samples}
        assert {leaf: sample.reward for leaf, sample in by_leaf.items()} == {"r-d": 1, "r-b": 0.25}
        assert all(sample.metadata["task"] == "t" for sample in reply.samples)
        assert reply.session_metadata["agent"] == {"reward": 0.25, "task": "t", "rewards": {"r-d": 1}}

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"{", "invalid JSON body:"),
            (b"[]", "the body must be an object"),
            (b'{"max_seq_len":0}', "max_seq_len must be a positive number of ids or null, got 0"),
            (b'{"max_seq_len":true}', "max_seq_len must be a positive number of ids or null, got True"),
            (b'{"metadata":[]}', "metadata must be an object or null"),
            (b'{"rewards":[]}', "rewards must be an object of response ids and numbers"),
            (b'{"rewards":{"r-a":"1"}}', "rewards['r-a'] must be a number, got '1'"),
            (b'{"rewards":{"r-a":1' + b"0" * 400 + b"}}", "rewards['r-a'] must be a number, got 1000"),
            (b'{"rewards":{"":1}}', "rewards names '', which is the id of no response of this session"),
            (b'{"rewards":{"r-z":1}}', "rewards names 'r-z', which is the id of no response of this session"),
        ],
    )
    async def test_a_bad_request_is_told_so(self, serve: Serve, body: bytes, text: str) -> None:
        session = await tree_session(serve, *answers("a"))
        await session.turn(Q[0])
        async with session.unchanged():
            response = await session.served.client.post(f"{session.path}/samples", content=body)
            assert response.status_code == 400
            assert response.json()["error"].startswith(text)

    async def test_a_long_sample_is_cut(self, serve: Serve) -> None:
        session = await (await serve(ScriptedEngine(*answers("abcdef")))).session()
        await session.turn(Q[0])
        whole = (await samples_of(session)).samples[0]
        cut = (await samples_of(session, max_seq_len=len(whole.tokens) - 2)).samples[0]
        assert cut.tokens.tolist() == whole.tokens.tolist()[:-2]
        assert cut.status == "truncated"
        none = await samples_of(session, max_seq_len=1)
        assert (none.samples, none.empty_reason) == ((), "all_truncated")

    async def test_what_cannot_be_assembled_is_text_and_the_server_goes_on(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a"), sample_picker="tests.web.test_tree.broken_picker")
        await session.turn(Q[0])
        async with session.unchanged():
            response = await ask(session)
            assert response.status_code == 422
            assert response.headers["content-type"].startswith("text/plain")
            assert "tests.web.test_tree.broken_picker" in response.text
        assert (await session.served.client.get("/health")).status_code == 200

    async def test_a_deleted_session_has_none(self, serve: Serve) -> None:
        session = await (await serve()).session()
        await session.delete()
        assert_error(await ask(session), 404, f"session not found: session_id={session.id}")

    async def test_a_name_that_two_responses_share_is_no_name(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a", "a"))
        for _ in range(2):
            await session.turn(Q[0])
        assert_error(await ask(session, rewards={"r-a": 1}), 400, "rewards names 'r-a', which is the id of 2 responses")

    async def test_rewards_are_added_to_those_in_the_metadata(self, serve: Serve) -> None:
        session = await every_leaf(serve)
        reply = await samples_of(session, metadata={"rewards": {"r-b": 2, "r-d": 3}}, rewards={"r-d": 1})
        assert {s.metadata["leaf"]["response_id"]: s.reward for s in reply.samples} == {"r-d": 1, "r-b": 2}

    async def test_what_a_hook_returns_wrongly_is_told_as_text(self, serve: Serve) -> None:
        session = await tree_session(serve, *answers("a"), sample_postprocessor="tests.web.test_tree.spoiling")
        await session.turn(Q[0])
        response = await ask(session)
        assert (response.status_code, response.headers["content-type"]) == (422, "text/plain; charset=utf-8")
        assert response.text.startswith("sample 0 is not what a sample has to be: ")


def spoiling(samples: list[Sample], session_metadata: dict[str, Any]) -> list[Sample]:
    return [replace(sample, prefix_cache_info=None) for sample in samples]


def broken_picker(samples: list[Sample], session_metadata: dict[str, Any]) -> list[Sample]:
    raise RuntimeError("no taste")


async def every_leaf(serve: Serve) -> Session:
    """A session of two branches, both of which are trained."""
    session = await tree_session(serve, *answers("a", "b", "c", "d"), sample_picker="keep_all")
    for request in BRANCHES:
        await session.turn(*request)
    return session
