"""Post-processors finish the samples that a picker chose.

A post-processor takes them and the session's metadata, and returns the samples that are sent. Samples are frozen: one
that is to be different is a ``dataclasses.replace`` of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from trio_sessions.core.samples.leaves import SERVER_KEYS, leaf_id, path_ids
from trio_sessions.core.samples.provenance import PROVENANCE, sampled_spans, with_shared
from trio_sessions.core.samples.sample import Sample
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["POSTPROCESSORS", "Postprocessor", "is_reward", "train_once"]

Postprocessor: TypeAlias = Callable[[list[Sample], Mapping[str, Any]], Sequence[Sample]]

_REWARD: Final = "reward"
_REWARDS: Final = "rewards"


def train_once(samples: list[Sample], session_metadata: Mapping[str, Any]) -> list[Sample]:
    """Train every sampled id in one sample only, and put in what the agent said.

    An id that several samples share is trained in the one whose leaf was committed first. Ids count, not completions:
    where one leaf's next prompt replaced the stop id and another's kept it, the stop id is trained in the other.

    The agent's metadata goes into every sample's, never over what the server knows. Its ``reward`` is every sample's;
    its ``rewards`` name a response id and a number each, and win: a sample takes the reward of the last turn on its
    path that has one.

    Raises:
        SampleAssemblyFailed: ``rewards`` is no object of finite numbers, or names a response that is not in the
            session, or is there more than once.
    """
    agent = session_metadata.get("agent") or {}
    rewards = _rewards(agent, session_metadata["tree"]["nodes"])
    said = {key: value for key, value in agent.items() if key not in (*SERVER_KEYS, PROVENANCE, _REWARDS)}
    return [
        replace(
            sample,
            metadata={**sample.metadata, **said},
            reward=next((rewards[node] for node in reversed(path_ids(sample)) if node in rewards), agent.get(_REWARD)),
        )
        for sample in _owned(samples)
    ]


POSTPROCESSORS: Final[Mapping[str, Postprocessor]] = MappingProxyType({"train_once": train_once})


def is_reward(value: Any) -> bool:
    """Whether ``value`` is a finite number that a float can hold, and no boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _owned(samples: list[Sample]) -> list[Sample]:
    """The samples in their order, each with loss only on what no earlier committed leaf trains."""
    # A node's ids start at the same place in every sample, so that where its trained ids end says which they are.
    trained: dict[int, int] = {}
    owned: dict[int, Sample] = {}
    for sample in sorted(samples, key=leaf_id):
        nodes = path_ids(sample)
        loss_mask = sample.loss_mask.copy()
        shared = 0
        ends: dict[int, int] = {}
        for turn, start, end in sampled_spans(sample.metadata):
            node = nodes[turn]
            known = min(max(trained.get(node, 0), start), end)
            loss_mask[start - sample.response_start : known - sample.response_start] = 0
            shared += known - start
            ends[node] = max(ends.get(node, 0), end)
        for node, end in ends.items():
            trained[node] = max(trained.get(node, 0), end)
        loss_mask.flags.writeable = False
        provenance = with_shared(sample.metadata[PROVENANCE], shared)
        owned[id(sample)] = replace(sample, loss_mask=loss_mask, metadata={**sample.metadata, PROVENANCE: provenance})
    return [owned[id(sample)] for sample in samples]


def _rewards(agent: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The agent's rewards by node."""
    named = agent.get(_REWARDS)
    if named is None:
        return {}
    if not isinstance(named, Mapping):
        raise SampleAssemblyFailed("metadata.rewards must be an object of response ids and numbers")
    of_response: dict[str, list[int]] = {}
    for node in nodes:
        # Nothing names an answer without an id.
        if node["response_id"]:
            of_response.setdefault(node["response_id"], []).append(node["id"])
    rewards: dict[int, float] = {}
    for response_id, reward in named.items():
        found = of_response.get(response_id, [])
        if not found:
            raise SampleAssemblyFailed(f"metadata.rewards names {response_id!r}, which is no response of this session")
        if len(found) > 1:
            raise SampleAssemblyFailed(f"metadata.rewards names {response_id!r}, which is the id of turns {found}")
        if not is_reward(reward):
            raise SampleAssemblyFailed(f"metadata.rewards[{response_id!r}] must be a number, got {repr(reward)[:60]}")
        rewards[found[0]] = reward
    return rewards
