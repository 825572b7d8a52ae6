"""The contract as a client sees it: requests as values, answers read into results or errors. No network in here.

Source of the rules: docs/wire.md.
"""

from __future__ import annotations

import json as stdlib_json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from trio_sessions.client.errors import (
    AssemblyFailed,
    AuthenticationFailed,
    PermissionRefused,
    RequestRefused,
    ServerError,
    SessionNotFound,
    StatusError,
    TruncatedGeneration,
    UnusableAnswer,
)
from trio_sessions.core import json
from trio_sessions.core.samples import SamplesReply, decode_samples

__all__ = [
    "Answer",
    "BaseUrls",
    "Call",
    "ChatCompletion",
    "Created",
    "Health",
    "SessionState",
    "base_urls",
    "chat",
    "create_session",
    "delete",
    "health",
    "read",
    "samples",
]

Result = TypeVar("Result")

# What the texts of the contract begin with; a status alone may as well come from the engine.
_NOT_FOUND: Final = "session not found: session_id="
_TRUNCATED: Final = "truncated generation cannot be extended"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        status: status code.
        headers: by lower-case name.
        body: the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A request, and how its answer is read.

    Attributes:
        method: of HTTP.
        path: below the gateway's URL.
        read: the result in an answer of status ``success``.
        success: the status of success.
        body: JSON, or None for no body.
        repeatable: whether a request that arrives twice does what one does.
        quick: whether the gateway answers it without asking the engine or assembling anything.
        gone_is_done: whether a session that is not found is what an earlier attempt was to bring about.
        assembles: whether a 422 is the gateway's word on samples.
    """

    method: str
    path: str
    read: Callable[[bytes], Result]
    success: int = 200
    body: bytes | None = None
    repeatable: bool = False
    quick: bool = False
    gone_is_done: bool = False
    assembles: bool = False

    def result(self, answer: Answer) -> Result:
        """The result in ``answer``.

        Raises:
            StatusError: the answer is an error; one of its subclasses where the contract has a meaning for it.
            UnusableAnswer: the status is that of success and the rest is not what the contract says.
        """
        if answer.status != self.success:
            raise _error(answer, assembling=self.assembles)
        try:
            return self.read(answer.body)
        except (ValueError, TypeError, LookupError) as error:
            place = f"{self.method} {self.path}"
            raise UnusableAnswer(
                f"the answer to {place} is not what was expected: {error}", body=answer.body
            ) from error


@dataclass(frozen=True, slots=True)
class Health:
    """What a gateway says of itself.

    Attributes:
        status: ``ok``.
        instance_id: names the process; another one after a restart, whose sessions are others too.
    """

    status: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class Created:
    """A new session.

    Attributes:
        session_id: its id.
        worker: URL of the worker of the gateway that has it, which is below it what the gateway is below its own; None
            if there is no other.
        token: opens the model routes of this session; None where the gateway has no keys.
    """

    session_id: str
    worker: str | None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The answer of a turn.

    Attributes:
        message: the assistant's message; append it whole to the messages of the next turn.
        finish_reason: why sampling ended.
        response_id: names the turn, as in the rewards of a request for samples.
        body: the answer whole.
    """

    message: dict[str, Any]
    finish_reason: str | None
    response_id: str | None
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a gateway has of a session.

    Attributes:
        session_id: its id.
        records: one for every turn.
        metadata: facts about the whole session.
    """

    session_id: str
    records: tuple[dict[str, Any], ...]
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BaseUrls:
    """Where agents find a session.

    Attributes:
        openai: base URL of clients of OpenAI's APIs, which has the version in it.
        anthropic: base URL of clients of Anthropic's API, which has not.
    """

    openai: str
    anthropic: str


def base_urls(gateway: str, session_id: str, *, agent: str | None = None) -> BaseUrls:
    """Where agents find a session.

    Args:
        gateway: URL of the gateway, or of the worker that has the session.
        session_id: the session.
        agent: a name that tells this agent from others of the session; None for an agent that is alone, or says itself
            who it is.

    Raises:
        ValueError: the name is empty or has a slash.
    """
    if agent is not None and (not agent or "/" in agent):
        raise ValueError(f"an agent's name is not empty and has no slash, got {agent!r}")
    below = "" if agent is None else f"/agents/{quote(agent, safe='')}"
    url = f"{gateway}{_path(session_id)}{below}"
    return BaseUrls(openai=f"{url}/v1", anthropic=url)


def health() -> Call[Health]:
    """Whether the gateway answers, and which it is."""
    return Call("GET", "/health", _read_health, repeatable=True, quick=True)


def create_session() -> Call[Created]:
    """A new session.

    Not repeatable: one that arrived unnoticed would be left behind.
    """
    return Call("POST", "/sessions", _read_created, quick=True)


def read(session_id: str) -> Call[SessionState]:
    """Records and metadata of a session."""
    return Call("GET", _path(session_id), _read_state, repeatable=True)


def delete(session_id: str) -> Call[None]:
    """The end of a session."""
    return Call("DELETE", _path(session_id), _read_nothing, success=204, repeatable=True, quick=True, gone_is_done=True)


def chat(session_id: str, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Call[ChatCompletion]:
    """One turn.

    Not repeatable: one that arrived unnoticed may be recorded, and the same messages would then be another turn.

    Raises:
        ValueError: ``fields`` asks for a stream, or something in the request is not JSON.
    """
    if fields.get("stream"):
        raise ValueError("chat() returns whole answers; for a stream use an OpenAI client with the session's base_url")
    body = _encode({"messages": list(messages), **fields})
    return Call("POST", f"{_path(session_id)}/v1/chat/completions", _read_completion, body=body)


def samples(
    session_id: str,
    *,
    max_seq_len: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    rewards: Mapping[str, float] | None = None,
) -> Call[SamplesReply]:
    """Training samples of a session. Repeatable: what the request says is kept nowhere.

    Raises:
        ValueError: something in the request is not JSON.
    """
    given = {"max_seq_len": max_seq_len, "metadata": metadata, "rewards": rewards}
    body = _encode({name: value for name, value in given.items() if value is not None})
    return Call("POST", f"{_path(session_id)}/samples", decode_samples, body=body, repeatable=True, assembles=True)


def _path(session_id: str) -> str:
    if not session_id:
        raise ValueError("the id of a session is not empty")
    return f"/sessions/{quote(session_id, safe='')}"


def _encode(value: Any) -> bytes:
    # The standard library refuses numbers that are not finite; others write null for them without a word.
    try:
        return stdlib_json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the request is not JSON: {error}") from error


def _read_health(body: bytes) -> Health:
    value = _object(body)
    return Health(status=_string(value, "status"), instance_id=_string(value, "session_server_instance_id"))


def _read_created(body: bytes) -> Created:
    value = _object(body)
    session_id = _string(value, "session_id")
    base_url = value.get("base_url")
    token = _string(value, "token") if "token" in value else None
    # What is not understood is left: the gateway itself can be asked for everything.
    if not isinstance(base_url, str) or not base_url.endswith(_path(session_id)):
        return Created(session_id, None, token)
    return Created(session_id, base_url.removesuffix(_path(session_id)), token)


def _read_state(body: bytes) -> SessionState:
    value = _object(body)
    records, metadata = value["records"], value["metadata"]
    if not isinstance(records, list) or not isinstance(metadata, dict):
        raise TypeError("records must be a list, metadata an object")
    return SessionState(_string(value, "session_id"), tuple(records), metadata)


def _read_completion(body: bytes) -> ChatCompletion:
    value = _object(body)
    choice = value["choices"][0]
    message = choice["message"]
    if not isinstance(message, dict):
        raise TypeError("the message must be an object")
    return ChatCompletion(message, choice.get("finish_reason"), value.get("id"), value)


def _read_nothing(_: bytes) -> None:
    return None


def _object(body: bytes) -> dict[str, Any]:
    value = json.decode(body)
    if not isinstance(value, dict):
        raise TypeError("the answer must be an object")
    return value


def _string(value: Mapping[str, Any], key: str) -> str:
    if not isinstance(value[key], str):
        raise TypeError(f"{key} must be a string")
    return str(value[key])


def _error(answer: Answer, *, assembling: bool) -> StatusError:
    text = _text(answer.body)
    if answer.status == 404 and text.startswith(_NOT_FOUND):
        kind: type[StatusError] = SessionNotFound
    elif answer.status == 401:
        kind = AuthenticationFailed
    elif answer.status == 403:
        kind = PermissionRefused
    elif answer.status == 409 and _TRUNCATED in text:
        kind = TruncatedGeneration
    elif answer.status == 422 and assembling:
        kind = AssemblyFailed
    elif 400 <= answer.status < 500:
        kind = RequestRefused
    elif answer.status >= 500:
        kind = ServerError
    else:
        kind = StatusError
    return kind(answer.status, text, body=answer.body, retry_after=_retry_after(answer.headers))


def _text(body: bytes) -> str:
    """What an error says: the gateway's ``error``, an engine's ``error.message`` or ``message``, or all of it."""
    try:
        value = json.decode(body)
    except json.InvalidJSON:
        return body.decode(errors="replace").strip()
    for keys in (("error",), ("error", "message"), ("message",)):
        found = value
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found
    return body.decode(errors="replace").strip()


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        # The header may also be a date; whoever sends one is no gateway.
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
