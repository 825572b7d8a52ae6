"""Training samples of a session, for the route that hands them to a trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint, path_of
from trio_sessions.core.samples import (
    AssemblyRules,
    Forest,
    Piece,
    SampleHooks,
    collect_forest,
    collect_line,
    encode_samples_in_pieces,
    is_reward,
)
from trio_sessions.errors import InvalidRequest, NestedTooDeeply
from trio_sessions.service.inspect import SessionInspector
from trio_sessions.service.limits import RequestLimits
from trio_sessions.service.offload import LONG_BYTES, Offloader
from trio_sessions.service.session import Session

__all__ = ["SampleCollector", "SamplesRequest"]

_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class SamplesRequest:
    """What a trainer asks for.

    Attributes:
        max_seq_len: longest sample in ids, or None.
        metadata: what the agent says of the rollout, or None.
        rewards: rewards of branches by the response id of a turn.
    """

    max_seq_len: int | None = None
    metadata: Mapping[str, Any] | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_body(cls, body: bytes) -> SamplesRequest:
        """The request in a body; an empty body asks for everything as it is.

        Raises:
            InvalidRequest: it is not what the contract says; the text names the field.
        """
        try:
            fields = json.decode(body) if body.strip() else {}
        except json.TooDeep as error:
            raise NestedTooDeeply(f"invalid JSON body: {error}") from error
        except json.InvalidJSON as error:
            raise InvalidRequest(f"invalid JSON body: {error}") from error
        if not isinstance(fields, dict):
            raise InvalidRequest("the body must be an object")
        return cls(
            max_seq_len=_max_seq_len(fields.get("max_seq_len")),
            metadata=_metadata(fields.get("metadata")),
            rewards=_rewards(fields.get("rewards")),
        )

    @property
    def agent(self) -> Mapping[str, Any] | None:
        """The metadata with the rewards of branches in it."""
        if not self.rewards:
            return self.metadata
        named = (self.metadata or {}).get("rewards")
        return {**(self.metadata or {}), "rewards": {**(named if isinstance(named, dict) else {}), **self.rewards}}


class SampleCollector:
    """Assembles samples in worker threads: checkpoints are immutable, and a snapshot of them is taken first.

    Args:
        tree: whether sessions branch.
        rules: what assembly knows of the launch.
        hooks: who picks and finishes the samples of a session that branches.
        inspector: compares with the template's rendering and describes the session.
        limits: what a request may come to.
        offloader: threads.
    """

    def __init__(
        self,
        *,
        tree: bool,
        rules: AssemblyRules,
        hooks: SampleHooks,
        inspector: SessionInspector,
        limits: RequestLimits,
        offloader: Offloader,
    ) -> None:
        self._tree = tree
        self._rules = rules
        self._hooks = hooks
        self._inspector = inspector
        self._limits = limits
        self._offload = offloader.run
        self._offload_json = offloader.run_json

    async def collect(self, session: Session, body: bytes) -> Sequence[Piece]:
        """The payload for ``body``, a trainer's request, in pieces.

        Raises:
            InvalidRequest: the body is not what the contract says, or names a response that is not in the session.
            SampleAssemblyFailed: the session's turns do not make samples; nothing is changed.
        """
        request = await self._offload_json(partial(self._read, body), size=json.weight(body))
        nodes = tuple(session.history.nodes)
        forest = Forest.of(nodes, session.history.active, undelivered=session.delivery.undelivered())
        # Nothing names an answer without an id.
        known = Counter(node.response_id for node in forest.nodes if node.response_id)
        for response_id in request.rewards:
            if not known[response_id]:
                raise InvalidRequest(f"rewards names {response_id!r}, which is the id of no response of this session")
            if known[response_id] > 1:
                raise InvalidRequest(
                    f"rewards names {response_id!r}, which is the id of {known[response_id]} responses"
                )
        return await self._offload(
            partial(self._payload, session, forest, request), size=LONG_BYTES if forest.nodes else 0
        )

    def _read(self, body: bytes) -> SamplesRequest:
        self._limits.check_body(body)
        return SamplesRequest.from_body(body)

    def _payload(self, session: Session, forest: Forest, request: SamplesRequest) -> Sequence[Piece]:
        active = None if forest.active is None else forest.nodes[forest.active].checkpoint
        metadata = self._inspector.metadata(session, active, forest, forest.undelivered)
        if not self._tree:
            line = collect_line(
                path_of(active), self._rules, max_seq_len=request.max_seq_len, undelivered=forest.undelivered
            )
            return encode_samples_in_pieces(line.samples, metadata, line.empty_reason)
        if request.agent is not None:
            metadata["agent"] = dict(request.agent)
        collected = collect_forest(
            forest,
            self._rules,
            session_metadata=metadata,
            mismatches=partial(self._mismatches, session),
            hooks=self._hooks,
            max_seq_len=request.max_seq_len,
        )
        return encode_samples_in_pieces(collected.samples, metadata, collected.empty_reason, with_reward=True)

    def _mismatches(self, session: Session, leaf: Checkpoint) -> list[dict[str, Any]] | None:
        found = self._inspector.mismatches(session, leaf)
        return None if found is None else [mismatch.to_json() for mismatch in found]


def _max_seq_len(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"max_seq_len must be a positive number of ids or null, got {value!r}")
    return value


def _metadata(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest("metadata must be an object or null")
    return value


def _rewards(value: Any) -> Mapping[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("rewards must be an object of response ids and numbers")
    for response_id, reward in value.items():
        if not is_reward(reward):
            raise InvalidRequest(f"rewards[{response_id!r}] must be a number, got {repr(reward)[:_LONGEST_SHOWN]}")
    return value
