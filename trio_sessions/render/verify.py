"""Check a renderer against the template it renders: a matrix of conversations, played turn by turn.

Every conversation is played as a session would be: the prompt is rendered once, a turn is "sampled" in another
segmentation than the template's text would get, and what follows is asked of ``Renderer.extend``. The template's own
rendering of the whole conversation is the measure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.render.base import Message, TemplateKwargs
from trio_sessions.render.profile import Junction, TemplateProfile
from trio_sessions.render.standin import kind_of
from trio_sessions.render.template import TemplateRenderer

__all__ = ["CaseReport", "Outcome", "VerifyReport", "verify_renderer"]

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]
_Ending: TypeAlias = Literal["stop", "cut", "other stop"]

# How many ids a report shows on either side of a difference.
_WINDOW: Final = 4


@dataclass(frozen=True, slots=True)
class CaseReport:
    """What came of one conversation.

    Attributes:
        name: what the conversation is about.
        outcome: ``skipped`` where the template itself, or a refused role, leaves nothing to check.
        turns: how many sampled turns were played.
        detail: the first difference of a failure, the reason of a skip, or what is worth knowing of a pass.
    """

    name: str
    outcome: Outcome
    turns: int
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-like values."""
        return {"name": self.name, "outcome": self.outcome, "turns": self.turns, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What came of the matrix; ``str()`` of it is one line a case.

    Attributes:
        cases: in the order in which they were played.
    """

    cases: tuple[CaseReport, ...]

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing failed."""
        return self.count("failed") == 0 and self.count("passed") > 0

    def count(self, outcome: Outcome) -> int:
        """How many cases came out as ``outcome``."""
        return sum(case.outcome == outcome for case in self.cases)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-like values."""
        return {"passed": self.passed, "cases": [case.to_json() for case in self.cases]}

    def __str__(self) -> str:
        lines = [f"{case.outcome:<8}{case.name}" + (f": {case.detail}" if case.detail else "") for case in self.cases]
        counts = ", ".join(f"{self.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
        return "\n".join([*lines, counts])


def verify_renderer(renderer: TemplateRenderer, *, seed: int = 0) -> VerifyReport:
    """Play the matrix of conversations with ``renderer``.

    For every junction of every conversation:

    - the next prompt starts with what is stored, except for the one position that ``max_trim_tokens`` declares;
    - one terminator closes the turn, the sampled one or a synthetic one;
    - what follows it is, id by id, what the template's own rendering of the whole conversation ends with, and where
      that rendering starts with the rendering of its history nothing else stands between the two.

    At the end the comparator must find nothing but sampled text to differ, if the template never rewrote history.

    Args:
        renderer: what to check; it is only called.
        seed: of how the sampled turns are segmented.
    """
    return VerifyReport(tuple(_report(renderer, case, random.Random(seed)) for case in _cases(renderer)))  # noqa: S311


@dataclass(frozen=True, slots=True)
class _Step:
    """A sampled turn, how it ended, and what the client sends next (nothing after the last one)."""

    assistant: Message
    appended: Sequence[Message] = ()
    ending: _Ending = "stop"
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """A conversation: what the client sends first, and the turns; the last one is followed by nothing."""

    name: str
    first: Sequence[Message]
    steps: Sequence[_Step]
    tools: Sequence[Any] | None = None
    kwargs: TemplateKwargs = field(default_factory=dict)


class _Failed(Exception):
    """A check failed; the text shows the first difference."""


class _Skipped(Exception):
    """There is nothing to check; the text says why."""


def _report(renderer: TemplateRenderer, case: _Case, rng: random.Random) -> CaseReport:
    outcome: Outcome = "passed"
    try:
        detail = _Play(renderer, case, rng).run()
    except _Skipped as reason:
        outcome, detail = "skipped", str(reason)
    except (_Failed, TokenizationFailed) as difference:
        outcome, detail = "failed", str(difference)
    return CaseReport(case.name, outcome, len(case.steps), detail)


class _Play:
    """One conversation being played."""

    def __init__(self, renderer: TemplateRenderer, case: _Case, rng: random.Random) -> None:
        self._renderer = renderer
        self._case = case
        self._rng = rng
        try:
            self._kwargs = renderer.effective_kwargs(case.kwargs)
        except InvalidRequest as error:
            # The family pins something else.
            raise _Skipped(str(error)) from error
        self._messages = list(case.first)
        self._ids: list[int] = []
        self._sampled: list[bool] = []
        # Whether the template, too, has only ever added to what it wrote before.
        self._append_only = True
        self._same_openers = True
        self._remarks: list[str] = []

    def run(self) -> str:
        """Play it; a remark on the result.

        Raises:
            _Failed: a check failed.
            _Skipped: the template refuses the conversation.
        """
        try:
            self._profile = self._renderer.profile_under(self._kwargs)
            self._add(self._render(self._messages), sampled=False)
        except InvalidRequest as error:
            raise _Skipped(str(error)) from error
        for position, step in enumerate(self._case.steps):
            try:
                payload_end = self._sample(step)
            except InvalidRequest as error:
                raise _Skipped(str(error)) from error
            if position < len(self._case.steps) - 1 or step.appended:
                self._follow(step, payload_end)
            else:
                self._messages.append(step.assistant)
        return "; ".join(dict.fromkeys(filter(None, [self._compare(), *self._remarks])))

    def _sample(self, step: _Step) -> int:
        """Add a turn to the ids as a sampler may have spelled it; where its payload ends."""
        payload, stop = self._spoken(step)
        spelled = self._respell(payload)
        if step.ending == "cut":
            spelled = spelled[: max(1, len(spelled) // 2)]
            # Not at a stop, which may stand inside of a turn.
            while len(spelled) > 1 and spelled[-1] in self._profile.stop_ids:
                spelled.pop()
        self._add(spelled, sampled=True)
        end = len(self._ids)
        if step.ending != "cut":
            self._add([stop if step.stop is None else step.stop], sampled=True)
        return end

    def _spoken(self, step: _Step) -> tuple[list[int], int]:
        """What a model has to sample for the template to render ``step.assistant`` as it does, and how it stops."""
        terminator = self._terminator(step)
        prompt_ids = self._render(self._messages)
        prompt = self._text(prompt_ids)
        turn = [*self._messages, step.assistant]
        refusal: InvalidRequest | None = None
        # Some templates want every call answered, and cannot end with one.
        for following in ((), step.appended):
            try:
                whole_ids = self._canonical([*turn, *following])
            except InvalidRequest as error:
                refusal = error
                continue
            whole = self._text(whole_ids)
            shared = _shared(prompt, whole)
            # An opener may say more than the template writes for a finished turn, such as a mark that thinking begins.
            self._same_openers &= shared == len(prompt)
            begun = self._begun()
            self._append_only &= whole.startswith(begun)
            if whole.startswith(begun) and shared < len(begun):
                raise _Failed(
                    f"the prompt differs from the template's own rendering at {begun[shared - 20 : shared + 20]!r}"
                )
            # On its own the same text may get other ids: that of a word's start, say.
            as_written = whole_ids[: len(prompt_ids)] == prompt_ids
            ids = whole_ids[len(prompt_ids) :] if as_written else self._renderer.encode(whole[shared:])
            position = self._end_of_turn(ids, followed=bool(following))
            # An opener behind the turn is the stop of a model that was trained to write it.
            return ids[:position], terminator if following or position == len(ids) else ids[position]
        raise _Skipped(str(refusal)) from refusal

    def _begun(self) -> str:
        """The conversation so far as the template writes it, without a mark that nothing follows."""
        ids = self._canonical(self._messages)
        return self._text(ids[:-1] if ids and ids[-1] in self._profile.alternate_ids else ids)

    def _end_of_turn(self, ids: Sequence[int], *, followed: bool) -> int:
        """Where the stop stands that ends a turn; their number where there is none.

        A stop id inside a turn is part of what was said; the last ones of a template may be more than a model writes.
        """
        if followed:
            return next((at for at, token_id in enumerate(ids) if token_id in self._profile.stop_ids), len(ids))
        start = len(ids)
        while start and self._is_end(ids[start - 1]):
            start -= 1
        last = [at for at in range(start, len(ids)) if ids[at] in self._profile.stop_ids]
        known = [at for at in last if ids[at] in self._renderer.eos_ids]
        return next(iter(known or last), len(ids))

    def _is_end(self, token_id: int) -> bool:
        return token_id in self._renderer.control_ids or not self._text([token_id]).strip()

    def _respell(self, ids: Sequence[int]) -> list[int]:
        """Other ids for the same text; added tokens stay, since a model samples those whole."""
        spelled: list[int] = []
        for token_id in ids:
            pairs = self._renderer.split_token(token_id) if self._rng.random() < 0.7 else ()
            spelled.extend(self._rng.choice(pairs) if pairs else (token_id,))
        return spelled if self._text(spelled) == self._text(ids) else list(ids)

    def _terminator(self, step: _Step) -> int:
        if step.appended:
            self._junction(step)
        # A model that has said what it had to say stops as it does before a user's message.
        role = step.appended[0]["role"] if step.appended else "user"
        roles = self._profile.roles
        junction = roles[role if role in roles else min(roles)].behind(kind_of(step.assistant))
        if isinstance(junction, str):
            raise _Skipped(f"role {role} cannot follow this turn: {junction}")
        return junction.terminator_id

    def _junction(self, step: _Step) -> Junction:
        for message in step.appended:
            role = message["role"]
            if role not in self._profile.roles:
                raise _Skipped(f"role {role} cannot be appended: {self._profile.refused.get(role, 'unknown')}")
        joined = self._profile.roles[step.appended[0]["role"]] if step.appended else self._profile.again
        junction = joined if isinstance(joined, str) else joined.behind(kind_of(step.assistant))
        if isinstance(junction, str):
            raise _Skipped(f"nothing can be joined to this turn: {junction}")
        return junction

    def _follow(self, step: _Step, payload_end: int) -> None:
        """Extend the ids by what follows a turn, and check the junction."""
        junction = self._junction(step)
        before = [*self._messages, step.assistant]
        after = [*before, *step.appended]
        full: list[int] | None = None
        refusal: InvalidRequest | None = None
        try:
            full = self._render(after)
        except InvalidRequest as error:
            refusal = error
        stored = as_token_ids(self._ids)
        try:
            extension = self._renderer.extend(
                stored,
                stored_messages=before,
                appended=step.appended,
                tools=self._case.tools,
                kwargs=self._kwargs,
            )
        except InvalidRequest as error:
            if refusal is not None:
                raise _Skipped(str(refusal)) from error
            raise _Failed(f"the template renders the conversation, but it cannot be extended: {error}") from error

        size = len(stored)
        if not size - self._renderer.max_trim_tokens <= extension.keep <= size:
            raise _Failed(f"{size - extension.keep} stored ids are given up, {self._renderer.max_trim_tokens} declared")
        prompt = [*self._ids[: extension.keep], *extension.token_ids.tolist()]
        sampled_stop = self._ids[payload_end] if size > payload_end else None
        if extension.keep < size and (sampled_stop is None or prompt[payload_end : payload_end + 1] == [sampled_stop]):
            raise _Failed(f"a stored id is given up that is no stop to replace: {self._show([self._ids[-1]])}")
        if (extension.synthetic > 0) != (sampled_stop is None):
            raise _Failed(
                f"{extension.synthetic} ids close the turn although it ended with {self._show(self._ids[-1:])}"
            )
        closes = {*self._profile.stop_ids, junction.terminator_id}
        # A thought that was cut short is closed before the turn is.
        closed_at = payload_end + max(0, extension.synthetic - 1)
        if len(prompt) <= closed_at or prompt[closed_at] not in closes:
            raise _Failed(f"no terminator closes the turn: {self._show(prompt[payload_end : closed_at + _WINDOW])}")
        if full is not None:
            history = self._history(before)
            self._append_only &= history is not None and self._starts_with(after, history)
            said = str(step.assistant["content"]) if junction.base == "call" else ""
            self._check_suffix(history, full, prompt[closed_at:], junction, said)
        del self._sampled[extension.keep :]
        del self._ids[extension.keep :]
        self._add(extension.token_ids.tolist(), sampled=False)
        self._messages = after

    def _check_suffix(
        self, history: list[int] | None, full: list[int], actual: list[int], junction: Junction, said: str
    ) -> None:
        """Compare what follows a payload with the template's own rendering of the whole."""
        # Another stop that was sampled and kept stands for the terminator, unless that is an opener and still due.
        if junction.opens_next and actual[0] != junction.terminator_id:
            actual = actual[1:]
        known = history is not None and full[: len(history)] == history
        expected = full[len(history or ()) :] if known else full[-len(actual) :]
        if known and not junction.lead.strip():
            # The white space before a terminator that the template left out at the end of the history.
            lead = self._renderer.encode_within(junction.lead)
            expected = expected[len(lead) :] if lead and expected[: len(lead)] == lead else expected
        if actual[0] in junction.closers and actual[0] in expected:
            expected = expected[expected.index(actual[0]) :]
        if not junction.opens_next:
            if expected[0] in self._profile.stop_ids:
                expected = [actual[0], *expected[1:]]
            elif known and expected == actual[1:]:
                self._remarks.append("the template writes no terminator behind such a turn")
                return
        if actual == expected:
            return
        whole, ours = self._text(full), self._text(actual)
        if said and (whole.replace(said, "").endswith(ours) or ours + said in whole):
            self._remarks.append("the template writes the text of a turn behind its calls")
            return
        raise _Failed(self._difference(expected, actual))

    def _starts_with(self, messages: Sequence[Message], history: list[int]) -> bool:
        try:
            return self._canonical(messages)[: len(history)] == history
        except InvalidRequest:
            return False

    def _history(self, before: Sequence[Message]) -> list[int] | None:
        """The template's own ids of ``before`` up to the end of the last payload; None where it refuses them."""
        try:
            ids = self._canonical(before)
        except InvalidRequest:
            return None
        # A turn in which nothing was said is all control tokens, and so may be what stands before it.
        turn = _shared(self._render(self._messages), ids)
        return ids[: turn + self._end_of_turn(ids[turn:], followed=False)]

    def _compare(self) -> str:
        sampled = np.array(self._sampled, dtype=np.bool_)
        try:
            expected = as_token_ids(self._canonical(self._messages))
        except InvalidRequest:
            return "the template cannot end with this conversation"
        findings = self._renderer.compare(expected, as_token_ids(self._ids), sampled, kwargs=self._kwargs)
        kinds = ", ".join(sorted({finding.type for finding in findings}))
        if not self._append_only:
            return "the template rewrites history" + (f" ({kinds})" if kinds else "")
        # A turn that was cut short, or ended with another stop, may differ in its special tokens: that was sampled. So
        # may one that the template does not write as a turn.
        regular = self._same_openers and not self._remarks and all(step.ending == "stop" for step in self._case.steps)
        stops = {self._text([stop]) for stop in self._profile.stop_ids}
        for finding in findings:
            if finding.type == "special_token_type" and {finding.expected_text, finding.actual_text} <= stops:
                continue
            if finding.type == "non_assistant_text" or (regular and finding.type != "assistant_text"):
                raise _Failed(
                    f"{finding.type} in segment {finding.segment_index}: "
                    f"expected {finding.expected_text!r}, found {finding.actual_text!r}"
                )
        return kinds

    def _difference(self, expected: list[int], actual: list[int]) -> str:
        at = _shared(expected, actual)
        low, high = max(0, at - _WINDOW), at + _WINDOW
        return (
            f"what follows the turn differs at its id {at}: expected {self._show(expected[low:high])}, "
            f"found {self._show(actual[low:high])} (ids {low} to {high} of {len(expected)} and {len(actual)})"
        )

    def _show(self, ids: Sequence[int]) -> str:
        return f"{self._text(ids)!r} {list(ids)}"

    def _render(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = self._renderer.render(messages, tools=self._case.tools, kwargs=self._kwargs).tolist()
        return ids

    def _canonical(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = self._renderer.canonical(messages, tools=self._case.tools, kwargs=self._kwargs).tolist()
        return ids

    def _text(self, ids: Sequence[int]) -> str:
        return self._renderer.decode(as_token_ids(ids))

    def _add(self, ids: Sequence[int], *, sampled: bool) -> None:
        self._ids.extend(ids)
        self._sampled.extend([sampled] * len(ids))


def _shared(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many items two sequences share from their start on."""
    size = min(len(left), len(right))
    return next((i for i in range(size) if left[i] != right[i]), size)


# The matrix.

_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    }
    for name in ("search", "fetch")
]
# Marks, joined and right-to-left characters, both normal forms, a character outside the basic plane, odd white space.
_UNICODE: Final = "naïve cafe\u0301 日本語 שלום 🙂👩\u200d👧 \U0001d4b3 \u00a0\u200b\u2028 ﬁ\ttab  two\r\n\r\nend"


def _cases(renderer: TemplateRenderer) -> Iterator[_Case]:
    profile = renderer.profile
    ask, more, thanks = _user("What is in the box?"), _user("And beneath it?"), _user("Thank you.")
    say, again = _assistant("There is a small lamp."), _assistant("Nothing but dust, I think.")
    last = _Step(_assistant("You are welcome."))
    system = {"role": "system", "content": "Answer briefly."}
    call = _assistant("", _call("search", {"query": "lamp", "limit": 3}))
    result = _tool('{"found": ["brass lamp", "lampshade"]}')
    after_call = _Step(call, [result])

    yield _Case("user turns", [ask], [_Step(say, [more]), _Step(again, [thanks]), last])
    yield _Case("user turns behind a system message", [system, ask], [_Step(say, [more]), _Step(again, [thanks]), last])
    yield _Case("user turns with tools", [system, ask], [_Step(say, [more]), _Step(again, [thanks]), last], _TOOLS)
    yield _Case("turns that the client brought", [ask, say, more], [_Step(again, [thanks]), last])
    yield _Case("one call", [ask], [after_call, last], _TOOLS)
    yield _Case("one call, no tools declared", [ask], [after_call, last])
    yield _Case(
        "text and a call",
        [ask],
        [_Step(_assistant("I shall look.", _call("search", {"query": "box"})), [result]), last],
        _TOOLS,
    )
    both = _assistant("", _call("search", {"query": "box"}), _call("fetch", {"query": "lid", "limit": 1}, "call00002"))
    second = _tool("a lid", "call00002", "fetch")
    yield _Case("parallel calls", [ask], [_Step(both, [result, second]), last], _TOOLS)
    yield _Case(
        "rounds of calls and a new question",
        [system, ask],
        [
            after_call,
            _Step(_assistant("", _call("fetch", {"query": "lamp"}, "call00003")), [_tool("", "call00003", "fetch")]),
            _Step(say, [more]),
            _Step(both, [result, second]),
            last,
        ],
        _TOOLS,
    )
    yield _Case("a result and a user's message in one request", [ask], [_Step(call, [result, more]), last], _TOOLS)
    yield _Case("a user's message in answer to a call", [ask], [_Step(call, [more]), last], _TOOLS)
    yield _Case("arguments without keys", [ask], [_Step(_assistant("", _call("fetch", {})), [result]), last], _TOOLS)
    nested = {"query": _UNICODE, "limit": None, "deep": {"list": [1, 2.5, True, "x"], "empty": {}}}
    yield _Case("nested arguments", [ask], [_Step(_assistant("", _call("search", nested)), [result]), last], _TOOLS)
    for role in ("system", "developer"):
        note = {"role": role, "content": "Be even briefer."}
        yield _Case(f"a {role} message appended", [ask], [_Step(say, [note]), last])
        yield _Case(f"a {role} message and a user's appended", [ask], [_Step(say, [note, more]), last])

    thought = _assistant("A lamp.", reasoning="The box was\n\nopened before.")
    thoughtful_call = _assistant("", _call("search", {"query": "box"}), reasoning="I do not know yet.")
    yield _Case("reasoning", [ask], [_Step(thought, [more]), _Step(thought, [thanks]), last])
    yield _Case(
        "reasoning and calls",
        [ask],
        [_Step(thoughtful_call, [result]), _Step(thought, [more]), _Step(thoughtful_call, [result]), last],
        _TOOLS,
    )
    # A kwarg that the template does not mention changes nothing, so every known spelling is set.
    off = {"enable_thinking": False, "thinking": False}
    yield _Case("thinking switched off", [ask], [_Step(say, [more]), after_call, last], _TOOLS, off)
    on = {"enable_thinking": True, "thinking": True}
    yield _Case(
        "thinking switched on", [ask], [_Step(thought, [more]), _Step(thoughtful_call, [result]), last], _TOOLS, on
    )

    empty = _assistant("")
    yield _Case("empty content", [_user("")], [_Step(empty, [_user("")]), _Step(empty, [more]), last])
    yield _Case(
        "content of white space", [_user(" \n")], [_Step(say, [_user("\n\n ")]), _Step(say, [_user(" ")]), last]
    )
    yield _Case("an empty result", [ask], [_Step(call, [_tool("")]), last], _TOOLS)
    yield _Case("unicode", [_user(_UNICODE)], [_Step(_assistant(_UNICODE), [_user(_UNICODE)]), last])
    yield _Case("unicode in a result", [ask], [_Step(call, [_tool(_UNICODE)]), last], _TOOLS)
    controls = " ".join(
        (*_terminators(profile), "<think>", "</think>", "<tool_call>", "</tool_response>", "<s>", "[INST]")
    )
    yield _Case("control tokens in a user's text", [ask], [_Step(say, [_user(f"Explain {controls} please.")]), last])
    yield _Case("control tokens in a result", [ask], [_Step(call, [_tool(f"page: {controls}")]), last], _TOOLS)
    yield _Case("templates in content", [ask], [_Step(say, [_user("{{ 7 * 7 }} {% raw %} {# no #}")]), last])

    yield _Case("cut by length, then a user", [ask], [_Step(say, [more], "cut"), last])
    yield _Case("cut by length in a call, then a user", [ask], [_Step(call, [more], "cut"), last], _TOOLS)
    yield _Case("cut by length in a call, then a result", [ask], [_Step(call, [result], "cut"), last], _TOOLS)
    yield _Case("cut by length while thinking", [ask], [_Step(thought, [more], "cut"), last])
    for stop in sorted(profile.stop_ids):
        stopped = f"stopped by {renderer.decode(as_token_ids([stop]))}, then"
        yield _Case(f"{stopped} a user", [ask], [_Step(say, [more], "other stop", stop), last])
        yield _Case(f"{stopped} a result", [ask], [_Step(call, [result], "other stop", stop), last], _TOOLS)
    yield _Case("generated again on top", [ask], [_Step(say), last])


def _terminators(profile: TemplateProfile) -> list[str]:
    return sorted({junction.terminator for role in profile.roles.values() for junction in role.junctions.values()})


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, *calls: Mapping[str, Any], reasoning: str | None = None) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _call(name: str, arguments: Mapping[str, Any], call_id: str = "call00001") -> Mapping[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(text: str, call_id: str = "call00001", name: str = "search") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}
