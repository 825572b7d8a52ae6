"""Find out what a chat template does with what is appended to an assistant turn.

Nothing is known beforehand: the template is rendered with a handful of short conversations, and what it writes behind
a sentinel is compared. A role for which no suffix exists that holds behind every history is refused with the reason;
a template for which no role is left is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, get_args

from trio_sessions.core.compare import Header
from trio_sessions.errors import ConfigurationError, InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.messages import ContentForm, MessageForm, normalize_messages
from trio_sessions.render.profile import (
    CALL_ID,
    BaseKind,
    Junction,
    PastThinking,
    TemplateProfile,
    Thinking,
    base_conversation,
    tool_call,
)
from trio_sessions.render.suffix import cut_after, sentinel_for
from trio_sessions.render.tools import ToolForm, engine_tools

__all__ = ["PROBED_ROLES", "probe_template"]

PROBED_ROLES: Final = ("user", "tool", "system", "developer")

_Conversation: TypeAlias = list[Mapping[str, Any]]
_Tools: TypeAlias = list[dict[str, Any]] | None
_S: Final = sentinel_for()
_USER_TEXT: Final = "qUserTextq"
_THOUGHT: Final = "qThoughtq"
# Names under which templates are known to let past thinking stay. Switching thinking itself on or off is no business
# of a probe: that changes the task.
_KEEP_THINKING: Final[Mapping[str, Any]] = {
    "clear_thinking": False,
    "preserve_thinking": True,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]


class _Refused(Exception):
    """The template does not do what an append needs; the text says what it does instead."""


def probe_template(template: ChatTemplate, codec: TextCodec, kwargs: Mapping[str, Any]) -> TemplateProfile:
    """The facts about ``template`` under ``kwargs``.

    Raises:
        ConfigurationError: no conversation can be rendered, or nothing can be appended to an assistant turn; the text
            names the fact.
    """
    return _Probe(template, codec, kwargs).run()


@dataclass(frozen=True, slots=True)
class _Suffix:
    """How a role joins, and whether tool definitions matter to that."""

    junction: Junction
    text: str
    reads_tools: bool


class _Probe:
    """One run over one template; holds what was found so far."""

    def __init__(self, template: ChatTemplate, codec: TextCodec, kwargs: Mapping[str, Any]) -> None:
        self._template = template
        self._codec = codec
        self._kwargs = kwargs
        self._form = MessageForm()
        self._tools_form: ToolForm = "wrapper"
        self._tool_sets: tuple[_Tools, ...] = (None,)
        # What stands behind the payload of a final assistant turn, and what opens a turn to generate.
        self._end = ""
        self._end_has_control = False
        self._opener = ""

    def run(self) -> TemplateProfile:
        try:
            self._find_forms()
            self._end = self._tail(_one_text_turn(), (), generation=False)
            self._end_has_control = self._codec.first_added(self._end) is not None
            self._opener = self._generation_opener()
        except (_Refused, InvalidRequest) as error:
            raise ConfigurationError(f"the chat template cannot be used: {error}") from error
        junctions: dict[str, _Suffix] = {}
        refused: dict[str, str] = {}
        for role in PROBED_ROLES:
            try:
                junctions[role] = self._suffix_of(role)
            except (_Refused, InvalidRequest) as error:
                refused[role] = str(error)
        # Several roles in one request: tried only for roles that are fine alone, in the order of their names.
        for role in [role for role in junctions if role != "tool"]:
            try:
                self._check_sequence(("tool", role), junctions)
            except _Refused as error:
                refused[role] = str(error)
                del junctions[role]
        if not junctions:
            reasons = "; ".join(f"{role}: {reason}" for role, reason in refused.items())
            raise ConfigurationError(f"nothing can be appended to an assistant turn of this chat template ({reasons})")
        again: _Suffix | str
        try:
            again = self._suffix_of(None)
        except (_Refused, InvalidRequest) as error:
            again = str(error)
        return self._profile(junctions, refused, again)

    # What the template reads.

    def _find_forms(self) -> None:
        self._form = MessageForm(content=self._content_form())
        self._form = self._argument_form()
        accepted: list[_Tools] = [None]
        plain = [_user(), _assistant(_S)]
        for form in get_args(ToolForm):
            tools = engine_tools(_TOOLS, form)
            if self._renders(plain, tools=tools):
                self._tools_form = form
                accepted.append(tools)
                break
        self._tool_sets = tuple(accepted)

    def _content_form(self) -> ContentForm:
        reason = ""
        form: ContentForm
        for form in get_args(ContentForm):
            self._form = MessageForm(content=form)
            try:
                text = self._render([_user(), _assistant(_S)], generation=False)
            except InvalidRequest as error:
                reason = reason or str(error)
                continue
            if _USER_TEXT in text and _S in text and f"'{_S}'" not in text:
                return form
            reason = reason or "the chat template does not write what the messages say"
        raise _Refused(f"it cannot render a conversation of a user and an assistant: {reason}")

    def _argument_form(self) -> MessageForm:
        content = self._form.content
        arguments = tool_call(_S)["function"]["arguments"]
        as_object, as_string = MessageForm("object", content), MessageForm("string", content)
        # A template that prints an object the way Python does was written for JSON text.
        if self._writes_arguments(as_object, never=str(arguments)):
            return replace(as_object, string_arguments=self._writes_arguments(as_string))
        # No calls in this template, or only odd ones: then the form does not matter.
        return as_string if self._writes_arguments(as_string) else as_object

    def _writes_arguments(self, form: MessageForm, *, never: str = "\0") -> bool:
        call = [_user(), _assistant("", calls=[tool_call(_S)])]
        # Some templates want every call answered.
        for conversation in (call, [*call, *_appended(("tool",))]):
            try:
                text = self._render(conversation, generation=False, form=form)
            except InvalidRequest:
                continue
            return _S in text and never not in text
        return False

    def _generation_opener(self) -> str:
        with_opener = self._render([_user()], generation=True)
        without = self._render([_user()], generation=False)
        return with_opener.removeprefix(without) if with_opener.startswith(without) else ""

    # Thinking.

    def _thinking(self, stops: Collection[int]) -> Thinking | None:
        turn = self._codec.first_added(self._opener)
        if turn is None:
            return None
        before, close = self._thought() or self._opened_thought()
        opened, closed = _last_added(before, self._codec), self._codec.first_added(close)
        if opened is None or closed is None or {opened[1], closed[1]} & {turn[1], *stops}:
            return None
        # More than a mark and white space is a format of its own, which one text cannot close.
        if close.strip() != self._codec.added_text[closed[1]]:
            return None
        return Thinking(turn[1], opened[1], closed[1], close)

    def _thought(self) -> tuple[str, str] | None:
        """Text up to a thought, and from its end to the answer; None where the template writes no thoughts."""
        try:
            text = self._tail_of_user([_assistant("qAnswerq", reasoning=_THOUGHT)], generation=False)
        except InvalidRequest:
            return None
        before, thought, behind = text.partition(_THOUGHT)
        close, answer, _ = behind.partition("qAnswerq")
        return (before, close) if thought and answer else None

    def _opened_thought(self) -> tuple[str, str]:
        """The same from an opener that ends with a mark in angle brackets, the close being the mark's counterpart."""
        opened = _last_added(self._opener, self._codec)
        if opened is None:
            return "", ""
        mark = self._codec.added_text[opened[1]]
        space = self._opener[opened[0] + len(mark) :]
        counterpart = f"</{mark[1:]}"
        if not mark.startswith("<") or space.strip() or counterpart not in self._codec.added_text.values():
            return "", ""
        return self._opener, f"{space}{counterpart}{space * 2}"

    def _past_thinking(self, extra: Mapping[str, Any] | None = None) -> PastThinking:
        turn = [_user("qBeforeq"), _assistant("qEarlierq", reasoning=_THOUGHT)]
        following = [_user(), _assistant("qAnswerq")]
        try:
            if _THOUGHT in self._render([*turn, *following], generation=False, extra=extra):
                return "kept"
            return "dropped" if _THOUGHT in self._render(turn, generation=False, extra=extra) else "never written"
        except InvalidRequest:
            return "never written"

    def _keeps_thinking(self) -> dict[str, Any]:
        if self._past_thinking() == "kept":
            return {}
        return {
            name: value
            for name, value in _KEEP_THINKING.items()
            if self._template.mentions(name) and self._past_thinking({name: value}) == "kept"
        }

    # What follows an assistant turn.

    def _suffix_of(self, role: str | None) -> _Suffix:
        roles = () if role is None else (role,)
        first = self._same_behind_every_history(roles)
        if role is None:
            return first
        self._require_opener(role)
        self._check_sequence((role, role), {role: first})
        return first

    def _same_behind_every_history(self, roles: Sequence[str]) -> _Suffix:
        """The suffix of ``roles``, the same behind every history that renders."""
        found: list[_Suffix] = []
        for tools in self._tool_sets:
            texts = list(self._tails("text", roles, tools))
            calls = list(self._tails("call", roles, tools))
            found.append(self._reconcile(roles, tools, texts, calls))
        plain = found[0]
        if any(other.junction != plain.junction for other in found):
            raise _Refused("what stands before the message depends on whether there are tools")
        return _Suffix(plain.junction, plain.text, any(other.text != plain.text for other in found))

    def _reconcile(
        self, roles: Sequence[str], tools: _Tools, texts: list[str | _Refused], calls: list[str | _Refused]
    ) -> _Suffix:
        after_text = [tail for tail in texts if isinstance(tail, str)]
        after_call = [tail for tail in calls if isinstance(tail, str)]
        if not after_text and not after_call:
            raise next(tail for tail in (*texts, *calls) if isinstance(tail, _Refused))
        # A result answers a call: what stands behind a plain text is no concern of it where the two differ.
        answers = roles[:1] == ("tool",) and bool(after_call)
        if after_text and not (answers and not _agree(after_text, after_call)):
            _require_equal(after_text)
            suffix = self._joined("text", roles, tools, after_text[0])
            # A call may end with a terminator of its own: the sampler has written it, so only the rest is needed.
            rest = suffix.text.removeprefix(suffix.junction.terminator) if self._end_has_control else suffix.text
            if not all(tail.endswith(rest) for tail in after_call):
                raise _Refused("what follows a call differs from what follows a text")
            return suffix
        _require_equal(after_call)
        return self._joined("call", roles, tools, after_call[0])

    def _joined(self, base: BaseKind, roles: Sequence[str], tools: _Tools, tail: str) -> _Suffix:
        lead = self._lead_of_call(tail) if base == "call" else ""
        place = self._codec.first_added(tail[len(lead) :])
        if place is None:
            raise _Refused("no control token separates the assistant turn from what follows, so there is no clean cut")
        position, token_id = place
        lead = tail[: len(lead) + position]
        if base == "text" and lead.strip():
            raise _Refused(f"ordinary text ({lead.strip()!r}) ends the assistant turn, so there is no clean cut")
        terminator = self._codec.added_text[token_id]
        rest = tail[len(lead) :]
        ids = self._codec.encode(rest)
        if ids[0] != token_id or not self._encodes_as_in_full(base, roles, tools, ids):
            raise _Refused("what follows the assistant turn encodes differently on its own than in its place")
        opens_next = not self._end_has_control
        return _Suffix(Junction(base, lead, terminator, token_id, opens_next), rest, reads_tools=False)

    def _encodes_as_in_full(self, base: BaseKind, roles: Sequence[str], tools: _Tools, ids: list[int]) -> bool:
        full = self._render([*base_conversation(base, _S), *_appended(roles)], generation=True, tools=tools)
        return self._codec.encode(full)[-len(ids) :] == ids

    def _lead_of_call(self, tail: str) -> str:
        """The text that closes a call, where a turn that ends with one is followed by ``tail``."""
        try:
            end = self._tail([_user(), _assistant("", calls=[tool_call(_S)])], (), generation=False)
        except (_Refused, InvalidRequest):
            end = None
        if end is not None and tail.startswith(end):
            if not self._end_has_control:
                return end
            if end.endswith(self._end):
                return end.removesuffix(self._end)
            last = _last_token(end, self._codec)
            if last is not None:
                return end[:last]
        place = self._codec.first_added(self._end)
        if place is not None:
            position = tail.find(self._codec.added_text[place[1]])
            if position >= 0:
                return tail[:position]
        raise _Refused("the template does not show where the text of a call ends")

    def _check_sequence(self, roles: tuple[str, ...], known: Mapping[str, _Suffix]) -> None:
        """Refuse a role whose rendering behind another one depends on history; a sequence that raises is no proof."""
        if any(role not in known for role in roles[:1]):
            return
        base = known[roles[0]].junction.base
        for tools in self._tool_sets:
            tails = [tail for tail in self._tails(base, roles, tools) if isinstance(tail, str)]
            if tails:
                try:
                    _require_equal(tails)
                except _Refused as error:
                    raise _Refused(f"in one request with {roles[0]}, {error}") from error

    def _require_opener(self, role: str) -> None:
        """Refuse a role behind which the template opens no turn to generate although its own turns have an opener."""
        place = self._codec.first_added(self._opener)
        if place is None:
            return
        appended = _appended((role,))
        for kind in ("text", "call"):
            history = base_conversation(kind, _S)
            try:
                with_opener = self._render([*history, *appended], generation=True)
                without = self._render([*history, *appended], generation=False)
            except InvalidRequest:
                continue
            if with_opener != without:
                return
            try:
                followed = self._render([*history, *appended, _assistant("qNextq")], generation=False)
            except InvalidRequest:
                followed = ""
            start, _, rest = followed.partition(without)
            between = rest.partition("qNextq")[0]
            if start or "qNextq" not in rest or self._codec.added_text[place[1]] in between:
                raise _Refused("no generation opener follows the message")

    # Rendering.

    def _tails(self, kind: BaseKind, roles: Sequence[str], tools: _Tools) -> Iterator[str | _Refused]:
        for history in _HISTORIES[kind]:
            try:
                yield self._tail(history, roles, generation=True, tools=tools)
            except _Refused as error:
                yield error
            except InvalidRequest as error:
                yield _Refused(str(error))

    def _tail(
        self,
        history: _Conversation,
        roles: Sequence[str],
        *,
        generation: bool,
        tools: _Tools = None,
    ) -> str:
        appended = _appended(roles)
        rendered = self._render([*history, *appended], generation=generation, tools=tools)
        try:
            return cut_after(rendered, _S, [message["content"] for message in appended])
        except ValueError as error:
            raise _Refused(str(error)) from error

    def _renders(self, conversation: _Conversation, *, tools: _Tools) -> bool:
        try:
            return _S in self._render(conversation, generation=False, tools=tools)
        except InvalidRequest:
            return False

    def _render(
        self,
        conversation: _Conversation,
        *,
        generation: bool,
        tools: _Tools = None,
        form: MessageForm | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        messages = normalize_messages(conversation, form or self._form)
        kwargs = {**self._kwargs, **(extra or {})}
        return self._template.render(messages, tools=tools, kwargs=kwargs, generation=generation)

    # Putting it together.

    def _profile(
        self, junctions: Mapping[str, _Suffix], refused: Mapping[str, str], again: _Suffix | str
    ) -> TemplateProfile:
        openers = {suffix.junction.terminator_id for suffix in junctions.values() if suffix.junction.opens_next}
        every = list(junctions.values()) if isinstance(again, str) else [*junctions.values(), again]
        # One token for all, and none that the template writes by itself: it closes turns, it does not open them.
        alternatives = {suffix.junction.terminator_id for suffix in every if suffix.junction.opens_next}
        opens_user = self._opens_first_user_turn(openers)
        if len(alternatives) == 1 and not opens_user:
            openers, alternatives = set(), set()
        fixed = {role: _with_opening(suffix.junction, bool(alternatives)) for role, suffix in junctions.items()}
        end_token = self._codec.first_added(self._end)
        stops = {
            *self._codec.eos_ids,
            *(junction.terminator_id for junction in fixed.values()),
            *(() if end_token is None else (end_token[1],)),
        }
        separator = ""
        if end_token is not None:
            separator = self._end[end_token[0] + len(self._codec.added_text[end_token[1]]) :]
        return TemplateProfile(
            form=self._form,
            tools=self._tools_form,
            suffix_reads_tools=any(suffix.reads_tools for suffix in every),
            junctions=fixed,
            refused=dict(refused),
            again=again if isinstance(again, str) else _with_opening(again.junction, bool(alternatives)),
            generation_opener=self._opener,
            separator=separator,
            stop_ids=frozenset(stops),
            replaceable_ids=frozenset(openers if len(alternatives) > 1 else ()),
            assistant_header=self._assistant_header(),
            thinking=self._thinking(stops),
            past_thinking=self._past_thinking(),
            keeps_thinking=self._keeps_thinking(),
            reads_clock=self._template.mentions("strftime_now"),
        )

    def _opens_first_user_turn(self, openers: Iterable[int]) -> bool:
        before = self._render([_user()], generation=False).partition(_USER_TEXT)[0]
        return any(self._codec.added_text[opener] in before for opener in openers)

    def _assistant_header(self) -> Header:
        after_user = self._tail_of_user([_assistant(_S)], generation=False).partition(_S)[0]
        prompt = self._tail_of_user([], generation=True)
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

    def _tail_of_user(self, following: _Conversation, *, generation: bool) -> str:
        return self._render([_user(), *following], generation=generation).partition(_USER_TEXT)[2]


def _common_prefix(left: str, right: str) -> str:
    size = min(len(left), len(right))
    return left[: next((i for i in range(size) if left[i] != right[i]), size)]


def _with_opening(junction: Junction, opens_next: bool) -> Junction:
    return replace(junction, opens_next=opens_next)


def _agree(texts: list[str], calls: list[str]) -> bool:
    return len(set(texts)) == 1 and all(tail.endswith(texts[0]) for tail in calls)


def _require_equal(tails: Sequence[str]) -> None:
    if len(set(tails)) > 1:
        raise _Refused("what is rendered for the message depends on the history before it")


def _last_token(text: str, codec: TextCodec) -> int | None:
    """Where the last control token of ``text`` starts."""
    found = _last_added(text, codec)
    return None if found is None else found[0]


def _last_added(text: str, codec: TextCodec) -> tuple[int, int] | None:
    """The last added token of ``text`` that is more than white space: (position in the text, id), or None."""
    places = [(text.rfind(token), i) for i in codec.encode(text) if (token := codec.added_text.get(i, "")).strip()]
    return max(places, default=None)


def _user(text: str = _USER_TEXT) -> Mapping[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str, *, reasoning: str | None = None, calls: _Tools = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _appended(roles: Sequence[str]) -> _Conversation:
    return [_message(role, f"qAppended{index}q") for index, role in enumerate(roles)]


def _message(role: str, text: str) -> Mapping[str, Any]:
    message = {"role": role, "content": text}
    if role == "tool":
        message |= {"tool_call_id": CALL_ID, "name": "lookup"}
    return message


def _one_text_turn() -> _Conversation:
    return [_user(), _assistant(_S)]


_SYSTEM: Final[Mapping[str, Any]] = {"role": "system", "content": "qSystemTextq"}
_EARLIER_CALL: Final = (
    _assistant("", calls=[tool_call("qEarlierq", name="earlier", call_id="call00000")]),
    {"role": "tool", "content": "qResultq", "tool_call_id": "call00000", "name": "earlier"},
)
_HISTORIES: Final[Mapping[BaseKind, Sequence[_Conversation]]] = {
    "text": (
        _one_text_turn(),
        [_user(), _assistant(_S, reasoning="qThoughtq")],
        [_SYSTEM, _user(), _assistant(_S)],
        [_user("qBeforeq"), _assistant("qEarlierq"), _user(), _assistant(_S)],
        [_user("qBeforeq"), _assistant("qEarlierq", reasoning="qThoughtq"), _user(), _assistant(_S, reasoning="qq")],
        [_user(), *_EARLIER_CALL, _assistant(_S)],
        [_SYSTEM, _user("qBeforeq"), *_EARLIER_CALL, _assistant("qEarlierq"), _user(), _assistant(_S)],
    ),
    "call": (
        [_user(), _assistant("", calls=[tool_call(_S)])],
        [_user(), _assistant("qAloudq", reasoning="qThoughtq", calls=[tool_call(_S)])],
        [_SYSTEM, _user(), _assistant("", calls=[tool_call(_S)])],
        # The same call id with another name: a template that looks the name up writes another suffix.
        [_user(), _assistant("", calls=[tool_call(_S, name="other")])],
        [_user("qBeforeq"), _assistant("qEarlierq"), _user(), _assistant("", calls=[tool_call(_S)])],
        [_user(), _assistant("", calls=[tool_call("qEarlierq", call_id="call00000"), tool_call(_S)])],
        [_user(), *_EARLIER_CALL, _assistant("", calls=[tool_call(_S)])],
    ),
}
