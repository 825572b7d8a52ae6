"""What an answer is made of: a plan of fixed and free parts, and the walk through it token by token.

A plan is a generator that yields parts and is sent the option that was drawn, so that what follows may depend on it
(the arguments on the tool, say). It fixes *text*; which ids spell the text is left to the sampler, at every step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from trio_sessions.engine.embedded.vocabulary import Alphabet, Vocabulary

__all__ = ["Allowed", "Choice", "Free", "Part", "Plan", "Walk"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few fixed spellings.

    Attributes:
        options: spellings, none a prefix of another.
    """

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Free text that ends by itself.

    Attributes:
        alphabet: which pieces it is made of; no piece of it may begin an option.
        minimum: fewest pieces, at least 1.
        maximum: most pieces, at least ``minimum``.
        then: spellings that end it, none a prefix of another; the part ends with one of them.
        instead: spellings that may stand in place of the whole part.
        enough: from this many pieces on, the end of a sentence ends it.
    """

    alphabet: Alphabet
    minimum: int
    maximum: int
    then: tuple[str, ...]
    instead: tuple[str, ...] = ()
    enough: int | None = None


Part: TypeAlias = Choice | Free
Plan: TypeAlias = Generator[Part, str, None]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be drawn next: the pieces of one mask, and some ids that are not among them.

    Attributes:
        mask: an alphabet and which of its masks (see ``Vocabulary.masks``), None for none.
        ids: ascending; never empty without a mask.
        options: where two or more options are open, for each the ids that begin it. Options are equally probable,
            whatever the model thinks of their words; it decides how one is spelled.
    """

    mask: tuple[Alphabet, int] | None
    ids: list[int]
    options: tuple[tuple[int, ...], ...] = ()


class Walk:
    """The state of one answer: what may come next, given what was drawn.

    Attributes:
        done: the plan is at its end; nothing may be drawn any more.
    """

    def __init__(self, plan: Plan, vocabulary: Vocabulary) -> None:
        self.done = False
        self._plan = plan
        self._vocabulary = vocabulary
        # The options still open, each with what is left to spell of it; empty while free text goes on.
        self._open: list[tuple[str, str]] = []
        self._free: Free | None = None
        self._pieces = 0
        self._blank = False
        self._sentence = False
        self._begin(next(plan))

    def allowed(self) -> Allowed:
        """What may be drawn next."""
        free = self._free
        if free is None:
            if len(self._open) == 1:
                return Allowed(None, self._vocabulary.candidates([self._open[0][1]]))
            options = tuple(tuple(self._vocabulary.candidates([rest])) for _, rest in self._open)
            return Allowed(None, sorted(set().union(*options)), options)
        sated = self._sentence and free.enough is not None and self._pieces >= free.enough
        if sated or self._pieces >= free.maximum:
            return Allowed(None, self._vocabulary.candidates(free.then))
        if self._pieces == 0:
            return Allowed((free.alphabet, 0), self._vocabulary.candidates(free.instead))
        if self._pieces < free.minimum or self._blank:
            ends: tuple[str, ...] = ()
        else:
            ends = free.then
        position = 2 if self._pieces >= free.maximum - 1 else 1
        return Allowed((free.alphabet, position), self._vocabulary.candidates(ends))

    def advance(self, token_id: int) -> None:
        """Takes one of the ids that ``allowed`` named.

        Raises:
            ValueError: it was not allowed.
        """
        spelling = self._vocabulary.spellings[token_id]
        free = self._free
        if free is not None:
            if self._vocabulary.masks[free.alphabet][1][token_id]:
                self._pieces += 1
                self._blank = spelling[-1].isspace()
                self._sentence = spelling[-1] in ".!?"
                return
            self._free = None
            self._open = [(option, option) for option in (free.then if self._pieces else free.instead)]
        self._open = [
            (option, rest[len(spelling) :]) for option, rest in self._open if spelling and rest.startswith(spelling)
        ]
        if not self._open:
            raise ValueError(f"token {token_id} was not allowed here")
        if not self._open[0][1]:
            try:
                self._begin(self._plan.send(self._open[0][0]))
            except StopIteration:
                self.done = True

    def _begin(self, part: Part) -> None:
        self._pieces = 0
        self._blank = self._sentence = False
        if isinstance(part, Free):
            self._free, self._open = part, []
        else:
            self._free, self._open = None, [(option, option) for option in part.options]
