"""A forest of checkpoints: every request that is not a plain extension grows a branch, and nothing is ever lost.

Source of the rules: the HTTP contract (docs/wire.md), "tree mode".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from trio_sessions.core import json
from trio_sessions.core.history.base import NO_PREFERENCE, Attachment, Checkpoint, Message, Preference
from trio_sessions.core.history.flat import FlatPaths
from trio_sessions.core.matchers import Matcher
from trio_sessions.core.tokens import TokenPath
from trio_sessions.errors import NodeCapReached

__all__ = ["MAX_NODES", "TreeHistory"]

MAX_NODES: Final = 1024


class TreeHistory:
    """The history of a tree session. A checkpoint is a node; its number is its place in the order of commits.

    Nodes hold deltas, and what siblings have in common is held once: the ids by the parent they share, the messages of
    requests that are repeated (several samples of one prompt, a retry) by the first of them.

    Args:
        max_nodes: most nodes it may have.
    """

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._stored_tokens = 0
        self._nodes: list[Checkpoint] = []
        self._children: dict[Checkpoint | None, list[Checkpoint]] = {None: []}
        self._numbers: dict[Checkpoint, int] = {}
        # What the children of a node sent and were rendered to, by digests.
        self._messages: dict[Checkpoint | None, dict[bytes, Message]] = {}
        self._prompts: dict[Checkpoint | None, dict[bytes, TokenPath]] = {}
        # Requests are numbered as they are attached: the session shows the newest of them that committed.
        self._attached = 0
        self._active: Checkpoint | None = None
        self._paths = FlatPaths()
        self._active_ticket = -1

    @property
    def active(self) -> Checkpoint | None:
        """The node of the last request that committed, in the order in which requests were attached."""
        return self._active

    @property
    def nodes(self) -> Sequence[Checkpoint]:
        """All nodes in the order of their commits."""
        return self._nodes

    def number_of(self, node: Checkpoint) -> int:
        """The place of ``node`` in the order of commits, from 0."""
        return self._numbers[node]

    def leaves(self) -> list[Checkpoint]:
        """Nodes without children, in the order of their commits."""
        return [node for node in self._nodes if node not in self._children]

    def attach(
        self,
        messages: Sequence[Message],
        matches: Matcher,
        preference: Preference = NO_PREFERENCE,
    ) -> Attachment:
        """At the deepest node whose whole path the request repeats; see ``History.attach``.

        Of several the one it names is taken, or one behind that, else the caller's own, else the latest: two agents
        whose prompts are the same, and whose answers happen to be, stay apart.

        Raises:
            NodeCapReached: the session has as many nodes as it may have.
            MatcherFailed: the matcher is broken.
        """
        self.require_room()
        base = self._deepest(messages, matches, preference)
        ticket = self._attached
        self._attached += 1
        path = self._paths.to(base)
        return Attachment.at(base, path.stored, path.spelled, messages, ticket=ticket, discards=0)

    def stored_tokens(self, attachment: Attachment) -> int:
        """Those of all nodes; a prompt that siblings share counts once for each."""
        return self._stored_tokens

    def settle_refused_role(self, attachment: Attachment) -> None:
        """Nothing: no request takes anything away."""

    def require_room(self) -> None:
        """See ``History.require_room``.

        Raises:
            NodeCapReached: the session has as many nodes as it may have.
        """
        if len(self._nodes) >= self._max_nodes:
            raise NodeCapReached(
                f"node cap reached ({self._max_nodes}): the session takes no more turns. Most often the agent does not "
                "send its history back as it was, so that every turn starts a branch of its own; otherwise start "
                "another session"
            )

    def is_stale(self, attachment: Attachment) -> bool:
        """Never: turns from the same place become siblings."""
        return False

    def commit(self, attachment: Attachment, checkpoint: Checkpoint) -> Checkpoint:
        """Add ``checkpoint`` below its parent, holding what its siblings hold already.

        Whether there is room is asked before: what was committed once is committed again, whatever the launch allows.
        """
        # Requests that come behind one that was made again are later than it.
        self._attached = max(self._attached, attachment.ticket + 1)
        checkpoint = self._sharing(checkpoint)
        self._children.setdefault(checkpoint.parent, []).append(checkpoint)
        self._numbers[checkpoint] = len(self._nodes)
        self._nodes.append(checkpoint)
        self._stored_tokens += checkpoint.added
        if attachment.ticket > self._active_ticket:
            self._active, self._active_ticket = checkpoint, attachment.ticket
        return checkpoint

    def _sharing(self, checkpoint: Checkpoint) -> Checkpoint:
        """The same with what a sibling already holds: several samples of one prompt hold the prompt once."""
        sent = self._messages.setdefault(checkpoint.parent, {})
        prompts = self._prompts.setdefault(checkpoint.parent, {})
        *appended, said = checkpoint.messages
        messages = [
            sent.setdefault(_digest(json.encode(message), index), message) for index, message in enumerate(appended)
        ]
        prompt = prompts.setdefault(_digest(checkpoint.prompt.tail.tobytes(), checkpoint.kept), checkpoint.prompt)
        if prompt is checkpoint.prompt:
            return replace(checkpoint, messages=(*messages, said))
        return replace(checkpoint, messages=(*messages, said), tokens=prompt.extend(checkpoint.tokens.tail))

    def _deepest(self, messages: Sequence[Message], matches: Matcher, preference: Preference) -> Checkpoint | None:
        best: Checkpoint | None = None
        highest = (0, False, False, 0)
        # The turn that is named, and those behind it, which a client that keeps few ids does not name.
        named = {preference.extends} - {None}
        # Siblings repeat the same messages, as the same objects: each is compared once with one place of the request.
        known: dict[tuple[int, int], bool] = {}
        pending: list[Checkpoint | None] = [None]
        while pending:
            parent = pending.pop()
            start = 0 if parent is None else parent.message_count
            for node in self._children.get(parent, ()):
                if node.message_count <= len(messages) and self._repeats(node, messages, start, matches, known):
                    pending.append(node)
                    if parent in named:
                        named.add(node)
                    rank = (
                        node.message_count,
                        node in named,
                        node.caller.is_same_as(preference.caller),
                        self._numbers[node],
                    )
                    if best is None or rank > highest:
                        best, highest = node, rank
        return best

    @staticmethod
    def _repeats(
        node: Checkpoint,
        messages: Sequence[Message],
        start: int,
        matches: Matcher,
        known: dict[tuple[int, int], bool],
    ) -> bool:
        for index, stored in enumerate(node.messages, start):
            key = (id(stored), index)
            if key not in known:
                known[key] = matches(stored, messages[index])
            if not known[key]:
                return False
        return True


def _digest(content: bytes, place: int) -> bytes:
    return blake2b(content, digest_size=16, salt=place.to_bytes(8, "little")).digest()
