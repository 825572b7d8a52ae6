"""What a linear session must be, said with plain lists; it shares no code with the package.

The chat format is that of the toy renderer: ``<256>``, role, line feed, content, ``<257>``, one id a byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

START, END = 256, 257
APPENDABLE = ["system", "tool", "user"]

Message = dict[str, Any]


class Refused(Exception):
    """The request must be refused, with this error and this text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass
class ModelTurn:
    """A committed turn: everything that stands after it, whole."""

    messages: list[Message]
    ids: list[int]
    prompt: list[int]
    origins: list[int]
    closers: int
    events: list[tuple[str, int]]
    request: dict[str, Any]
    response: dict[str, Any]
    request_timestamp: float
    timestamp: float
    compared: bool = False


@dataclass
class ModelPlan:
    """A turn at the engine."""

    keep: int
    discards: int
    version: int
    messages: list[Message]
    prompt: list[int]
    closers: int
    events: list[tuple[str, int]]
    request: dict[str, Any]


@dataclass(repr=False)
class ModelSession:
    """A session: its turns, how often the line of them changed, how many were replaced, whether it was deleted."""

    id: str
    turns: list[ModelTurn] = field(default_factory=list)
    version: int = 0
    replaced: int = 0
    closed: bool = False

    def __repr__(self) -> str:
        return f"<session {self.id[-1]}: {len(self.turns)} turns{' closed' * self.closed}>"

    @property
    def messages(self) -> list[Message]:
        return self.turns[-1].messages if self.turns else []

    @property
    def ids(self) -> list[int]:
        return self.turns[-1].ids if self.turns else []

    def prepare(self, body: dict[str, Any], *, broken: str = "") -> ModelPlan:
        """What a well-formed body is to become, while nothing can be written down if ``broken``; raises ``Refused``."""
        if self.closed:
            raise Refused("SessionNotFound", f"session not found: session_id={self.id}")
        request = body["messages"]
        keep = len(self.turns)
        while keep and not starts_with(request, self.turns[keep - 1].messages):
            keep -= 1
        discards = len(self.turns) - keep
        if discards > 1:
            raise Refused(
                "RollbackRefused",
                f"rollback failed: discard_count={discards} exceeds max_assistant_rollback_steps=1 "
                f"(stored has {len(self.messages)} messages, request has {len(request)} messages)",
            )
        kwargs = body.get("chat_template_kwargs") or {}
        if kwargs.get("pinned", True) is not True:
            raise Refused("InvalidRequest", "chat_template_kwargs pinned=False contradicts the pinned True")
        stored = self.turns[keep - 1].messages if keep else []
        stored_ids = self.turns[keep - 1].ids if keep else []
        appended = request[len(stored) :]
        for index, message in enumerate(appended, start=len(stored)):
            if keep and message["role"] not in APPENDABLE:
                because = _divergence(self.messages, request) if discards else ""
                if discards and broken:
                    raise Refused("StoreUnavailable", broken)
                if discards:
                    self.turns.pop()
                    self.version += 1
                raise Refused(
                    "AppendRoleNotSupported",
                    f"appended message at index {index} has role={message['role']!r}, allowed={APPENDABLE}"
                    f"{because}; the selected TITO fixed template does not support appending this role",
                )
        closers = [END] if keep and stored_ids[-1:] != [END] else []
        prompt = stored_ids + closers + spell(appended) + [START, *b"assistant\n"]
        sent = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
        if not kwargs:
            sent.pop("chat_template_kwargs", None)
        sent |= {"logprobs": True, "return_meta_info": True, "no_stop_trim": False, "input_ids": prompt}
        return ModelPlan(
            keep=keep,
            discards=discards,
            version=self.version,
            messages=stored + appended,
            prompt=prompt,
            closers=len(closers),
            events=self._events(self.turns[keep - 1], len(closers), appended, kwargs) if keep else [],
            request=sent,
        )

    def _events(
        self, before: ModelTurn, closers: int, appended: list[Message], kwargs: dict[str, Any]
    ) -> list[tuple[str, int]]:
        """What is to be declared before a turn, as kind and position. No turn of the model calls a tool."""
        end = len(before.ids)
        results = sum(message["role"] == "tool" for message in appended)
        return [
            *[("turn_closed", end)] * (closers > 0),
            *[("template_kwargs_changed", end)] * (before.request.get("chat_template_kwargs", {}) != kwargs),
            *[("late_tool_result", end + closers)] * results,
        ]

    def _origins(self, plan: ModelPlan, sampled: int) -> list[int]:
        """0 for an id of the template, 1 for a sampled one, 2 for a close."""
        before = self.turns[plan.keep - 1].origins if plan.keep else []
        rendered = len(plan.prompt) - len(before) - plan.closers
        return before + [2] * plan.closers + [0] * rendered + [1] * sampled

    def would_commit(self, plan: ModelPlan) -> bool:
        """Whether a usable answer would be recorded now."""
        return not self.closed and plan.version == self.version

    def commit(self, plan: ModelPlan, response: dict[str, Any], *, arrived: float, now: float) -> str:
        """Take a usable answer; returns the turn's outcome."""
        if self.closed:
            return "closed"
        if plan.version != self.version:
            return "stale"
        choice = response["choices"][0]
        sampled = [entry[1] for entry in choice["meta_info"]["output_token_logprobs"]]
        self.replaced += plan.discards
        self.turns[plan.keep :] = [
            ModelTurn(
                messages=[*plan.messages, choice["message"]],
                ids=plan.prompt + sampled,
                prompt=plan.prompt,
                origins=self._origins(plan, len(sampled)),
                closers=plan.closers,
                events=plan.events,
                request=plan.request,
                response=response,
                request_timestamp=arrived,
                timestamp=now,
            )
        ]
        self.version += 1
        return "committed"


def starts_with(request: list[Message], stored: list[Message]) -> bool:
    """Whether the request repeats all of ``stored``, as the strict matcher sees it."""
    return len(request) >= len(stored) and all(
        left["role"] == right["role"] and (left.get("content") or "") == (right.get("content") or "")
        for left, right in zip(stored, request, strict=False)
    )


def spell(messages: list[Message]) -> list[int]:
    """The ids of messages, without an opener."""
    ids: list[int] = []
    for message in messages:
        ids += [START, *f"{message['role']}\n{message.get('content') or ''}".encode(), END]
    return ids


def text_of(ids: list[int]) -> str:
    """The text of ids, without a closing end mark."""
    parts = {START: b"<start>", END: b"<end>"}
    spelled = b"".join(parts.get(id_, bytes([id_ % 256])) for id_ in ids)
    return spelled.decode(errors="replace").removesuffix("<end>")


def _divergence(stored: list[Message], request: list[Message]) -> str:
    """Where and in what a request that takes back the last turn leaves what is stored."""
    index = next((i for i in range(len(stored)) if not starts_with(request, stored[: i + 1])), len(stored))
    if index >= len(request):
        return f" (the request ends before stored message {index})"
    fields = [
        key for key in ("role", "content") if (stored[index].get(key) or None) != (request[index].get(key) or None)
    ]
    return f" (message {index} differs from the stored one in {', '.join(fields)})"
