"""A renderer for any chat template that passes the probe."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trio_sessions.core.compare import Mismatch, compare_token_ids
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import AppendRoleNotSupported, ConfigurationError, InvalidRequest, TokenizationFailed
from trio_sessions.render.base import Extension, Message, TemplateKwargs, TokenIds, Tools
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.escape import ControlText, SpecialTokensPolicy
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.kwargs import complaint_about
from trio_sessions.render.messages import normalize_messages, text_weight
from trio_sessions.render.probe import probe_template
from trio_sessions.render.profile import Junction, TemplateProfile, Thinking, base_conversation
from trio_sessions.render.suffix import cut_after, sentinel_for
from trio_sessions.render.tools import engine_tools

__all__ = ["TemplateRenderer"]

# Clients toggle a kwarg or two; one that draws new values for ever must not fill the memory.
_MOST_PROFILES: Final = 32
# A probe takes as long as encoding about this many characters.
_PROBE_WEIGHT: Final = 200_000


class TemplateRenderer:
    """Implements ``Renderer`` with a tokenizer's chat template; history is rendered once, then only suffixes are.

    Kwargs can change what a template does, so a turn whose kwargs differ from the launch defaults is served by a
    profile of its own, probed when first needed and kept.
    """

    def __init__(
        self,
        template: ChatTemplate,
        codec: TextCodec,
        *,
        name: str = "auto",
        defaults: TemplateKwargs | None = None,
        special_tokens: SpecialTokensPolicy = "escape",
    ) -> None:
        """Probe the template under the launch defaults.

        Args:
            template: renders text.
            codec: encodes it.
            name: family name for logs.
            defaults: launch defaults of the template kwargs.
            special_tokens: what to do with a client's text that spells a control token.

        Raises:
            ConfigurationError: a default has a reserved name, or nothing can be appended under this template.
        """
        self._template = template
        self._codec = codec
        self._name = name
        self._control = ControlText(special_tokens, codec.added_text.values())
        self._defaults = dict(defaults or {})
        complaint = complaint_about(self._defaults, special_token_names=template.special_token_names)
        if complaint is not None:
            raise ConfigurationError(complaint)
        self._profile = probe_template(template, codec, self._defaults)
        self._profiles: OrderedDict[str, TemplateProfile | InvalidRequest] = OrderedDict()
        self._profiles_lock = threading.Lock()
        self._default_key = self._key(self._defaults)

    @property
    def name(self) -> str:
        """See ``Renderer.name``."""
        return self._name

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
        complaint = complaint_about(requested, special_token_names=self._template.special_token_names)
        if complaint is not None:
            raise InvalidRequest(complaint)
        return {**self._defaults, **requested}

    def render(self, messages: Sequence[Message], *, tools: Tools | None, kwargs: TemplateKwargs) -> TokenIds:
        """See ``Renderer.render``."""
        return self._whole(messages, tools=tools, kwargs=kwargs, generation=True)

    def canonical(self, messages: Sequence[Message], *, tools: Tools | None, kwargs: TemplateKwargs) -> TokenIds:
        """See ``Renderer.canonical``."""
        return self._whole(messages, tools=tools, kwargs=kwargs, generation=False)

    def extend(
        self,
        stored_ids: TokenIds,
        *,
        stored_messages: Sequence[Message],
        appended: Sequence[Message],
        tools: Tools | None,
        kwargs: TemplateKwargs,
    ) -> Extension:
        """See ``Renderer.extend``; of ``stored_messages`` only the number is used, for error texts."""
        profile = self.profile_under(kwargs)
        junction = _junction(profile, appended, first_index=len(stored_messages))
        suffix, mark = self._suffix(profile, junction, appended, tools, kwargs, first_index=len(stored_messages))
        ids = self._encode(suffix, mark)
        if not ids or ids[0] != junction.terminator_id:
            raise TokenizationFailed(
                f"the junction with the stored ids cannot be cut: {junction.terminator!r} does not encode to its own id"
            )
        extension = _join(stored_ids, ids, junction, profile)
        if extension.synthetic and profile.thinking is not None and _is_thinking(stored_ids, profile.thinking):
            # Without this a turn that was cut short would leave what follows inside its thought.
            close = self._codec.encode_within(profile.thinking.close)
            return Extension(
                keep=extension.keep,
                token_ids=as_token_ids([*close, *extension.token_ids.tolist()]),
                synthetic=extension.synthetic + len(close),
            )
        return extension

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

    def weight(self, messages: Sequence[Message], *, tools: Tools | None, kwargs: TemplateKwargs) -> int:
        """See ``Renderer.weight``; kwargs that change the template have it probed."""
        probe = 0 if self._is_probed(kwargs) else _PROBE_WEIGHT
        return text_weight(messages) + text_weight(tool for tool in tools or () if isinstance(tool, Mapping)) + probe

    def _whole(
        self, messages: Sequence[Message], *, tools: Tools | None, kwargs: TemplateKwargs, generation: bool
    ) -> TokenIds:
        profile = self.profile_under(kwargs)
        escaped = self._control.treat(normalize_messages(messages, profile.form), engine_tools(tools, profile.tools))
        text = self._template.render(escaped.messages, tools=escaped.tools, kwargs=kwargs, generation=generation)
        # The template writes BOS itself where the model wants one, so the encoder must not add another.
        return as_token_ids(self._encode(text, escaped.mark))

    def _encode(self, text: str, mark: str | None) -> list[int]:
        return self._codec.encode(text) if mark is None else self._codec.encode_marked(text, mark)

    def _suffix(
        self,
        profile: TemplateProfile,
        junction: Junction,
        appended: Sequence[Message],
        tools: Tools | None,
        kwargs: TemplateKwargs,
        *,
        first_index: int,
    ) -> tuple[str, str | None]:
        """What the template writes from the terminator on, and the mark that is in it."""
        definitions = engine_tools(tools, profile.tools)
        escaped = self._control.treat(
            normalize_messages(appended, profile.form, first_index=first_index),
            definitions if profile.suffix_reads_tools else None,
            first_index=first_index,
        )
        sentinel = sentinel_for(escaped.messages, escaped.tools, kwargs)
        rendered = self._template.render(
            [*normalize_messages(base_conversation(junction.base, sentinel), profile.form), *escaped.messages],
            tools=escaped.tools,
            kwargs=kwargs,
            generation=True,
        )
        try:
            tail = cut_after(rendered, sentinel)
        except ValueError as error:
            raise InvalidRequest(f"the chat template cannot render the appended messages: {error}") from error
        if not tail.startswith(junction.lead + junction.terminator):
            raise TokenizationFailed(
                "the junction with the stored ids cannot be cut: the chat template ends the assistant turn with "
                f"{tail[:40]!r} here and with {junction.lead + junction.terminator!r} elsewhere"
            )
        return tail[len(junction.lead) :], escaped.mark

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
            profile = probe_template(self._template, self._codec, kwargs)
        except ConfigurationError as error:
            return InvalidRequest(f"chat_template_kwargs do not fit the chat template: {error}")
        if profile.max_trim_tokens > self.max_trim_tokens:
            return InvalidRequest(
                "chat_template_kwargs make the end of a turn ambiguous, which the launch does not allow"
            )
        return profile

    def _key(self, kwargs: TemplateKwargs) -> str:
        # A kwarg that the template does not mention cannot matter, and must not cost a probe.
        mentioned = {name: value for name, value in kwargs.items() if self._template.mentions(name)}
        # Values are a client's and may be long; what is kept of them must not be.
        return sha256(json.dumps(mentioned, sort_keys=True, default=repr).encode()).hexdigest()

    def without_separator(self, ids: TokenIds, profile: TemplateProfile) -> TokenIds:
        """``ids`` without what the template writes after the terminator at their end."""
        ends = np.flatnonzero(np.isin(ids, list(profile.stop_ids)))
        if not profile.separator or not len(ends):
            return ids
        # Only behind a terminator: the same text may just as well be the end of what was said.
        end = int(ends[-1]) + 1
        tail = self._codec.encode_behind(int(ids[end - 1]), profile.separator)
        return ids[:end] if ids[end:].tolist() == tail else ids


def _junction(profile: TemplateProfile, appended: Sequence[Message], *, first_index: int) -> Junction:
    for index, message in enumerate(appended, first_index):
        role = message["role"]
        if role not in profile.junctions:
            reason = profile.refused.get(role, "the role is unknown")
            raise AppendRoleNotSupported(f"messages[{index}] has role {role!r}, which cannot be appended: {reason}")
    if appended:
        return profile.junctions[appended[0]["role"]]
    if isinstance(profile.again, str):
        raise InvalidRequest(f"the chat template cannot generate again after an assistant turn: {profile.again}")
    return profile.again


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
    if junction.opens_next:
        if last in profile.replaceable_ids:
            return Extension(keep=size - 1, token_ids=as_token_ids(ids))
        # Another stop id closes the turn but opens nothing, so the opener is still due.
        return Extension(keep=size, token_ids=as_token_ids(ids), synthetic=int(last not in profile.stop_ids))
    if last in profile.stop_ids:
        return Extension(keep=size, token_ids=as_token_ids(ids[1:]))
    return Extension(keep=size, token_ids=as_token_ids(ids), synthetic=1)
