"""Checkpoints, and the strategy that decides which one a request extends.

A checkpoint is immutable and holds deltas: the messages and ids it adds to its parent. A linear session is one line of
them, a tree session all of them; the turn pipeline is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trio_sessions.core import json
from trio_sessions.core.boundary import BoundaryEvent, Origin
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.completion import Completion
from trio_sessions.core.history.rendered import RenderedWith
from trio_sessions.core.matchers import Matcher, identical
from trio_sessions.core.tokens import EMPTY_PATH, TokenIds, TokenPath

__all__ = ["NO_PREFERENCE", "Attachment", "Checkpoint", "History", "Preference", "TurnRecord", "path_of"]

Message = Mapping[str, Any]


# What a session holds has no cycles, so the garbage collector need not go through all of it again and again.
class TurnRecord(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The facts of one committed turn that the checkpoint does not already hold.

    Attributes:
        timestamp: when the turn committed, seconds since the epoch.
        request_timestamp: when the request arrived, seconds since the epoch.
        method: HTTP method of the client's request.
        request_fields: ``fields`` of the request that went to the engine.
        routed_experts_start: likewise.
        respelled: index to message, where the client spells the reused prefix differently than in the request before.
        response: the engine's whole answer, compact JSON; the log probs of the sampled ids are nowhere else.
        status_code: the engine's status.
    """

    timestamp: float
    request_timestamp: float
    method: str
    request_fields: bytes
    routed_experts_start: int | None
    respelled: Mapping[int, Message]
    response: bytes
    status_code: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Checkpoint:
    """The session as it stands after one sampled assistant turn.

    Attributes:
        parent: the checkpoint it extends, or None.
        messages: what it adds: the appended messages, then the sampled assistant's.
        tokens: the completion behind the prompt, which is the parent's ids with what was rendered behind them.
        synthetic: how many ids directly after the parent's close a turn that was left open; never trained.
        rendered_with: the tools and kwargs of the turn; the parent's object where they are the same.
        events: what was declared at the seam between the parent and this turn.
        finish_reason: as the engine gave it, or None.
        response_id: the answer's ``id`` as the client saw it, or None.
        caller: who made the request.
        record: the turn's facts for the trainer.
        message_count: messages on the whole path.
        depth: checkpoints on the whole path, this one included.
        added_on_path: ids that the checkpoints of the whole path have added, each to its parent.
    """

    parent: Checkpoint | None
    messages: Sequence[Message]
    tokens: TokenPath
    synthetic: int
    rendered_with: RenderedWith
    events: tuple[BoundaryEvent, ...]
    finish_reason: str | None
    response_id: str | None
    caller: Caller
    record: TurnRecord
    message_count: int = field(init=False)
    depth: int = field(init=False)
    added_on_path: int = field(init=False)

    def __post_init__(self) -> None:
        parent = self.parent
        object.__setattr__(self, "message_count", (parent.message_count if parent else 0) + len(self.messages))
        object.__setattr__(self, "depth", (parent.depth if parent else 0) + 1)
        object.__setattr__(self, "added_on_path", (parent.added_on_path if parent else 0) + self.added)

    @property
    def added(self) -> int:
        """How many ids it adds to its parent: what was rendered behind them, and what was sampled."""
        return len(self.tokens) - self.kept

    @property
    def prompt(self) -> TokenPath:
        """The prompt alone; siblings may share it."""
        assert self.tokens.parent is not None
        return self.tokens.parent

    @property
    def prompt_length(self) -> int:
        """How many leading ids of ``tokens`` are the prompt; the rest was sampled."""
        return self.tokens.keep

    @property
    def sampled_ids(self) -> TokenIds:
        """The ids that the engine sampled, int32, shape (n,)."""
        return self.tokens.tail

    @property
    def kept(self) -> int:
        """How many leading ids of the parent stand; fewer than all where its stop id had to be replaced."""
        return self.prompt.keep

    def path_messages(self) -> list[Message]:
        """All messages from the root, in order; the stored spelling."""
        return [message for checkpoint in path_of(self) for message in checkpoint.messages]

    def origins(self) -> npt.NDArray[np.uint8]:
        """Shape (len(tokens),): the ``Origin`` of every id of the path."""
        origins = np.empty(len(self.tokens), dtype=np.uint8)
        for checkpoint in path_of(self):
            # A trailing id that this prompt replaced is ours, no longer the one that was sampled.
            rendered = checkpoint.kept + checkpoint.synthetic
            origins[checkpoint.kept : rendered] = Origin.SYNTHETIC
            origins[rendered : checkpoint.prompt_length] = Origin.TEMPLATE
            origins[checkpoint.prompt_length : len(checkpoint.tokens)] = Origin.SAMPLED
        return origins

    def sampled_mask(self) -> npt.NDArray[np.bool_]:
        """Shape (len(tokens),): True where the engine sampled the id."""
        mask: npt.NDArray[np.bool_] = self.origins() == Origin.SAMPLED
        return mask


def path_of(leaf: Checkpoint | None) -> list[Checkpoint]:
    """The checkpoints from the root to ``leaf``, in order; empty for None."""
    path = []
    while leaf is not None:
        path.append(leaf)
        leaf = leaf.parent
    path.reverse()
    return path


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """Where a request joins the history.

    Attributes:
        base: the checkpoint it extends, None for a fresh prompt.
        stored: the base's messages, the authoritative spelling of the reused prefix.
        request: all of the request's messages; those that are spelled as before are the very objects.
        respelled: index to message where the client spells the prefix differently than in the base's request.
        ticket: the state of the history it was decided on; a commit compares it.
        discards: how many checkpoints a commit gives up.
        divergence: where and in which fields the request leaves the stored history; empty where it extends it.
    """

    base: Checkpoint | None
    stored: Sequence[Message]
    request: Sequence[Message]
    respelled: Mapping[int, Message]
    ticket: int
    discards: int
    divergence: str = ""

    @classmethod
    def at(
        cls,
        base: Checkpoint | None,
        stored: Sequence[Message],
        spelled: Sequence[Message],
        request: Sequence[Message],
        *,
        ticket: int,
        discards: int,
        divergence: str = "",
    ) -> Attachment:
        """The attachment of ``request`` at ``base``.

        Args:
            base: as in the attributes, like what is not named here.
            stored: the base's messages.
            spelled: the same as they were spelled in the requests so far.
            request: begins with as many messages that match them.
        """
        again = list(request)
        respelled: dict[int, Message] = {}
        for index, (before, message) in enumerate(zip(spelled, request, strict=False)):
            if before is message:
                continue
            if not identical(before, message):
                respelled[index] = message
            # The order of keys is no other spelling, but a template may show it.
            elif json.encode(before) == json.encode(message):
                again[index] = before
        return cls(
            base=base,
            stored=stored,
            request=again,
            respelled=respelled,
            ticket=ticket,
            discards=discards,
            divergence=divergence,
        )

    @property
    def appended(self) -> Sequence[Message]:
        """The request's messages after the reused prefix."""
        return self.request[len(self.stored) :]

    def at_new_root(self, request: Sequence[Message]) -> Attachment:
        """The attachment of the same request to nothing: a fresh prompt beside what is stored."""
        return Attachment.at(None, (), (), request, ticket=self.ticket, discards=0)

    @property
    def tokens(self) -> TokenPath:
        """The ids that stand; empty for a fresh prompt."""
        return EMPTY_PATH if self.base is None else self.base.tokens

    def checkpoint(
        self,
        *,
        keep: int,
        suffix: TokenIds,
        synthetic: int,
        rendered_with: RenderedWith,
        events: tuple[BoundaryEvent, ...],
        completion: Completion,
        record: TurnRecord,
        caller: Caller = NOBODY,
    ) -> Checkpoint:
        """The checkpoint that this turn commits.

        Args:
            keep: how many of the standing ids the prompt kept.
            suffix: the rest of the prompt, int32, shape (n,).
            synthetic: how many leading ids of ``suffix`` close a turn that was left open.
            rendered_with: the tools and kwargs of the turn.
            events: what is declared at the seam before the turn.
            completion: what was sampled.
            record: the turn's facts.
            caller: who made the request.
        """
        return Checkpoint(
            parent=self.base,
            messages=(*self.appended, completion.message),
            tokens=self.tokens.extend(suffix, keep=keep).extend(completion.token_ids),
            synthetic=synthetic,
            rendered_with=rendered_with,
            events=events,
            finish_reason=completion.finish_reason,
            response_id=completion.response_id,
            # A line of turns keeps it once.
            caller=self.base.caller if self.base is not None and self.base.caller == caller else caller,
            record=record,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Preference:
    """What decides between places in a history that are as good.

    Attributes:
        caller: who made the request; its own turns go before those of others.
        extends: the turn that the request names as the one it extends; it and those behind it go before all others.
    """

    caller: Caller = NOBODY
    extends: Checkpoint | None = None


NO_PREFERENCE = Preference()


class History(Protocol):
    """How a mode attaches requests and commits turns. All methods are synchronous; the session's lock is held."""

    @property
    def active(self) -> Checkpoint | None:
        """The leaf that the session's records and metadata show."""

    @property
    def nodes(self) -> Sequence[Checkpoint]:
        """Every checkpoint that stands, in the order of their commits."""

    def attach(
        self,
        messages: Sequence[Message],
        matches: Matcher,
        preference: Preference = NO_PREFERENCE,
    ) -> Attachment:
        """Where ``messages`` join; what is stored is not changed.

        Args:
            messages: the request's.
            matches: decides whether one of them says what a stored one says.
            preference: decides where several places are as good.

        Raises:
            RollbackRefused: they diverge further back than the mode allows.
            NodeCapReached: the history takes no more turns.
            MatcherFailed: the matcher is broken.
        """

    def stored_tokens(self, attachment: Attachment) -> int:
        """How many ids are stored that a turn attached there leaves in place; each counts where it was added."""

    def settle_refused_role(self, attachment: Attachment) -> None:
        """Do what the contract pins when the appended role is refused after the request was attached."""

    def require_room(self) -> None:
        """Refuse a turn that may not be committed; ask directly before ``commit``.

        Raises:
            NodeCapReached: the history takes no more turns.
        """

    def is_stale(self, attachment: Attachment) -> bool:
        """Whether a turn attached there may no longer be committed."""

    def commit(self, attachment: Attachment, checkpoint: Checkpoint) -> Checkpoint:
        """Make ``checkpoint`` part of the history, as it is returned; ``attachment`` is not stale."""
