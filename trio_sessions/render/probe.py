"""Find out what a chat template does with what is appended to an assistant turn.

Nothing is known beforehand: the template is rendered with a handful of short conversations, and what it writes behind
a sentinel is compared. A role that is not rendered alike behind every history is rendered behind the session's own; a
role that cannot be joined cleanly is refused with the reason; a template for which no role is left is refused as a
whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, get_args

from trio_sessions.core.compare import Header
from trio_sessions.errors import ConfigurationError, InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.conversation import ConversationTemplate
from trio_sessions.render.messages import ContentForm, MessageForm
from trio_sessions.render.profile import BaseKind, HistoryKind, Junction, Reach, RealTurn, TemplateProfile
from trio_sessions.render.stage import ANY_DAY, DependsOnHistory, Refused, Stage, ToolSet
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
    return _Probe(Stage(template, codec, kwargs), tool_forms).run()


@dataclass(frozen=True, slots=True)
class _Suffix:
    """How a role joins, whether tool definitions matter to that, and what of the history does."""

    junction: Junction
    text: str
    reads_tools: bool
    real_turn: RealTurn | None = None


class _Probe:
    """One run over one template; holds what was found so far."""

    def __init__(self, stage: Stage, tool_forms: Sequence[ToolForm]) -> None:
        self._stage = stage
        self._codec = stage.codec
        self._tool_forms = tool_forms
        self._tools_form: ToolForm = tool_forms[0]
        self._tool_sets: tuple[ToolSet, ...] = (None,)
        # What stands behind the payload of a final assistant turn, and what opens a turn to generate.
        self._end = ""
        self._end_has_control = False
        self._opener = ""

    def run(self) -> TemplateProfile:
        try:
            self._find_forms()
            self._end = self._stage.tail(one_text_turn(), generation=False)
            self._end_has_control = self._codec.first_added(self._end) is not None
            self._opener = self._generation_opener()
        except (Refused, InvalidRequest) as error:
            raise ConfigurationError(f"the chat template cannot be used: {error}") from error
        suffixes: dict[str, _Suffix] = {}
        refused: dict[str, str] = {}
        for role in PROBED_ROLES:
            try:
                suffixes[role] = self._suffix_of((role,))
                self._require_opener(role)
            except (Refused, InvalidRequest) as error:
                suffixes.pop(role, None)
                refused[role] = str(error)
        if "tool" in suffixes:
            # Several roles in one request; a pair that raises is no proof against either.
            turn = suffixes["tool"].real_turn
            reached = None if turn is None else turn.reach
            suffixes = {
                role: suffix if role == "tool" else self._behind("tool", role, suffix, reached)
                for role, suffix in suffixes.items()
            }
        if any(suffix.real_turn for suffix in suffixes.values()):
            suffixes = {role: self._with_real_turn(role, suffix) for role, suffix in suffixes.items()}
        if not suffixes:
            reasons = "; ".join(f"{role}: {reason}" for role, reason in refused.items())
            raise ConfigurationError(f"nothing can be appended to an assistant turn of this chat template ({reasons})")
        again: _Suffix | str
        try:
            again = self._suffix_of(())
        except (Refused, InvalidRequest) as error:
            again = str(error)
        return self._profile(suffixes, refused, again)

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
        return with_opener.removeprefix(without) if with_opener.startswith(without) else ""

    # What follows an assistant turn.

    def _suffix_of(self, roles: tuple[str, ...]) -> _Suffix:
        try:
            suffix = self._same_behind_every_history(roles)
        except DependsOnHistory:
            return self._joined_to_real_turns(roles)
        return self._behind(roles[0], roles[0], suffix) if roles else suffix

    def _behind(self, first: str, role: str, suffix: _Suffix, reached: Reach | None = None) -> _Suffix:
        """``suffix`` of ``role``, rendered behind real turns if a message of ``first`` before it makes a difference.

        Args:
            first: role of the message before it, in the same request.
            role: the role.
            suffix: how it is joined alone.
            reached: how much of the session is rendered with ``first`` anyway.
        """
        if suffix.real_turn is not None or reached == "history":
            return suffix
        # What a template makes of several results shows behind calls alone.
        kind: BaseKind = "call" if first == "tool" else suffix.junction.base
        pair = (first, role)
        if reached is None:
            alike = all(len(set(self._tails(kind, pair, tools))) <= 1 for tools in self._tool_sets)
        else:
            alike = all(
                self._sees_last_turn_only(history, pair, tools)
                for history in HISTORIES[kind]
                for tools in self._tool_sets
            )
        return suffix if alike else self._joined_to_real_turns((role,), pair)

    def _same_behind_every_history(self, roles: Sequence[str]) -> _Suffix:
        """The suffix of ``roles``, the same behind every history that renders."""
        found: list[_Suffix] = []
        for tools in self._tool_sets:
            texts, calls = (self._tails(kind, roles, tools) for kind in _KINDS)
            found.append(self._reconcile(roles, tools, texts, calls))
        plain = found[0]
        if any(other.junction != plain.junction for other in found):
            raise DependsOnHistory("what stands before the message depends on whether there are tools")
        return _Suffix(plain.junction, plain.text, any(other.text != plain.text for other in found))

    def _reconcile(self, roles: Sequence[str], tools: ToolSet, texts: list[str], calls: list[str]) -> _Suffix:
        if not texts and not calls:
            raise self._why_refused(roles, tools)
        # A result answers a call: what stands behind a plain text is no concern of it where the two differ.
        answers = roles[:1] == ("tool",) and bool(calls)
        if texts and not (answers and not _agree(texts, calls)):
            _require_equal(texts)
            suffix = self._joined("text", roles, tools, texts[0])
            # A call may end with a terminator of its own: the sampler has written it, so only the rest is needed.
            rest = suffix.text.removeprefix(suffix.junction.terminator) if self._end_has_control else suffix.text
            if not all(tail.endswith(rest) for tail in calls):
                raise DependsOnHistory("what follows a call differs from what follows a text")
            return suffix
        _require_equal(calls)
        return self._joined("call", roles, tools, calls[0])

    def _with_real_turn(self, role: str, suffix: _Suffix) -> _Suffix:
        """``suffix`` with what it takes to come in one request with a role that is rendered behind real turns."""
        if suffix.real_turn is not None:
            return suffix
        real = self._joined_to_real_turns((role,)).real_turn
        assert real is not None
        return replace(suffix, real_turn=replace(real, reach=None))

    def _joined_to_real_turns(self, roles: tuple[str, ...], sequence: tuple[str, ...] = ()) -> _Suffix:
        """The same for roles that are rendered behind the session's own turns, as far back as the template looks."""
        junctions: dict[BaseKind, Junction] = {}
        texts: list[str] = []
        reach: Reach = "last turn"
        for kind in _KINDS:
            for history in HISTORIES[kind]:
                for tools in self._tool_sets:
                    try:
                        tail = self._stage.tail(history, roles, generation=True, tools=tools)
                    except Refused:
                        continue
                    suffix = self._joined(kind, roles, tools, tail, history)
                    texts.append(suffix.text)
                    if junctions.setdefault(kind, suffix.junction) != suffix.junction:
                        raise Refused("where the assistant turn ends depends on the history before it")
                    if not all(self._sees_last_turn_only(history, seen, tools) for seen in (roles, sequence)):
                        reach = "history"
        base: BaseKind = "call" if roles == ("tool",) and "call" in junctions else next(iter(junctions))
        return _Suffix(junctions[base], texts[0], reads_tools=True, real_turn=RealTurn(reach, junctions))

    def _sees_last_turn_only(self, history: Conversation, roles: Sequence[str], tools: ToolSet) -> bool:
        short = [user_message(), history[-1]]
        try:
            whole = self._stage.tail(history, roles, generation=True, tools=tools)
            return self._stage.tail(short, roles, generation=True, tools=tools) == whole
        except Refused:
            # A conversation that does not render shows nothing.
            return True

    def _joined(
        self, base: BaseKind, roles: Sequence[str], tools: ToolSet, tail: str, history: Conversation | None = None
    ) -> _Suffix:
        lead = self._lead_of_call(tail) if base == "call" else ""
        place = self._codec.first_added(tail[len(lead) :])
        if place is None:
            raise Refused("no control token separates the assistant turn from what follows, so there is no clean cut")
        position, token_id = place
        lead = tail[: len(lead) + position]
        if base == "text" and lead.strip():
            raise Refused(f"ordinary text ({lead.strip()!r}) ends the assistant turn, so there is no clean cut")
        terminator = self._codec.added_text[token_id]
        rest = tail[len(lead) :]
        ids = self._codec.encode(rest)
        before = base_conversation(base, SENTINEL) if history is None else history
        full = self._stage.render([*before, *appended_messages(roles)], generation=True, tools=tools)
        if ids[0] != token_id or self._codec.encode(full)[-len(ids) :] != ids:
            raise Refused("what follows the assistant turn encodes differently on its own than in its place")
        return _Suffix(
            Junction(base, lead, terminator, token_id, opens_next=not self._end_has_control), rest, reads_tools=False
        )

    def _lead_of_call(self, tail: str) -> str:
        """The text that closes a call, where a turn that ends with one is followed by ``tail``."""
        try:
            end = self._stage.tail(
                [user_message(), assistant_message("", calls=[tool_call(SENTINEL)])], generation=False
            )
        except Refused:
            end = None
        if end is not None and tail.startswith(end):
            if not self._end_has_control:
                return end
            if end.endswith(self._end):
                return end.removesuffix(self._end)
            last = self._stage.last_added(end)
            if last is not None:
                return end[: last[0]]
        place = self._codec.first_added(self._end)
        if place is not None:
            position = tail.find(self._codec.added_text[place[1]])
            if position >= 0:
                return tail[:position]
        raise Refused("the template does not show where the text of a call ends")

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
            if self._codec.first_added(with_opener.rpartition(appended[0]["content"])[2]) is None:
                raise Refused("nothing separates the message from the turn that is to be generated")
            try:
                followed = self._stage.render([*history, *appended, assistant_message("qNextq")], generation=False)
            except InvalidRequest:
                followed = ""
            start, _, rest = followed.partition(without)
            between = rest.partition("qNextq")[0]
            if start or "qNextq" not in rest or self._codec.added_text[place[1]] in between:
                raise Refused("no generation opener follows the message")

    def _tails(self, kind: BaseKind, roles: Sequence[str], tools: ToolSet) -> list[str]:
        """What follows the turn behind every history of a kind that renders."""
        tails = []
        for history in HISTORIES[kind]:
            try:
                tails.append(self._stage.tail(history, roles, generation=True, tools=tools))
            except Refused:
                continue
        return tails

    def _why_refused(self, roles: Sequence[str], tools: ToolSet) -> Refused:
        try:
            self._stage.tail(one_text_turn(), roles, generation=True, tools=tools)
        except Refused as reason:
            return reason
        raise AssertionError("asked for a reason although it renders")

    # Putting it together.

    def _profile(
        self, suffixes: Mapping[str, _Suffix], refused: Mapping[str, str], again: _Suffix | str
    ) -> TemplateProfile:
        every = [*suffixes.values(), *([] if isinstance(again, str) else [again])]
        # One token for all, and none that the template writes by itself: it closes turns, it does not open them.
        alternatives = _openers(every)
        openers = _openers(suffixes.values())
        if len(alternatives) == 1 and not self._opens_first_user_turn(openers):
            openers, alternatives = set(), set()
        fixed = {role: _with_opening(suffix, bool(alternatives)) for role, suffix in suffixes.items()}
        end_token = self._codec.first_added(self._end)
        ends = set() if end_token is None else {end_token[1]}
        terminators = {junction.terminator_id for suffix in fixed.values() for junction in _junctions(suffix)}
        stops = {*self._codec.eos_ids, *terminators, *ends}
        return TemplateProfile(
            form=self._stage.form,
            tools=self._tools_form,
            suffix_reads_tools=any(suffix.reads_tools for suffix in every),
            junctions={role: suffix.junction for role, suffix in fixed.items()},
            real_turns={role: suffix.real_turn for role, suffix in fixed.items() if suffix.real_turn is not None},
            refused=dict(refused),
            again=again if isinstance(again, str) else _with_opening(again, bool(alternatives)).junction,
            generation_opener=self._opener,
            separator=self._separator(end_token),
            stop_ids=frozenset(stops),
            alternate_ids=frozenset(ends - terminators),
            replaceable_ids=frozenset(openers if len(alternatives) > 1 else ()),
            assistant_header=self._assistant_header(),
            thinking=find_thinking(self._stage, self._opener, stops),
            past_thinking=find_past_thinking(self._stage),
            keeps_thinking=find_keeps_thinking(self._stage),
            rewritten=self._rewritten(),
            reads_clock=self._reads_clock(),
            injection=self._injection(),
        )

    def _separator(self, end_token: tuple[int, int] | None) -> str:
        if end_token is None:
            return ""
        return self._end[end_token[0] + len(self._codec.added_text[end_token[1]]) :]

    def _opens_first_user_turn(self, openers: Iterable[int]) -> bool:
        before = self._stage.render([user_message()], generation=False).partition(USER_TEXT)[0]
        return any(self._codec.added_text[opener] in before for opener in openers)

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


def _junctions(suffix: _Suffix) -> Iterable[Junction]:
    yield suffix.junction
    if suffix.real_turn is not None:
        yield from suffix.real_turn.junctions.values()


def _openers(suffixes: Iterable[_Suffix]) -> set[int]:
    return {junction.terminator_id for suffix in suffixes for junction in _junctions(suffix) if junction.opens_next}


def _with_opening(suffix: _Suffix, opens_next: bool) -> _Suffix:
    real = suffix.real_turn
    if real is not None:
        fixed = {kind: replace(junction, opens_next=opens_next) for kind, junction in real.junctions.items()}
        real = replace(real, junctions=fixed)
    return replace(suffix, junction=replace(suffix.junction, opens_next=opens_next), real_turn=real)


def _agree(texts: list[str], calls: list[str]) -> bool:
    return len(set(texts)) == 1 and all(tail.endswith(texts[0]) for tail in calls)


def _require_equal(tails: Sequence[str]) -> None:
    if len(set(tails)) > 1:
        raise DependsOnHistory("what is rendered for the message depends on the history before it")
