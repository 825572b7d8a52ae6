"""What is written down of one session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from trio_sessions.core.history import Attachment, Checkpoint
from trio_sessions.store import AnswerNoted, SessionCreated, Store, TurnsDiscarded, turn_event

__all__ = ["SessionJournal"]


class SessionJournal:
    """Writes the events of one session down. The session's lock is held but for answers.

    Args:
        store: where to.
        session_id: whose they are.
    """

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        # Turns that were given up are forgotten with their checkpoints, and their numbers are not used again.
        self._numbers: WeakKeyDictionary[Checkpoint, int] = WeakKeyDictionary()
        self._turns = 0

    def continue_behind(self, turns: Sequence[Checkpoint]) -> None:
        """The session was made of its events: ``turns`` are all that were committed, by number."""
        self._numbers.update((turn, number) for number, turn in enumerate(turns))
        self._turns = len(turns)

    async def create(self, created: SessionCreated) -> None:
        """Write down that the session begins.

        Raises:
            StoreUnavailable: that cannot be written.
        """
        await self._store.append(self._session_id, lambda: created)

    async def write_turn(self, attachment: Attachment, checkpoint: Checkpoint) -> None:
        """Write down a turn that is about to be committed; ``committed`` has to follow.

        Raises:
            StoreUnavailable: it cannot be written; it is not to be committed.
        """
        await self._store.append(
            self._session_id,
            partial(
                turn_event,
                checkpoint,
                parent=self._number(attachment.base),
                ticket=attachment.ticket,
                discards=attachment.discards,
            ),
        )

    def committed(self, checkpoint: Checkpoint) -> None:
        """The turn that was written down last was committed, as ``checkpoint``."""
        self._numbers[checkpoint] = self._turns
        self._turns += 1

    async def write_rollback(self, attachment: Attachment) -> None:
        """Write down that the session goes back to the base of an attachment.

        Raises:
            StoreUnavailable: it cannot be written; nothing is to be discarded.
        """
        event = TurnsDiscarded(
            base=self._number(attachment.base), ticket=attachment.ticket, discards=attachment.discards
        )
        await self._store.append(self._session_id, lambda: event)

    def note_answer(self, turn: Checkpoint, *, received: bool) -> None:
        """Write down before long what became of an answer."""
        number = self._numbers.get(turn)
        if number is not None:
            event = AnswerNoted(turn=number, received=received)
            self._store.note(self._session_id, lambda: event)

    def _number(self, base: Checkpoint | None) -> int | None:
        return None if base is None else self._numbers[base]
