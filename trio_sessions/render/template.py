"""A renderer for any chat template that passes the probe."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trio_sessions.core.boundary import BoundaryEvent, late_tool_results
from trio_sessions.core.compare import Mismatch, compare_token_ids
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import AppendRoleNotSupported, ConfigurationError, InvalidRequest, TokenizationFailed
from trio_sessions.render.base import Extension, Message, TemplateKwargs, TokenIds, Tools
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.conversation import ConversationTemplate
from trio_sessions.render.escape import ControlText, SpecialTokensPolicy, json_spelling
from trio_sessions.render.families import FAMILIES, Family
from trio_sessions.render.kwargs import complaint_about
from trio_sessions.render.messages import normalize_messages, text_weight
from trio_sessions.render.probe import probe_template
from trio_sessions.render.profile import Junction, Reach, TemplateProfile, Thinking
from trio_sessions.render.standin import base_conversation, kind_of, user_message, with_payload
from trio_sessions.render.suffix import cut_after, sentinel_for
from trio_sessions.render.tools import TOOL_FORMS, ToolsAs, engine_tools

__all__ = ["TemplateRenderer"]

# Clients toggle a kwarg or two; one that draws new values for ever must not fill the memory.
_MOST_PROFILES: Final = 32
# A probe takes as long as encoding about this many characters.
_PROBE_WEIGHT: Final = 200_000
# Stops that a template may write one behind the other.
_MOST_ENDS: Final = 3


class TemplateRenderer:
    """Implements ``Renderer`` with a chat template; history is encoded once, then only suffixes are.

    Kwargs can change what a template does, so a turn whose kwargs differ from the launch defaults is served by a
    profile of its own, probed when first needed and kept.
    """

    def __init__(
        self,
        template: ConversationTemplate,
        codec: TextCodec,
        *,
        family: Family = FAMILIES["auto"],
        defaults: TemplateKwargs | None = None,
        special_tokens: SpecialTokensPolicy = "escape",
        tools_as: ToolsAs = "sglang",
        notes: Sequence[str] = (),
    ) -> None:
        """Probe the template under the launch defaults.

        Args:
            template: renders text.
            codec: encodes it.
            family: what the model's family is known to need.
            defaults: launch defaults of the template kwargs.
            special_tokens: what to do with a client's text that spells a control token.
            tools_as: how tool definitions are rendered.
            notes: what a user should know of how this renderer was chosen, a sentence each.

        Raises:
            ConfigurationError: a default has a reserved name or contradicts the family, or nothing can be appended
                under this template.
        """
        self._template = template
        self._codec = codec
        self._family = family
        self._tool_forms = TOOL_FORMS[tools_as]
        self.notes = tuple(notes)
        self._control = ControlText(special_tokens, codec.added_text.values())
        self._launch = dict(defaults or {})
        try:
            effective = self.effective_kwargs({})
        except InvalidRequest as error:
            raise ConfigurationError(str(error)) from error
        self._profile = probe_template(template, codec, effective, tool_forms=self._tool_forms)
        self._profiles: OrderedDict[str, TemplateProfile | InvalidRequest] = OrderedDict()
        self._profiles_lock = threading.Lock()
        self._default_key = self._key(effective)

    @property
    def name(self) -> str:
        """See ``Renderer.name``."""
        return self._family.name

    @property
    def family(self) -> Family:
        """What is known of the model's family."""
        return self._family

    @property
    def template(self) -> ConversationTemplate:
        """What renders conversations as text."""
        return self._template

    @property
    def profile(self) -> TemplateProfile:
        """What the probe found under the launch defaults."""
        return self._profile

    @property
    def max_trim_tokens(self) -> int:
        """See ``Renderer.max_trim_tokens``."""
        return self._profile.max_trim_tokens

    def appendable_roles(self, kwargs: TemplateKwargs) -> frozenset[str]:
        """See ``Renderer.appendable_roles``."""
        return self.profile_under(kwargs).appendable_roles

    def effective_kwargs(self, requested: TemplateKwargs) -> dict[str, Any]:
        """See ``Renderer.effective_kwargs``; names that belong to the gateway are refused."""
        for kwargs in (self._launch, requested):
            complaint = complaint_about(kwargs, special_token_names=self._template.special_token_names)
            if complaint is not None:
                raise InvalidRequest(complaint)
        return self._family.effective(self._launch, requested)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """See ``Renderer.render``."""
        return self._whole(messages, tools=tools, kwargs=kwargs, now=now, generation=True)

    def canonical(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """See ``Renderer.canonical``."""
        return self._whole(messages, tools=tools, kwargs=kwargs, now=now, generation=False)

    def extend(
        self,
        stored_ids: TokenIds,
        *,
        stored_messages: Sequence[Message],
        appended: Sequence[Message],
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> Extension:
        """See ``Renderer.extend``; of ``stored_messages`` no more is rendered than the appended roles look at."""
        profile = self.profile_under(kwargs)
        seam = _seam(profile, stored_messages, appended)
        junction = seam.junction
        suffix, mark = self._suffix(profile, seam, stored_messages, appended, tools, kwargs, now)
        ids = self._encode(suffix, mark)
        if not ids or ids[0] != junction.terminator_id:
            raise TokenizationFailed(
                f"the junction with the stored ids cannot be cut: {junction.terminator!r} does not encode to its own id"
            )
        extension = _join(stored_ids, ids, junction, profile)
        if not extension.synthetic:
            return extension
        # Without this a turn that was cut short would leave what follows inside its thought.
        thinking = profile.thinking
        close = self._codec.encode_within(thinking.close) if thinking and _is_thinking(stored_ids, thinking) else []
        closed = BoundaryEvent(
            "turn_closed",
            len(stored_ids),
            f"the turn before it had no stop id and was closed{' together with its open thought' if close else ''}",
        )
        return Extension(
            keep=extension.keep,
            token_ids=as_token_ids([*close, *ids]),
            synthetic=extension.synthetic + len(close),
            events=(closed,),
        )

    def compare(
        self, expected: TokenIds, actual: TokenIds, sampled: npt.NDArray[np.bool_], *, kwargs: TemplateKwargs
    ) -> list[Mismatch]:
        """See ``Renderer.compare``; what the template writes after the last terminator is not compared."""
        profile = self.profile_under(kwargs)
        return compare_token_ids(
            self.without_separator(expected, profile),
            actual,
            sampled,
            special_ids=self._codec.special_ids,
            stop_ids=profile.stop_ids,
            decode=self._codec.decode_behind,
            assistant_header=profile.assistant_header,
        )

    def decode(self, token_ids: TokenIds) -> str:
        """See ``Renderer.decode``."""
        return self._codec.decode(np.asarray(token_ids).tolist())

    def weight(
        self,
        messages: Sequence[Message],
        *,
        stored: Sequence[Message] = (),
        tools: Tools | None,
        kwargs: TemplateKwargs,
    ) -> int:
        """See ``Renderer.weight``; kwargs that change the template have it probed."""
        probe = 0 if self._is_probed(kwargs) else _PROBE_WEIGHT
        # Behind real turns they are rendered as well, though not encoded.
        history = text_weight(stored) if self._profile.looks_back else 0
        return (
            history
            + text_weight(messages)
            + text_weight(tool for tool in tools or () if isinstance(tool, Mapping))
            + probe
        )

    def _whole(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None,
        generation: bool,
    ) -> TokenIds:
        profile = self.profile_under(kwargs)
        escaped = self._control.treat(
            normalize_messages(messages, profile.form),
            engine_tools(tools, profile.tools),
            kwargs=self._requested(kwargs),
        )
        text = self._template.render(
            escaped.messages,
            tools=escaped.tools,
            kwargs={**kwargs, **escaped.kwargs},
            generation=generation,
            now=now,
        )
        # The template writes BOS itself where the model wants one, so the encoder must not add another.
        return as_token_ids(self._encode(text, escaped.mark))

    def _requested(self, kwargs: TemplateKwargs) -> dict[str, Any]:
        """Effective kwargs that are a request's; those of the launch are the operator's own text."""
        missing = object()
        return {name: value for name, value in kwargs.items() if self._launch.get(name, missing) != value}

    def _encode(self, text: str, mark: str | None) -> list[int]:
        if mark is None:
            return self._codec.encode(text)
        return self._codec.encode_marked(text.replace(json_spelling(mark), mark), mark)

    def _suffix(
        self,
        profile: TemplateProfile,
        seam: _Seam,
        stored: Sequence[Message],
        appended: Sequence[Message],
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None,
    ) -> tuple[str, str | None]:
        """What the template writes from the terminator on, and the mark that is in it."""
        definitions = engine_tools(tools, profile.tools)
        before = seam.history(stored)
        escaped = self._control.treat(
            normalize_messages([*before, *appended], profile.form, first_index=len(stored) - len(before)),
            definitions if profile.suffix_reads_tools else None,
            kwargs=self._requested(kwargs),
            first_index=len(stored) - len(before),
        )
        sentinel = sentinel_for(escaped.messages, escaped.tools, kwargs)
        following = escaped.messages[len(before) :]
        if before:
            *earlier, last = escaped.messages[: len(before)]
            bases: Iterator[list[Message]] = (
                [*earlier, ending] for ending in with_payload(last, seam.junction.base, sentinel)
            )
        else:
            bases = iter((base_conversation(seam.junction.base, sentinel),))
        refusal = ValueError("it writes no such turn")
        for base in bases:
            rendered = self._template.render(
                [*normalize_messages(base, profile.form), *following],
                tools=escaped.tools,
                kwargs={**kwargs, **escaped.kwargs},
                generation=True,
                now=now,
            )
            try:
                return _from_terminator(cut_after(rendered, sentinel), seam.junction), escaped.mark
            except ValueError as error:
                refusal = error
        raise InvalidRequest(f"the chat template cannot render the appended messages: {refusal}") from refusal

    def _is_probed(self, kwargs: TemplateKwargs) -> bool:
        key = self._key(kwargs)
        with self._profiles_lock:
            return key == self._default_key or key in self._profiles

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as it stands.

        Raises:
            InvalidRequest: the text holds what no encoding can express.
            TokenizationFailed: the tokenizer refused it.
        """
        return self._codec.encode(text)

    def encode_within(self, text: str) -> list[int]:
        """Ids of ``text`` behind ordinary text; see ``TextCodec.encode_within``."""
        return self._codec.encode_within(text)

    @property
    def control_ids(self) -> Collection[int]:
        """Ids of all added tokens, flagged special or not."""
        return self._codec.added_text.keys()

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that the tokenizer or the model's generation config names as ends of generation."""
        return self._codec.eos_ids

    def split_token(self, token_id: int) -> list[tuple[int, int]]:
        """Pairs of ids that spell what ``token_id`` spells; see ``TextCodec.split``."""
        return self._codec.split(token_id)

    def profile_under(self, kwargs: TemplateKwargs) -> TemplateProfile:
        """What the probe found under ``kwargs``; probed now if it was not before.

        Raises:
            InvalidRequest: the template cannot be used under these kwargs.
        """
        key = self._key(kwargs)
        if key == self._default_key:
            return self._profile
        with self._profiles_lock:
            known = self._profiles.get(key)
            if known is not None:
                self._profiles.move_to_end(key)
        if known is None:
            # Outside the lock: two threads may probe the same kwargs once each, with the same result.
            known = self._probe(kwargs)
            with self._profiles_lock:
                self._profiles[key] = known
                while len(self._profiles) > _MOST_PROFILES:
                    self._profiles.popitem(last=False)
        if isinstance(known, InvalidRequest):
            raise InvalidRequest(str(known))
        return known

    def _probe(self, kwargs: TemplateKwargs) -> TemplateProfile | InvalidRequest:
        try:
            profile = probe_template(self._template, self._codec, kwargs, tool_forms=self._tool_forms)
        except ConfigurationError as error:
            return InvalidRequest(f"chat_template_kwargs do not fit the chat template: {error}")
        if profile.max_trim_tokens > self.max_trim_tokens:
            return InvalidRequest(
                "chat_template_kwargs make the end of a turn ambiguous, which it is not under those of the launch; "
                "give them to --chat-template-kwargs, so that metadata.max_trim_tokens says so"
            )
        return profile

    def _key(self, kwargs: TemplateKwargs) -> str:
        # A kwarg that the template does not mention cannot matter, and must not cost a probe.
        mentioned = {name: value for name, value in kwargs.items() if self._template.mentions(name)}
        # Values are a client's and may be long; what is kept of them must not be.
        return sha256(json.dumps(mentioned, sort_keys=True, default=repr).encode()).hexdigest()

    def without_separator(self, ids: TokenIds, profile: TemplateProfile) -> TokenIds:
        """``ids`` without what the template writes after the terminator at their end."""
        if not profile.separator:
            return ids
        # Only behind a terminator: the same text may just as well be the end of what was said. What is behind it may
        # hold another.
        for end in reversed(np.flatnonzero(np.isin(ids, list(profile.stop_ids)))[-_MOST_ENDS:].tolist()):
            if ids[end + 1 :].tolist() == self._codec.encode_behind(int(ids[end]), profile.separator):
                return ids[: end + 1]
        return ids


@dataclass(frozen=True, slots=True)
class _Seam:
    """How appended messages are joined to a turn.

    Attributes:
        junction: of the first of them.
        reach: how much of the session is rendered with them, None for a stand-in.
    """

    junction: Junction
    reach: Reach | None = None

    def history(self, stored: Sequence[Message]) -> list[Message]:
        """The messages of the session to render with them, up to its last turn; none where a stand-in does."""
        match self.reach:
            case None:
                return []
            case "last turn":
                return [user_message(), stored[-1]]
            case "history":
                return list(stored)


def _seam(profile: TemplateProfile, stored: Sequence[Message], appended: Sequence[Message]) -> _Seam:
    for index, message in enumerate(appended, len(stored)):
        role = message["role"]
        if role not in profile.roles:
            reason = profile.refused.get(role, "the role is unknown")
            raise AppendRoleNotSupported(f"messages[{index}] has role {role!r}, which cannot be appended: {reason}")
    # A session always has a last turn; without one this is as good as any.
    kind = kind_of(stored[-1]) if stored else "text"
    if not appended:
        if isinstance(profile.again, str):
            raise InvalidRequest(f"the chat template cannot generate again after an assistant turn: {profile.again}")
        junction = profile.again.behind(kind)
        if isinstance(junction, str):
            raise InvalidRequest(f"the chat template cannot generate again after this assistant turn: {junction}")
        return _Seam(junction, profile.again.reach.get(junction.base))
    first = appended[0]["role"]
    junction = profile.roles[first].behind(kind)
    if isinstance(junction, str):
        raise InvalidRequest(f"messages[{len(stored)}] has role {first!r}, which cannot follow this turn: {junction}")
    reach = profile.reach_of((message["role"] for message in appended), junction.base)
    # What the template looks for stands further back than in the last turn, or there as well.
    if profile.looks_back and (late_tool_results(stored, appended, position=0) or _repeats_calls(stored)):
        reach = "history"
    return _Seam(junction, reach)


def _from_terminator(tail: str, junction: Junction) -> str:
    """What stands behind a payload from the terminator on.

    Raises:
        TokenizationFailed: the turn does not end as the probe found it to.
    """
    if tail.startswith(junction.lead + junction.terminator):
        return tail[len(junction.lead) :]
    # What closes a call may show its id.
    position = tail.find(junction.terminator)
    if junction.base == "call" and position >= 0 and junction.terminator not in junction.lead:
        return tail[position:]
    raise TokenizationFailed(
        "the junction with the stored ids cannot be cut: the chat template ends the assistant turn with "
        f"{tail[:40]!r} here and with {junction.lead + junction.terminator!r} elsewhere"
    )


def _repeats_calls(stored: Sequence[Message]) -> bool:
    """Whether the last turn has a call whose id was used before."""
    if not stored:
        return False
    # Ids are what an engine and a client sent: nothing says that they can be hashed.
    last = _call_ids(stored[-1])
    return bool(last) and any(call_id in last for message in stored[:-1] for call_id in _call_ids(message))


def _call_ids(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return []
    # No id and an empty one are as good as the same id.
    return [call.get("id") or None for call in calls if isinstance(call, Mapping)]


def _is_thinking(stored: TokenIds, thinking: Thinking) -> bool:
    """Whether the last turn of ``stored`` ends inside a thought."""
    turns = np.flatnonzero(stored == thinking.turn_id)
    turn = stored[int(turns[-1]) :] if len(turns) else stored
    opened = np.flatnonzero(turn == thinking.open_id)
    return len(opened) > 0 and not (turn[int(opened[-1]) :] == thinking.close_id).any()


def _join(stored: TokenIds, ids: Sequence[int], junction: Junction, profile: TemplateProfile) -> Extension:
    """Join a suffix, whose first id is the junction's terminator, to stored ids."""
    size = len(stored)
    last = int(stored[-1]) if size else None
    if last == junction.terminator_id:
        return Extension(keep=size, token_ids=as_token_ids(ids[1:]))
    if last in junction.closers:
        # It was sampled through more than the terminator.
        return Extension(keep=size, token_ids=as_token_ids(ids[ids.index(last) + 1 :]))
    if last in profile.replaceable_ids:
        replaced = BoundaryEvent(
            "stop_replaced", size - 1, f"the sampled stop id {last} opened another role and became {ids[0]}"
        )
        return Extension(keep=size - 1, token_ids=as_token_ids(ids), events=(replaced,))
    if last in profile.stop_ids:
        # Another stop id closes the turn; where ours is the opener of what follows as well, it is still due.
        detail = f"the turn before it ended with stop id {last}, where the template writes {ids[0]}"
        return Extension(
            keep=size,
            token_ids=as_token_ids(ids if junction.opens_next else ids[1:]),
            events=(BoundaryEvent("other_stop", size - 1, detail),),
        )
    return Extension(keep=size, token_ids=as_token_ids(ids), synthetic=1)
