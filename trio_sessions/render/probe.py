"""Find out what a chat template does with what is appended to an assistant turn.

Nothing is known beforehand: the template is rendered with a handful of short conversations, and what it writes behind
a sentinel is compared. A role that is not rendered alike behind every history is rendered behind the session's own; a
role that cannot be joined cleanly is refused with the reason; a template for which no role is left is refused as a
whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeGuard, get_args

from trio_sessions.core.compare import Header
from trio_sessions.errors import ConfigurationError, InvalidRequest, TokenizationFailed
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.conversation import ConversationTemplate
from trio_sessions.render.messages import ContentForm, MessageForm
from trio_sessions.render.profile import BaseKind, HistoryKind, Junction, Reach, RoleProfile, TemplateProfile
from trio_sessions.render.stage import ANY_DAY, NotWritten, Refused, Stage, ToolSet
from trio_sessions.render.standin import (
    HISTORIES,
    SENTINEL,
    THOUGHT,
    TOOLS,
    USER_TEXT,
    Conversation,
    appended_messages,
    assistant_message,
    base_conversation,
    one_text_turn,
    tool_call,
    user_message,
)
from trio_sessions.render.thinking import find_keeps_thinking, find_past_thinking, find_thinking
from trio_sessions.render.tools import ToolForm, engine_tools

__all__ = ["PROBED_ROLES", "probe_template"]

PROBED_ROLES: Final = ("user", "tool", "system", "developer")
_KINDS: Final[tuple[BaseKind, ...]] = ("text", "call")


def probe_template(
    template: ConversationTemplate,
    codec: TextCodec,
    kwargs: Mapping[str, Any],
    *,
    tool_forms: Sequence[ToolForm] = ("wrapper", "function"),
) -> TemplateProfile:
    """The facts about ``template`` under ``kwargs``.

    Args:
        template: renders.
        codec: its tokenizer.
        kwargs: effective template kwargs.
        tool_forms: forms of tool definitions to try, in this order.

    Raises:
        ConfigurationError: no conversation can be rendered, or nothing can be appended to an assistant turn; the text
            names the fact.
    """
    try:
        return _Probe(Stage(template, codec, kwargs), tool_forms).run()
    except TokenizationFailed as error:
        raise ConfigurationError(f"the chat template cannot be used: {error}") from error


@dataclass(frozen=True, slots=True)
class _Tail:
    """What one history shows of a role.

    Attributes:
        history: rendered before it.
        tools: tool definitions rendered with it.
        text: what stands behind the payload of the last turn.
    """

    history: Conversation
    tools: ToolSet
    text: str


@dataclass(frozen=True, slots=True)
class _Behind:
    """What the histories of a kind show of messages that follow.

    Attributes:
        tails: those that render.
        misplaced: why a message is not where it belongs in one that renders; None where it always is.
        raised: why the others do not render; None where all do.
    """

    tails: Sequence[_Tail]
    misplaced: Refused | None
    raised: NotWritten | None

    def differ(self, one_set_of_tools: bool) -> bool:
        """Whether there is more than one tail, all in all or with the same tools."""
        seen = {(id(tail.tools) if one_set_of_tools else 0, tail.text) for tail in self.tails}
        return len(seen) > (len({id(tail.tools) for tail in self.tails}) if one_set_of_tools else 1)


class _Probe:
    """One run over one template; holds what was found so far."""

    def __init__(self, stage: Stage, tool_forms: Sequence[ToolForm]) -> None:
        self._stage = stage
        self._codec = stage.codec
        self._tool_forms = tool_forms
        self._tools_form: ToolForm = tool_forms[0]
        self._tool_sets: tuple[ToolSet, ...] = (None,)
        # What stands behind the payload of a final assistant turn, the stop in it, and what opens a turn to generate.
        self._end = ""
        self._end_stop: tuple[int, int] | None = None
        self._opener = ""
        self._suffix_reads_tools = False

    def run(self) -> TemplateProfile:
        try:
            self._find_forms()
            self._end = self._stage.tail(one_text_turn(), generation=False)
            self._end_stop = self._stop_of(self._end)
            self._opener = self._generation_opener()
        except (Refused, InvalidRequest) as error:
            raise ConfigurationError(f"the chat template cannot be used: {error}") from error
        roles: dict[str, RoleProfile] = {}
        refused: dict[str, str] = {}
        for role in PROBED_ROLES:
            try:
                roles[role] = self._role((role,))
                self._require_opener(role)
            except (Refused, InvalidRequest) as error:
                roles.pop(role, None)
                refused[role] = str(error)
        # Several messages in one request.
        for first, role in [(role, role) for role in roles] + [("tool", role) for role in roles if role != "tool"]:
            if first in roles:
                roles[role] = self._in_company(first, role, roles)
        if not roles:
            reasons = "; ".join(f"{role}: {reason}" for role, reason in refused.items())
            raise ConfigurationError(f"nothing can be appended to an assistant turn of this chat template ({reasons})")
        again: RoleProfile | str
        try:
            again = self._role(())
        except (Refused, InvalidRequest) as error:
            again = str(error)
        return self._profile(roles, refused, again)

    # What the template reads.

    def _find_forms(self) -> None:
        self._stage = replace(self._stage, form=MessageForm(content=self._content_form()))
        self._stage = replace(self._stage, form=self._argument_form())
        accepted: list[ToolSet] = [None]
        for form in self._tool_forms:
            tools = engine_tools(TOOLS, form)
            if self._stage.renders(one_text_turn(), tools=tools):
                self._tools_form = form
                accepted.append(tools)
                break
        self._tool_sets = tuple(accepted)

    def _content_form(self) -> ContentForm:
        reason = ""
        form: ContentForm
        for form in get_args(ContentForm):
            try:
                text = self._stage.render(one_text_turn(), generation=False, form=MessageForm(content=form))
            except InvalidRequest as error:
                reason = reason or str(error)
                continue
            if USER_TEXT in text and SENTINEL in text and f"'{SENTINEL}'" not in text:
                return form
            reason = reason or "the chat template does not write what the messages say"
        raise Refused(f"it cannot render a conversation of a user and an assistant: {reason}")

    def _argument_form(self) -> MessageForm:
        content = self._stage.form.content
        as_object, as_string = MessageForm("object", content), MessageForm("string", content)
        arguments = tool_call(SENTINEL)["function"]["arguments"]
        from_object, from_string = self._written_call(as_object), self._written_call(as_string)
        # No calls in this template, or only odd ones: then the form does not matter.
        if SENTINEL not in from_object:
            return as_string if SENTINEL in from_string else as_object
        # One that prints an object the way Python does, or as a whole although it takes text apart, wants JSON text.
        whole = json.dumps(arguments)
        takes_apart = SENTINEL in from_string and whole not in from_string and json.dumps(whole) not in from_string
        if str(arguments) in from_object or (whole in from_object and takes_apart):
            return as_string
        return replace(as_object, string_arguments=SENTINEL in from_string)

    def _writes_developer(self) -> bool:
        instructions = {"role": "developer", "content": SENTINEL}
        return self._stage.renders([instructions, user_message()], tools=None)

    def _written_call(self, form: MessageForm) -> str:
        """A call as the template writes it; empty where it refuses it."""
        call = [user_message(), assistant_message("", calls=[tool_call(SENTINEL)])]
        # Some templates want every call answered.
        for conversation in (call, [*call, *appended_messages(("tool",))]):
            try:
                return self._stage.render(conversation, generation=False, form=form)
            except InvalidRequest:
                continue
        return ""

    def _generation_opener(self) -> str:
        with_opener = self._stage.render([user_message()], generation=True)
        without = self._stage.render([user_message()], generation=False)
        if with_opener.startswith(without):
            return with_opener[len(without) :]
        # Without an opener a template may write that nothing follows.
        last = self._stage.last_added(without)
        return with_opener[last[0] :] if last and with_opener.startswith(without[: last[0]]) else ""

    # What follows an assistant turn.

    def _role(self, roles: tuple[str, ...]) -> RoleProfile:
        junctions: dict[BaseKind, Junction] = {}
        unjoined: dict[BaseKind, str] = {}
        reach: dict[BaseKind, Reach] = {}
        raised: list[NotWritten] = []
        for kind in _KINDS:
            behind = self._behind(kind, roles)
            if behind.raised is not None:
                raised.append(behind.raised)
            try:
                if behind.misplaced is not None:
                    raise behind.misplaced
                if behind.tails:
                    junctions[kind] = self._junction(kind, roles, behind.tails)
            except Refused as error:
                unjoined[kind] = str(error)
                continue
            if behind.differ(one_set_of_tools=True):
                reach[kind] = self._reach(roles, behind.tails)
            elif behind.differ(one_set_of_tools=False):
                self._suffix_reads_tools = True
            if kind == "call" and roles == ("tool",) and not behind.tails and _refuses(behind.raised):
                # Behind a text a result is of no use to anybody.
                raise behind.raised
        if not junctions:
            raise Refused(next(iter([*unjoined.values(), *map(str, raised)])))
        return RoleProfile(junctions, unjoined, reach)

    def _in_company(self, first: str, role: str, roles: Mapping[str, RoleProfile]) -> RoleProfile:
        """``role`` again, looking as far back as it does when it comes in one request behind ``first``."""
        profile = roles[role]
        reach = dict(profile.reach)
        for kind in roles[first].junctions:
            pair = (first, role)
            before = {roles[first].reach.get(kind), reach.get(kind)}
            behind = self._behind(kind, pair)
            if "history" in before or not behind.differ(one_set_of_tools=True):
                continue
            needed = self._reach(pair, behind.tails)
            if needed not in before:
                reach[kind] = needed
        return replace(profile, reach=reach)

    def _behind(self, kind: BaseKind, roles: Sequence[str]) -> _Behind:
        tails: list[_Tail] = []
        misplaced: Refused | None = None
        raised: NotWritten | None = None
        for tools in self._tool_sets:
            for history in HISTORIES[kind]:
                try:
                    text = self._stage.tail(history, roles, generation=True, tools=tools)
                except NotWritten as error:
                    raised = raised or error
                except Refused as error:
                    misplaced = misplaced or error
                else:
                    tails.append(_Tail(history, tools, text))
        return _Behind(tails, misplaced, raised)

    def _reach(self, roles: Sequence[str], tails: Sequence[_Tail]) -> Reach:
        """How far back the template looks when it renders ``roles``."""
        for tail in tails:
            try:
                short = self._stage.tail([user_message(), tail.history[-1]], roles, generation=True, tools=tail.tools)
            except Refused:
                return "history"
            if short != tail.text:
                return "history"
        return "last turn"

    def _junction(self, kind: BaseKind, roles: Sequence[str], tails: Sequence[_Tail]) -> Junction:
        """The one junction that all tails show."""
        found = {self._junction_of(kind, roles, tail) for tail in tails}
        if len(found) > 1:
            raise Refused("where the assistant turn ends depends on the history before it")
        return found.pop()

    def _junction_of(self, kind: BaseKind, roles: Sequence[str], tail: _Tail) -> Junction:
        # What closes the turn and opens the message; behind it the message may spell anything.
        closing = tail.text.partition(appended_messages(roles)[0]["content"])[0] if roles else tail.text
        place = self._stop_of(closing, kind)
        if place is None:
            raise Refused("no control token separates the assistant turn from what follows, so there is no clean cut")
        position, token_id = place
        lead, rest = tail.text[:position], tail.text[position:]
        terminator = self._codec.added_text[token_id]
        # A model that is known to stop there has written what stands before; elsewhere nothing says so.
        known = token_id in self._codec.eos_ids
        if kind == "text" and not known and (ordinary := self._ordinary(lead)):
            raise Refused(f"ordinary text ({ordinary!r}) ends the assistant turn, so there is no clean cut")
        ids = self._codec.encode(rest)
        appended = appended_messages(roles, tail.history)
        full = self._stage.render([*tail.history, *appended], generation=True, tools=tail.tools)
        if ids[0] != token_id or self._codec.encode(full)[-len(ids) :] != ids:
            raise Refused("what follows the assistant turn encodes differently on its own than in its place")
        behind = self._codec.encode(closing[position + len(terminator) :])
        closers = tuple(dict.fromkeys(i for i in behind if i in self._codec.eos_ids and i != token_id))
        return Junction(kind, lead, terminator, token_id, opens_next=False, closers=closers)

    def _stop_of(self, closing: str, kind: BaseKind = "text") -> tuple[int, int] | None:
        """The control token that ends a turn, in what closes it: (position in the text, id), or None.

        It is the first that the model knows as a stop; else the first of all behind the text that closes a call.
        """
        added = self._codec.added_text
        stops = {i for i in self._codec.encode(closing) if i in self._codec.eos_ids and i in added}
        if stops:
            return min((closing.find(added[stop]), stop) for stop in stops)
        lead = len(self._lead_of_call(closing)) if kind == "call" else 0
        place = self._codec.first_added(closing[lead:])
        if place is None:
            # A turn that is left open behind a call ends with the call's own mark.
            return self._stage.last_added(closing[:lead])
        return lead + place[0], place[1]

    def _ordinary(self, lead: str) -> str:
        """What is left of a lead without its control tokens."""
        for token_id in self._codec.encode(lead) if lead.strip() else ():
            lead = lead.replace(self._codec.added_text.get(token_id, "\0"), " ", 1)
        return lead.strip()

    def _lead_of_call(self, tail: str) -> str:
        """The text that closes a call, where a turn that ends with one is followed by ``tail``."""
        end = self._end_of_call()
        if end and tail.startswith(end):
            if self._end_stop is None:
                return end
            if end.endswith(self._end):
                return end.removesuffix(self._end)
            last = self._stage.last_added(end)
            if last is not None:
                return end[: last[0]]
        if self._end_stop is not None:
            position = tail.find(self._codec.added_text[self._end_stop[1]])
            if position >= 0:
                return tail[:position]
        raise Refused("the template does not show where the text of a call ends")

    def _end_of_call(self) -> str:
        """What stands behind the payload of a final turn that is a call; empty where there can be none."""
        call = [user_message(), assistant_message("", calls=[tool_call(SENTINEL)])]
        try:
            return self._stage.tail(call, generation=False)
        except Refused:
            return ""

    def _require_opener(self, role: str) -> None:
        """Refuse a role behind which the template opens no turn to generate although its own turns have an opener."""
        place = self._codec.first_added(self._opener)
        if place is None:
            return
        appended = appended_messages((role,))
        for kind in _KINDS:
            history = base_conversation(kind, SENTINEL)
            try:
                with_opener = self._stage.render([*history, *appended], generation=True)
                without = self._stage.render([*history, *appended], generation=False)
            except InvalidRequest:
                continue
            if with_opener != without:
                return
            if not with_opener.rpartition(appended[0]["content"])[2].strip():
                raise Refused("nothing separates the message from the turn that is to be generated")
            try:
                followed = self._stage.render([*history, *appended, assistant_message("qNextq")], generation=False)
            except InvalidRequest:
                followed = ""
            start, _, rest = followed.partition(without)
            between = rest.partition("qNextq")[0]
            if start or "qNextq" not in rest or self._codec.added_text[place[1]] in between:
                raise Refused("no generation opener follows the message")

    # Putting it together.

    def _profile(
        self, roles: Mapping[str, RoleProfile], refused: Mapping[str, str], again: RoleProfile | str
    ) -> TemplateProfile:
        ends = set() if self._end_stop is None else {self._end_stop[1]}
        ended = self._codec.encode(self._end_of_call())
        ended_text = self._codec.encode(self._end)
        terminators = {(role, junction.terminator_id) for role in roles for junction in roles[role].junctions.values()}
        openers = {
            terminator
            for role, terminator in terminators
            if terminator not in ended and self._opens(role, terminator, ends)
        }
        closes = {terminator for _, terminator in terminators} - openers
        # One token for all, and none that the template writes by itself: it closes turns, it does not open them.
        if not closes and len(openers) == 1 and not self._opens("user", min(openers), ends, by_itself=True):
            openers, closes = set(), openers
        if not isinstance(again, str):
            first = {junction.terminator_id for junction in again.junctions.values()}
            opening = set() if ends else first - closes - self._codec.eos_ids
            again = _with_opening(again, opening)
        else:
            opening = set()
        stops = {*self._codec.eos_ids, *openers, *closes, *ends}
        return TemplateProfile(
            form=replace(self._stage.form, developer=self._writes_developer()),
            tools=self._tools_form,
            suffix_reads_tools=self._suffix_reads_tools or any(role.reach for role in roles.values()),
            roles={name: _with_opening(role, openers) for name, role in roles.items()},
            refused=dict(refused),
            again=again,
            generation_opener=self._opener,
            separator=self._separator(),
            stop_ids=frozenset(stops),
            alternate_ids=frozenset((ends | self._codec.eos_ids.intersection(ended_text)) - openers - closes),
            replaceable_ids=frozenset(openers if len(openers | closes | opening) > 1 else ()),
            assistant_header=self._assistant_header(),
            thinking=find_thinking(self._stage, self._opener, stops),
            past_thinking=find_past_thinking(self._stage),
            keeps_thinking=find_keeps_thinking(self._stage),
            rewritten=self._rewritten(),
            reads_clock=self._reads_clock(),
            injection=self._injection(),
        )

    def _opens(self, role: str, terminator: int, ends: Collection[int], *, by_itself: bool = False) -> bool:
        """Whether a terminator before a role's message is that message's opener, rather than the close of the turn.

        Args:
            role: of the message.
            terminator: id of the control token between turn and message.
            ends: what ends a turn that nothing follows.
            by_itself: only where the template is seen to write it before a message that follows nothing.
        """
        if terminator in ends:
            return False
        if not by_itself and terminator not in self._codec.eos_ids:
            return not ends
        (message,) = appended_messages((role,))
        try:
            before, _, behind = self._stage.render([message], generation=False).partition(message["content"])
        except InvalidRequest:
            return not ends
        token = self._codec.added_text[terminator]
        # A default system message may be closed with it before the message; then the message is, too.
        return token in before and token not in behind

    def _separator(self) -> str:
        if self._end_stop is None:
            return ""
        position, token_id = self._end_stop
        return self._end[position + len(self._codec.added_text[token_id]) :]

    def _assistant_header(self) -> Header:
        after_user = self._stage.tail_of_user([assistant_message(SENTINEL)], generation=False).partition(SENTINEL)[0]
        prompt = self._stage.tail_of_user([], generation=True)
        close = prompt.removesuffix(self._opener) if self._opener else ""
        if not after_user.startswith(close):
            return ()
        header = _common_prefix(after_user.removeprefix(close), prompt.removeprefix(close))
        parts: list[int | str] = []
        ordinary: list[int] = []
        for token_id in self._codec.encode(header) if header else ():
            if token_id not in self._codec.special_ids:
                ordinary.append(token_id)
                continue
            if ordinary:
                parts.append(self._codec.decode_behind(ordinary))
                ordinary = []
            parts.append(token_id)
        if ordinary:
            parts.append(self._codec.decode_behind(ordinary))
        return tuple(parts)

    def _rewritten(self) -> frozenset[HistoryKind]:
        answered = [
            assistant_message("", calls=[tool_call(SENTINEL)]),
            *appended_messages(("tool",)),
            assistant_message("qAnswerq"),
        ]
        thought = assistant_message(SENTINEL, reasoning=THOUGHT)
        said: dict[HistoryKind, Conversation] = {
            "text": [assistant_message(SENTINEL)],
            "thinking": [thought],
            "calls": answered,
        }
        return frozenset(kind for kind, turns in said.items() if not self._only_adds(turns))

    def _only_adds(self, turns: Conversation) -> bool:
        """Whether what stands up to the sentinel stays as it is when the conversation goes on."""
        more = [user_message("qMoreq"), assistant_message("qLastq")]
        written: set[str] = set()
        for size in range(1, len(turns) + 1):
            for following in ([], more):
                try:
                    text = self._stage.render([user_message(), *turns[:size], *following], generation=False)
                except InvalidRequest:
                    continue
                written.add(text.partition(SENTINEL)[0])
        return len(written) <= 1

    def _reads_clock(self) -> bool:
        another = ANY_DAY - timedelta(days=400, hours=7, minutes=11)
        conversation = one_text_turn()
        today = self._stage.render(conversation, generation=True)
        return self._stage.render(conversation, generation=True, now=another) != today

    def _injection(self) -> tuple[str, ...]:
        added = self._codec.added_text
        found = dict.fromkeys(self._codec.encode(" ".join(text for text in added.values() if text.strip())))
        return tuple(added[token_id] for token_id in found if added.get(token_id, "").strip())


def _common_prefix(left: str, right: str) -> str:
    size = min(len(left), len(right))
    return left[: next((i for i in range(size) if left[i] != right[i]), size)]


def _with_opening(role: RoleProfile, openers: Collection[int]) -> RoleProfile:
    """``role`` with the junctions marked whose terminator is one of ``openers``."""
    return replace(
        role,
        junctions={
            kind: replace(junction, opens_next=junction.terminator_id in openers)
            for kind, junction in role.junctions.items()
        },
    )


def _refuses(raised: NotWritten | None) -> TypeGuard[NotWritten]:
    """Whether the template raised; one that merely leaves the turn out says nothing against what follows."""
    return raised is not None and isinstance(raised.__cause__, InvalidRequest)
