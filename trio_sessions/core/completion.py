"""From an engine's answer to the exact completion it holds, validated whole before anything is changed.

Source of the rules: the HTTP contract (docs/wire.md), "one chat turn"; the shapes are SGLang's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from trio_sessions.core import json
from trio_sessions.errors import BadEngineAnswer

__all__ = ["Completion", "decode_log_probs", "extract_completion"]

_T = TypeVar("_T")

_NO_META: Final = "meta_info and output_token_logprobs must be in choice (requires logprobs=True)"
_NO_CONTENT: Final = (
    "assistant message content is None: the engine must answer an empty string, not null, "
    "also when its tool call parser fails"
)
_MAX_TOKEN_ID: Final = 2**31 - 1


class Completion(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the engine sampled on one turn.

    Attributes:
        token_ids: int32, shape (n,); the stop token included when one was sampled.
        log_probs: float64, shape (n,); natural logarithm, finite.
        message: the assistant message as the engine parsed it; ``content`` is never None.
        finish_reason: the choice's finish reason, None when the engine gave none.
        response_id: the answer's ``id``, which the client sees too; None when the engine gave none.
    """

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float64]
    message: Mapping[str, Any]
    finish_reason: str | None
    response_id: str | None


class _Answer(msgspec.Struct, gc=False):
    choices: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Choice(msgspec.Struct, gc=False):
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    meta_info: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finish_reason: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _MetaInfo(msgspec.Struct, gc=False):
    output_token_logprobs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    completion_tokens: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """``[log prob, token id, ...]``; what follows is not ours."""

    log_prob: float
    token_id: int


class _UsualMetaInfo(msgspec.Struct, gc=False):
    output_token_logprobs: list[_Entry]
    completion_tokens: int


class _UsualChoice(msgspec.Struct, gc=False):
    meta_info: _UsualMetaInfo
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finish_reason: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _UsualAnswer(msgspec.Struct, gc=False):
    choices: list[_UsualChoice]
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    message: dict[str, Any]
    entries: list[_Entry]
    completion_tokens: int
    finish_reason: msgspec.Raw | msgspec.UnsetType
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType
    id: msgspec.Raw | msgspec.UnsetType


_usual_decoder = msgspec.json.Decoder(_UsualAnswer)
_answer_decoder = msgspec.json.Decoder(_Answer)
_choices_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_choice_decoder = msgspec.json.Decoder(_Choice)
_meta_decoder = msgspec.json.Decoder(_MetaInfo)
_entries_decoder = msgspec.json.Decoder(list[_Entry])
_count_decoder = msgspec.json.Decoder(int)
_ids_decoder = msgspec.json.Decoder(list[int])
_token_id_of = attrgetter("token_id")
_log_prob_of = attrgetter("log_prob")


def extract_completion(body: bytes, *, prompt: npt.NDArray[np.int32] | None = None) -> Completion:
    """The completion in a 200 answer of the engine's chat route.

    Args:
        body: the answer as it came.
        prompt: the ids that were sent, int32, shape (m,); where the engine echoes its prompt it must be these.

    Raises:
        BadEngineAnswer: not JSON, no choices, no meta info or log probs, null content, counts that disagree, log probs
            that are not finite numbers, ids that are not 31-bit integers, or another prompt than was sent.
    """
    parts = _parts_of_a_usual_answer(body) or _parts(body)
    if len(parts.entries) != parts.completion_tokens:
        raise BadEngineAnswer(
            f"invalid chat completion response: len(output_token_logprobs)={len(parts.entries)} "
            f"!= completion_tokens={parts.completion_tokens}"
        )
    token_ids = _token_ids(parts.entries)
    log_probs = _log_probs(parts.entries)
    if prompt is not None:
        _check_echo(parts.prompt_token_ids, prompt)

    finish_reason = _plain(parts.finish_reason)
    response_id = _plain(parts.id)
    return Completion(
        token_ids=token_ids,
        log_probs=log_probs,
        message=parts.message,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        response_id=response_id if isinstance(response_id, str) else None,
    )


def decode_log_probs(entries: msgspec.Raw) -> npt.NDArray[np.float64]:
    """The log probs in ``output_token_logprobs`` of an answer that ``extract_completion`` accepted.

    Args:
        entries: JSON.

    Returns:
        float64, shape (n,).

    Raises:
        msgspec.MsgspecError: it was no such answer.
    """
    return _log_probs(_entries_decoder.decode(entries))


def _parts_of_a_usual_answer(body: bytes) -> _Parts | None:
    """All in one pass over the bytes; None where something is not as it should be, which ``_parts`` then names."""
    try:
        answer = _usual_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not answer.choices:
        return None
    choice = answer.choices[0]
    return _Parts(
        message=_message(choice.message),
        entries=choice.meta_info.output_token_logprobs,
        completion_tokens=choice.meta_info.completion_tokens,
        finish_reason=choice.finish_reason,
        prompt_token_ids=choice.prompt_token_ids,
        id=answer.id,
    )


def _parts(body: bytes) -> _Parts:
    """Step by step, so that the first thing that is wrong is the one that is named."""
    try:
        answer = _answer_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEngineAnswer(f"invalid chat completion response: not a JSON object: {error}") from error
    choice = _first_choice(answer.choices)
    meta = _decode_or_none(_meta_decoder, choice.meta_info)
    if meta is None or _is_absent(meta.output_token_logprobs):
        raise BadEngineAnswer(_NO_META)
    message = _message(choice.message)
    entries = _entries(meta.output_token_logprobs)
    completion_tokens = _decode_or_none(_count_decoder, meta.completion_tokens)
    if completion_tokens is None:
        raise BadEngineAnswer("invalid chat completion response: completion_tokens must be an integer in meta_info")
    return _Parts(
        message=message,
        entries=entries,
        completion_tokens=completion_tokens,
        finish_reason=choice.finish_reason,
        prompt_token_ids=choice.prompt_token_ids,
        id=answer.id,
    )


def _first_choice(raw: msgspec.Raw | msgspec.UnsetType) -> _Choice:
    choices = _decode_or_none(_choices_decoder, raw)
    if not choices:
        raise BadEngineAnswer("invalid chat completion response: choices must be a list with at least one choice")
    choice = _decode_or_none(_choice_decoder, choices[0])
    if choice is None:
        raise BadEngineAnswer("invalid chat completion response: choices[0] must be an object")
    return choice


def _message(raw: msgspec.Raw | msgspec.UnsetType) -> dict[str, Any]:
    message = _plain(raw)
    if message is None or (isinstance(message, dict) and message.get("content") is None):
        raise BadEngineAnswer(_NO_CONTENT)
    if not isinstance(message, dict):
        raise BadEngineAnswer("invalid chat completion response: message must be an object")
    # What is stored has to render, and the client has to be able to send it back.
    if message.setdefault("role", "assistant") != "assistant":
        raise BadEngineAnswer("invalid chat completion response: message.role must be assistant")
    if not isinstance(message["content"], str | list):
        raise BadEngineAnswer("invalid chat completion response: message.content must be a string or a list of parts")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise BadEngineAnswer("invalid chat completion response: message.tool_calls must be a list of objects")
    return message


def _entries(raw: msgspec.Raw | msgspec.UnsetType) -> list[_Entry]:
    if isinstance(raw, msgspec.UnsetType):
        raise BadEngineAnswer(_NO_META)
    try:
        return _entries_decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise BadEngineAnswer(
            "invalid chat completion response: output_token_logprobs must be a list of "
            f"[log prob, token id, ...] with finite numbers: {error}"
        ) from error


def _token_ids(entries: list[_Entry]) -> npt.NDArray[np.int32]:
    try:
        wide = np.fromiter(map(_token_id_of, entries), dtype=np.int64, count=len(entries))
        in_range = bool(((wide >= 0) & (wide <= _MAX_TOKEN_ID)).all())
    except OverflowError:
        in_range = False
    if not in_range:
        index, wrong = next(
            (index, entry.token_id) for index, entry in enumerate(entries) if not 0 <= entry.token_id <= _MAX_TOKEN_ID
        )
        raise BadEngineAnswer(f"invalid chat completion response: output_token_logprobs[{index}] has token id {wrong}")
    token_ids = wide.astype(np.int32)
    token_ids.flags.writeable = False
    return token_ids


def _log_probs(entries: list[_Entry]) -> npt.NDArray[np.float64]:
    log_probs = np.fromiter(map(_log_prob_of, entries), dtype=np.float64, count=len(entries))
    if not np.isfinite(log_probs).all():
        index = int(np.argmin(np.isfinite(log_probs)))
        raise BadEngineAnswer(
            f"invalid chat completion response: output_token_logprobs[{index}] has a log prob that is not finite"
        )
    log_probs.flags.writeable = False
    return log_probs


def _check_echo(raw: msgspec.Raw | msgspec.UnsetType, prompt: npt.NDArray[np.int32]) -> None:
    if _is_absent(raw):
        return
    echoed = _decode_or_none(_ids_decoder, raw)
    if echoed is None or not np.array_equal(np.asarray(echoed), prompt):
        raise BadEngineAnswer(
            "invalid chat completion response: prompt_token_ids is not the prompt that was sent "
            f"({len(prompt)} tokens, got {len(echoed) if echoed is not None else 'no list of integers'})"
        )


def _is_absent(raw: msgspec.Raw | msgspec.UnsetType) -> bool:
    # A view: what is looked at may be megabytes.
    return raw is msgspec.UNSET or bytes(memoryview(raw)[:4]) == b"null"


def _decode_or_none(decoder: msgspec.json.Decoder[_T], raw: msgspec.Raw | msgspec.UnsetType) -> _T | None:
    if raw is msgspec.UNSET:
        return None
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError:
        return None


def _plain(raw: msgspec.Raw | msgspec.UnsetType) -> Any:
    if raw is msgspec.UNSET:
        return None
    try:
        return json.decode(bytes(raw))
    except json.InvalidJSON as error:
        raise BadEngineAnswer(f"invalid chat completion response: {error}") from error
