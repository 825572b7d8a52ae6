"""One line of checkpoints, the last of which may be retried.

Source of the rules: the HTTP contract (docs/wire.md), "linear mode: rollback".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trio_sessions.core.history.base import NO_PREFERENCE, Attachment, Checkpoint, Message, Preference, path_of
from trio_sessions.core.history.flat import FlatPaths, flat_path
from trio_sessions.core.matchers import Matcher, differing_fields, matching_prefix_length
from trio_sessions.errors import RollbackRefused

__all__ = ["MAX_ASSISTANT_ROLLBACK_STEPS", "LinearHistory"]

MAX_ASSISTANT_ROLLBACK_STEPS: Final = 1


class LinearHistory:
    """The history of a linear session."""

    def __init__(self) -> None:
        self._active: Checkpoint | None = None
        self._paths = FlatPaths()
        # Counts every change of the line. Comparing it, not the number of checkpoints, also catches a line that was
        # retried and is as long as before.
        self._version = 0

    @property
    def active(self) -> Checkpoint | None:
        """The newest checkpoint, or None."""
        return self._active

    @property
    def nodes(self) -> Sequence[Checkpoint]:
        """The line, from its first turn on."""
        return path_of(self._active)

    def attach(
        self,
        messages: Sequence[Message],
        matches: Matcher,
        preference: Preference = NO_PREFERENCE,
    ) -> Attachment:
        """Extend the newest checkpoint whose messages the request repeats; see ``History.attach``."""
        active = self._paths.to(self._active)
        stored = active.stored
        matched = matching_prefix_length(stored, messages, matches)
        base = self._active
        while base is not None and base.message_count > matched:
            base = base.parent
        discards = _depth(self._active) - _depth(base)
        if discards > MAX_ASSISTANT_ROLLBACK_STEPS:
            raise RollbackRefused(
                f"rollback failed: discard_count={discards} exceeds "
                f"max_assistant_rollback_steps={MAX_ASSISTANT_ROLLBACK_STEPS} "
                f"(stored has {len(stored)} messages, request has {len(messages)} messages)"
            )
        kept = 0 if base is None else base.message_count
        return Attachment.at(
            base,
            stored[:kept],
            (active if base is active.leaf else flat_path(base)).spelled,
            messages,
            ticket=self._version,
            discards=discards,
            divergence=_divergence(stored, messages, matched) if discards else "",
        )

    def stored_tokens(self, attachment: Attachment) -> int:
        """Those of the line up to the turn that is extended."""
        return 0 if attachment.base is None else attachment.base.added_on_path

    def settle_refused_role(self, attachment: Attachment) -> None:
        """Roll back all the same: the reference does, and clients rely on it."""
        if attachment.discards:
            self._set_active(attachment.base)

    def require_room(self) -> None:
        """Nothing: a line may be of any length."""

    def is_stale(self, attachment: Attachment) -> bool:
        """Whether the line gained or lost a checkpoint since the request was attached."""
        return attachment.ticket != self._version

    def commit(self, attachment: Attachment, checkpoint: Checkpoint) -> Checkpoint:
        """Put ``checkpoint`` on top of its base; what the request rolled back is given up now, not before."""
        if self.is_stale(attachment):
            raise ValueError("the attachment is stale")
        self._set_active(checkpoint)
        return checkpoint

    def _set_active(self, checkpoint: Checkpoint | None) -> None:
        self._active = checkpoint
        self._version += 1


def _depth(checkpoint: Checkpoint | None) -> int:
    return 0 if checkpoint is None else checkpoint.depth


def _divergence(stored: Sequence[Message], messages: Sequence[Message], index: int) -> str:
    if index >= len(messages):
        return f"the request ends before stored message {index}"
    fields = differing_fields(stored[index], messages[index])
    return f"message {index} differs from the stored one in {', '.join(fields) or 'what the matcher looks at'}"
