"""What a probe found out about a chat template. Nothing in here is keyed to a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trio_sessions.core.compare import Header
from trio_sessions.render.messages import MessageForm
from trio_sessions.render.tools import ToolForm

__all__ = ["BaseKind", "HistoryKind", "Junction", "PastThinking", "Reach", "RoleProfile", "TemplateProfile", "Thinking"]

BaseKind: TypeAlias = Literal["text", "call"]
"""How the assistant turn before a suffix ends: with its text, or with a tool call."""

PastThinking: TypeAlias = Literal["kept", "dropped", "never written"]
"""What becomes of an earlier turn's ``reasoning_content`` when a user's message follows."""

HistoryKind: TypeAlias = Literal["text", "thinking", "calls"]
"""What earlier turns consist of."""

Reach: TypeAlias = Literal["last turn", "history"]
"""How far back a template looks when it renders a message: at the turn before it, or at everything."""


@dataclass(frozen=True, slots=True)
class Junction:
    """How what follows is joined to an assistant turn.

    Behind the turn's payload the template writes ``lead``, ``terminator`` and then the rest. ``lead`` belongs to the
    payload (it closes a call or a section, or is white space): the sampler has written it or left it out, and it is
    never added.

    Attributes:
        base: how the turn ends.
        lead: text between the payload and the terminator.
        terminator: text of the control token that ends the turn.
        terminator_id: its id; it always encodes to this one id.
        opens_next: whether the terminator is at the same time the opener of what follows, so that it is still due
            behind a turn that ended with another stop id.
        closers: further stop ids that the template writes behind the terminator before the message; a turn that was
            sampled through one of them needs only what comes after it.
    """

    base: BaseKind
    lead: str
    terminator: str
    terminator_id: int
    opens_next: bool
    closers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleProfile:
    """How messages of one role are put behind an assistant turn.

    Attributes:
        junctions: by how the turn ends; a kind behind which the template refuses the role, or that it does not write,
            is missing.
        unjoined: for a kind behind which the role is rendered, but cannot be joined: the reason.
        reach: by how the turn ends, how much of the session has to be rendered with the message; a kind behind which
            a stand-in does is missing.
    """

    junctions: Mapping[BaseKind, Junction]
    unjoined: Mapping[BaseKind, str]
    reach: Mapping[BaseKind, Reach]

    @property
    def usual(self) -> Junction:
        """The junction behind a text, or behind a call where there is no other."""
        return next(iter(self.junctions.values()))

    def behind(self, kind: BaseKind) -> Junction | str:
        """The junction behind a turn of a kind, or the reason why there is none.

        Behind a turn that the template itself would not write nothing is known to be different from other turns.
        """
        if kind in self.unjoined:
            return self.unjoined[kind]
        return self.junctions.get(kind, self.usual)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a turn marks its thinking.

    Attributes:
        turn_id: the control token that opens a turn to generate.
        open_id: the token before a thought; the template or the sampler writes it.
        close_id: the token behind it.
        close: text from the end of a thought to the start of the answer.
    """

    turn_id: int
    open_id: int
    close_id: int
    close: str


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """Facts about a template under given kwargs.

    Attributes:
        form: shapes of content and arguments that the template wants.
        tools: form of tool definitions that the template can render.
        suffix_reads_tools: whether tool definitions occur in, or change, what follows an assistant turn.
        roles: for every appendable role, how it is put behind a sampled assistant turn.
        refused: for every other probed role, the reason.
        again: how a generation opener alone is put there (nothing appended), or the reason why it cannot be.
        generation_opener: text that opens a generated turn after a user's; empty where the template has none.
        separator: text that the template writes after a terminator at the end of the conversation.
        stop_ids: ids that end a sampled turn.
        alternate_ids: those of them that the template writes at the end of a conversation and nowhere else.
        replaceable_ids: stop ids that are openers of other turns; one at the end of the stored ids is replaced when
            another opener is due.
        assistant_header: what opens an assistant turn, for the comparison of sequences.
        thinking: how a thought is opened and closed; None where the template shows no marks for it.
        past_thinking: what becomes of the thinking of earlier turns.
        keeps_thinking: kwargs, each of which would make the template keep it.
        rewritten: histories that the template renders in another way once the conversation goes on; where it is
            empty the canonical rendering is append-only.
        reads_clock: whether the template asks for the date.
        injection: texts in a message that the tokenizer would turn into control ids, were they not escaped.
    """

    form: MessageForm
    tools: ToolForm
    suffix_reads_tools: bool
    roles: Mapping[str, RoleProfile]
    refused: Mapping[str, str]
    again: RoleProfile | str
    generation_opener: str
    separator: str
    stop_ids: frozenset[int]
    alternate_ids: frozenset[int]
    replaceable_ids: frozenset[int]
    assistant_header: Header
    thinking: Thinking | None
    past_thinking: PastThinking
    keeps_thinking: Mapping[str, Any]
    rewritten: frozenset[HistoryKind]
    reads_clock: bool
    injection: tuple[str, ...]

    @property
    def appendable_roles(self) -> frozenset[str]:
        """Roles that may follow a sampled assistant turn."""
        return frozenset(self.roles)

    def reach_of(self, roles: Iterable[str], kind: BaseKind) -> Reach | None:
        """How much of the session has to be rendered with messages of these roles behind a turn of a kind."""
        reaches = {self.roles[role].reach.get(kind) for role in roles}
        return "history" if "history" in reaches else "last turn" if "last turn" in reaches else None

    @property
    def looks_back(self) -> bool:
        """Whether there is a role that cannot be rendered behind a stand-in."""
        again = () if isinstance(self.again, str) else (self.again,)
        return any(role.reach for role in (*self.roles.values(), *again))

    @property
    def max_trim_tokens(self) -> int:
        """1 where a sampled stop may have to become another opener, else 0."""
        return 1 if self.replaceable_ids else 0
