"""What holds for the session of an agent that used one tool and then said something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.agents.stack import Rollout, Stack
from trio_sessions.core.samples import Sample


def assert_one_line(stack: Stack, rollout: Rollout, *, turns: int, side: Sequence[str]) -> Sample:
    """Every turn of the task extends the one before it, id by id, and one sample, which is returned, has them all.

    Args:
        stack: where the agent ran.
        rollout: what is there.
        turns: how many turns the task had.
        side: what requests beside them were for; each has a line of its own.
    """
    assert stack.count("trio_sessions_rollbacks_total") == 0
    assert "undelivered" not in rollout.metadata
    assert "boundary_events" not in rollout.metadata
    if "tree" in rollout.metadata:
        _assert_chain(rollout.metadata["tree"]["nodes"], turns, side)
    else:
        assert stack.count("trio_sessions_turns_total", outcome="committed") == turns
    assert len(rollout.records) == turns
    stored = _assert_prefixes(rollout)
    # The engine samples spellings that no tokenizer would write.
    assert [found for found in rollout.metadata["tito_session_mismatch"] if found["type"] != "assistant_text"] == []
    [sample] = [sample for sample in rollout.samples if sample.tokens.tolist() == stored]
    _assert_trains_what_was_sampled(sample, rollout.records)
    return sample


def _assert_chain(nodes: Sequence[Mapping[str, Any]], turns: int, side: Sequence[str]) -> None:
    beside = [node for node in nodes if "purpose" in node.get("caller", {})]
    assert [(node["caller"]["purpose"], node["parent"]) for node in beside] == [(purpose, None) for purpose in side]
    line = [node for node in nodes if node not in beside]
    assert len(line) == turns
    assert [node["parent"] for node in line] == [None, *(node["id"] for node in line[:-1])]


def _assert_prefixes(rollout: Rollout) -> list[int]:
    """Every prompt begins with the prompt before it and what was sampled for that; all ids."""
    trim = rollout.metadata["max_trim_tokens"]
    stored: list[int] = []
    for record in rollout.records:
        prompt = record["request"]["input_ids"]
        kept = max(0, len(stored) - trim)
        assert prompt[:kept] == stored[:kept]
        stored = prompt + [id_ for _, id_, *_ in sampled(record)]
    assert rollout.metadata["accumulated_token_ids"] == stored
    return stored


def _assert_trains_what_was_sampled(sample: Sample, records: Sequence[Mapping[str, Any]]) -> None:
    expected = [0.0] * len(sample.tokens)
    trained = [0] * len(sample.tokens)
    for record in records:
        for position, (log_prob, id_, *_) in enumerate(sampled(record), len(record["request"]["input_ids"])):
            assert sample.tokens[position] == id_
            assert log_prob <= 0
            expected[position], trained[position] = log_prob, 1
    assert [0] * sample.response_start + sample.loss_mask.tolist() == trained
    assert [0.0] * sample.response_start + sample.rollout_log_probs.tolist() == expected


def sampled(record: Mapping[str, Any]) -> list[list[Any]]:
    """Log prob and id of everything that was sampled for a turn."""
    entries: list[list[Any]] = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
    return entries


def message(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The assistant's message of a turn."""
    said: Mapping[str, Any] = record["response"]["choices"][0]["message"]
    return said


def tool_result(record: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """The last message of a turn's prompt, which has to answer ``call``: with its id or, without a role for tools, in
    a user's text."""
    last = record["request"]["messages"][-1]
    assert last["role"] == "user" or last["tool_call_id"] == call["id"]
    content = last["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
