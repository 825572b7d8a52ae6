"""What to do with a client's text that spells a control token.

A chat template writes control tokens as text, and the encoder cannot tell them from the same text in a message. Here
the client's texts are looked through before the template sees them. To escape one, a mark is put behind its first
character; the template carries it along, and the encoder drops it once it has looked for control tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from trio_sessions.errors import InvalidRequest

__all__ = ["ControlText", "Escaped", "SpecialTokensPolicy", "json_spelling"]

SpecialTokensPolicy: TypeAlias = Literal["allow", "escape", "reject"]

_START: Final = 3
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
# Noncharacters: no text that means anything holds one, and no tokenizer's normaliser touches them.
_MARKS: Final = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


@dataclass(frozen=True, slots=True)
class Escaped:
    """Messages and tools that are safe to render.

    Attributes:
        messages: as given, with marks in them.
        tools: as given, with marks in them.
        kwargs: as given, with marks in them.
        mark: what the rendered text is to be encoded without; None where nothing had to be marked.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    kwargs: dict[str, Any]
    mark: str | None


class ControlText:
    """Finds and treats the texts of control tokens.

    Args:
        policy: ``allow`` leaves them, ``escape`` makes them ordinary text, ``reject`` refuses the request.
        tokens: texts of all added tokens, flagged special or not. White space is no control token, and one character
            cannot be cut; both stay.
    """

    def __init__(self, policy: SpecialTokensPolicy, tokens: Iterable[str]) -> None:
        self._policy = policy
        control = sorted((t for t in tokens if len(t) > 1 and t.strip()), key=len, reverse=True)
        # A vocabulary may have hundreds of them, most of which start alike.
        self._by_start: dict[str, list[str]] = {}
        for token in control:
            self._by_start.setdefault(token[:_START], []).append(token)
        self._all = "\0".join(control)

    def treat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        first_index: int = 0,
    ) -> Escaped:
        """What a client sent, under the policy; the arguments are not changed.

        Covers every text of a message but an assistant's own (its content and reasoning were sampled, or stand for
        what would be), all tool definitions, tool calls, and template kwargs. A template may put a token together from
        its own text and a role or the name of an argument; those are marked where it could.

        Args:
            messages: normalised for the template.
            tools: likewise.
            kwargs: template kwargs of the request.
            first_index: of the first message in the conversation, for the error's text.

        Raises:
            InvalidRequest: the policy is ``reject`` and there is one; the text names the token and the place. Or the
                texts hold every possible mark.
        """
        plain = Escaped(
            [dict(message) for message in messages], None if tools is None else list(tools), dict(kwargs or {}), None
        )
        if self._policy == "allow" or not self._by_start:
            return plain
        try:
            found = next(iter(self._find(plain, first_index)), None)
            composable = any(self._is_part(text) for message in plain.messages for text in _glued(message))
        except RecursionError as error:
            raise InvalidRequest("the messages or tools are nested too deeply") from error
        if found is None and not composable:
            return plain
        if found is not None and self._policy == "reject":
            raise InvalidRequest(
                f"{found.place} spells the control token {found.token!r} (--special-tokens-in-content reject)"
            )
        mark = _unused_mark(plain)
        return Escaped(
            messages=[self._marked_message(message, mark) for message in plain.messages],
            tools=None if plain.tools is None else [self._marked(tool, mark) for tool in plain.tools],
            kwargs=self._marked(plain.kwargs, mark),
            mark=mark,
        )

    def _find(self, escaped: Escaped, first_index: int) -> Iterable[_Found]:
        places: list[tuple[str, Any]] = [
            (f"messages[{i}]", _covered(message)) for i, message in enumerate(escaped.messages, first_index)
        ]
        places += [("tools", escaped.tools), ("chat_template_kwargs", escaped.kwargs)]
        for place, value in places:
            for text in _texts(value):
                found = self._tokens_in(text)
                if found:
                    yield _Found(place, min(found, key=text.find))

    def _tokens_in(self, text: str) -> list[str]:
        """Control tokens that ``text`` spells, longer ones first.

        Many short searches instead of one for all of them: no other thread runs while one is under way.
        """
        return [token for start, tokens in self._by_start.items() if start in text for token in tokens if token in text]

    def _is_part(self, text: str) -> bool:
        """Whether a control token goes on before or behind ``text``."""
        return len(text) > 1 and text in self._all

    def _marked_message(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        marked = {**message, **self._marked(_covered(message), mark)}
        if message.get("role") not in _ROLES:
            marked["role"] = self._marked_part(marked.get("role"), mark)
        if "tool_calls" in marked:
            marked["tool_calls"] = [self._marked_call(call, mark) for call in marked["tool_calls"]]
        return marked

    def _marked_call(self, call: Any, mark: str) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), Mapping):
            return call
        named = {self._marked_part(name, mark): value for name, value in arguments.items()}
        return {**call, "function": {**function, "arguments": named}}

    def _marked_part(self, text: Any, mark: str) -> Any:
        return f"{text[0]}{mark}{text[1:]}" if isinstance(text, str) and self._is_part(text) else text

    def _marked(self, value: Any, mark: str) -> Any:
        match value:
            case str() as text:
                # Where two overlap the mark in one of them may break the other as well, which is just as good.
                for token in self._tokens_in(text):
                    # More than once where a token overlaps itself.
                    while token in text:
                        text = text.replace(token, f"{token[0]}{mark}{token[1:]}")
                return text
            case Mapping() as mapping:
                return {self._marked(key, mark): self._marked(item, mark) for key, item in mapping.items()}
            case list() | tuple() as items:
                return [self._marked(item, mark) for item in items]
            case _:
                return value


def json_spelling(mark: str) -> str:
    """A mark as JSON in ASCII spells it."""
    return f"\\u{ord(mark):04x}"


@dataclass(frozen=True, slots=True)
class _Found:
    place: str
    token: str


def _covered(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    # A template compares the known roles with its own words; any other is a client's text.
    kept = ("role",) if role in _ROLES else ()
    if role == "assistant":
        kept = (*kept, "content", "reasoning_content", "reasoning")
    return {key: value for key, value in message.items() if key not in kept}


def _glued(message: Mapping[str, Any]) -> Iterable[str]:
    """Short texts of a client that templates write right behind or before text of their own."""
    if message.get("role") not in _ROLES:
        yield str(message.get("role"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, Mapping):
            yield from (name for name in arguments if isinstance(name, str))


def _texts(value: Any) -> Iterable[str]:
    match value:
        case str() as text:
            yield text
        case Mapping() as mapping:
            for key, item in mapping.items():
                yield from _texts(key)
                yield from _texts(item)
        case list() | tuple() as items:
            for item in items:
                yield from _texts(item)


def _unused_mark(escaped: Escaped) -> str:
    texts = list(_texts([escaped.messages, escaped.tools, escaped.kwargs]))
    used = {character for text in texts if not text.isascii() for character in text}
    for mark in _MARKS:
        # Nor as JSON spells it: a template that writes ASCII only does so.
        if mark not in used and not any(json_spelling(mark) in text for text in texts):
            return mark
    raise InvalidRequest("the messages hold all 32 noncharacters from U+FDD0, of which one is needed as a mark")
