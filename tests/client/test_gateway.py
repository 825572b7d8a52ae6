"""All three clients against a gateway in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.client.drivers import Driver
from tests.processes import command
from trio_sessions.client import RequestRefused, SessionNotFound, TruncatedGeneration

USER = {"role": "user", "content": "How is the weather in Zürich?"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with command("serve", "--port", "0") as gateway:
        yield gateway.url
        assert gateway.stop() == 0


def test_a_rollout(driver: Driver, gateway: str) -> None:
    async def scenario(client):
        assert (await client.health()).status == "ok"
        async with client.session() as session:
            first = await session.chat([USER], seed=1)
            messages = [USER, first.message, {"role": "user", "content": "And tomorrow?"}]
            second = await session.chat(messages, seed=2)
            assert second.finish_reason == "stop"
            state = await session.read()
            return session, state

    session, state = driver.run(gateway, scenario)
    assert [len(record["request"]["messages"]) for record in state.records] == [1, 3]
    assert state.session_id == session.id

    async def afterwards(client):
        await client.attach(session.id).read()

    with pytest.raises(SessionNotFound, match=session.id):
        driver.run(gateway, afterwards)


def test_samples_are_what_was_recorded(driver: Driver, gateway: str) -> None:
    async def scenario(client):
        async with client.session() as session:
            assert (await session.samples()).empty_reason == "no_records"
            first = await session.chat([USER], seed=1)
            await session.chat([USER, first.message, {"role": "user", "content": "And tomorrow?"}], seed=2)
            reply = await session.samples()
            cut = await session.samples(max_seq_len=len(reply.samples[0].tokens) - 1)
            with pytest.raises(RequestRefused, match="max_seq_len"):
                await session.samples(max_seq_len=-1)
            return reply, cut, await session.read()

    reply, cut, state = driver.run(gateway, scenario)
    [sample] = reply.samples
    assert sample.tokens.tolist() == state.metadata["accumulated_token_ids"]
    sampled = [
        (log_prob, token_id)
        for record in state.records
        for log_prob, token_id, *_ in record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
    ]
    trained = sample.loss_mask == 1
    assert sample.tokens[sample.response_start :][trained].tolist() == [token_id for _, token_id in sampled]
    assert sample.rollout_log_probs[trained].tolist() == [log_prob for log_prob, _ in sampled]
    assert sample.status == "completed"
    assert not sample.tokens.flags.writeable
    assert (cut.samples[0].status, len(cut.samples[0].tokens)) == ("truncated", len(sample.tokens) - 1)


@pytest.fixture(scope="module")
def tree_gateway() -> Iterator[str]:
    with command("serve", "--port", "0", "--mode", "tree") as gateway:
        yield gateway.url
        assert gateway.stop() == 0


def test_branches_get_their_own_rewards(driver: Driver, tree_gateway: str) -> None:
    async def scenario(client):
        async with client.session() as session:
            turns = [await session.chat([{"role": "user", "content": text}], seed=1) for text in ("One.", "Two.")]
            rewards = {turns[0].response_id: 0.25, turns[1].response_id: -1}
            with pytest.raises(RequestRefused, match="nobody"):
                await session.samples(rewards={"nobody": 1.0})
            return rewards, await session.samples(metadata={"task": "x", "reward": 9}, rewards=rewards)

    rewards, reply = driver.run(tree_gateway, scenario)
    assert {sample.metadata["leaf"]["response_id"]: sample.reward for sample in reply.samples} == rewards
    assert {sample.metadata["task"] for sample in reply.samples} == {"x"}


def test_a_truncated_turn_is_told_from_other_refusals(driver: Driver, tree_gateway: str) -> None:
    async def scenario(client):
        async with client.session() as session:
            cut = await session.chat([USER], max_tokens=2)
            assert cut.finish_reason == "length"
            await session.chat([USER, cut.message, {"role": "user", "content": "Go on."}])

    with pytest.raises(TruncatedGeneration, match="409: truncated generation cannot be extended"):
        driver.run(tree_gateway, scenario)


def test_an_openai_client_in_the_session(driver: Driver, gateway: str) -> None:
    async def scenario(client):
        async with client.session() as session:
            with OpenAI(base_url=session.base_url, api_key="unused", max_retries=0) as agent:
                agent.chat.completions.create(model="default", messages=[USER])
            return await session.read()

    assert len(driver.run(gateway, scenario).records) == 1


def test_several_agents_in_one_session(driver: Driver, tree_gateway: str) -> None:
    """Two with names, by the API of each, and one without."""

    async def scenario(client):
        async with client.session() as session:
            one, two = session.base_urls(agent="one"), session.base_urls(agent="sub agent 2")
            with (
                OpenAI(base_url=one.openai, api_key="unused") as first,
                Anthropic(base_url=two.anthropic, api_key="unused") as second,
            ):
                first.chat.completions.create(model="m", messages=[USER])
                second.messages.create(model="m", messages=[USER], max_tokens=50)
            await session.chat([USER])
            return await session.samples()

    callers = [sample.metadata.get("caller") for sample in driver.run(tree_gateway, scenario).samples]
    assert sorted(map(str, callers)) == ["None", "{'agent': 'one'}", "{'agent': 'sub agent 2'}"]


def test_what_the_gateway_refuses(driver: Driver, gateway: str) -> None:
    async def scenario(client):
        async with client.session() as session:
            with pytest.raises(RequestRefused, match="messages") as refused:
                await session.chat([7])
            assert refused.value.status == 400
            await session.delete()
            for ask in (session.read, session.delete, session.samples, lambda: session.chat([USER])):
                with pytest.raises(SessionNotFound):
                    await ask()

    driver.run(gateway, scenario)
