"""From a client's chat request to what the engine is asked.

Source of the rules: the HTTP contract of the session server (docs/wire.md), "one chat turn", step 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trio_sessions.core import json
from trio_sessions.core.token_text import encode_token_ids
from trio_sessions.errors import ContextOverflow, InvalidRequest, NestedTooDeeply

__all__ = [
    "ChatBody",
    "EngineRequest",
    "PreparedRequest",
    "RequestPolicy",
    "SentMessages",
    "decode_request",
    "encode_engine_request",
    "prepare_chat_request",
    "prepare_request",
    "read_chat_body",
]

# What a client may say about these would break the exact accounting of tokens, so it is never passed on.
_OWNED_BY_US: Final = (
    "input_ids",
    "stream",
    "stream_options",
    "logprob_start_len",
    "routed_experts_start_len",
)

_ANSWER_LIMITS: Final = ("max_tokens", "max_completion_tokens")

_REFERENCE_BYTES: Final = 8

_spelled_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """What the launch adds to every request.

    Attributes:
        routing_replay: ask for the experts each token was routed to.
        indexer_replay: ask for the sparse-attention indexer's choices.
        incremental_replay: ask only for the routing rows that are not stored yet.
        lora: adapter name, or None.
    """

    routing_replay: bool = False
    indexer_replay: bool = False
    incremental_replay: bool = False
    lora: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SentMessages:
    """Messages a client has sent, with the bytes that spelled them.

    Most clients send their history as the same bytes again and append to it. Where these bytes come back they are not
    decoded again: the messages are the same objects, which a matcher need not look into.

    Attributes:
        spelled: a JSON array of ``messages`` without its closing bracket.
        messages: one each, as decoded.
    """

    spelled: bytes
    messages: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, array: bytes, messages: Sequence[Mapping[str, Any]]) -> SentMessages:
        """Of the JSON ``array`` that spells ``messages``, of which there is at least one."""
        return cls(spelled=array.rstrip()[:-1].rstrip(), messages=messages)

    @property
    def footprint(self) -> int:
        """Bytes of memory it takes beside the messages themselves, which are the history's."""
        return len(self.spelled) + _REFERENCE_BYTES * len(self.messages)

    def rest_of(self, array: bytes) -> bytes | None:
        """The JSON array of what ``array`` has behind these messages; None where it does not begin with them."""
        if not array.startswith(self.spelled):
            return None
        rest = array[len(self.spelled) :].lstrip()
        # Anything else is not JSON, which is for others to say.
        return b"[" + rest[1:] if rest.startswith(b",") else b"[]" if rest == b"]" else None


@dataclass(frozen=True, slots=True, eq=False)
class ChatBody:
    """A chat request as it was read; in whichever dialect it was sent, this is what it comes to.

    Attributes:
        fields: all but ``messages``.
        messages: at least one; every one an object with a string ``role``.
        spelled_messages: the JSON array of them as the client spelled it; empty where they were made from something
            else.
    """

    fields: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    spelled_messages: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as the engine receives it, and as the record keeps it.

    Attributes:
        fields: JSON object (compact bytes) of everything but the following; mostly the same turn after turn.
        routed_experts_start: the first routing row that is asked for, or None.
        messages: the conversation as the client spelled it.
        input_ids: the exact prompt, int32, shape (n,).
    """

    fields: bytes
    routed_experts_start: int | None
    messages: Sequence[Mapping[str, Any]]
    input_ids: npt.NDArray[np.int32]

    def streamed(self) -> EngineRequest:
        """The same, for an answer that comes as a stream, with its usage at the end."""
        fields = json.decode(self.fields)
        return replace(self, fields=json.encode({**fields, "stream": True, "stream_options": {"include_usage": True}}))

    def encode(self) -> bytes:
        """The JSON body."""
        return encode_engine_request(
            self.fields, self.routed_experts_start, json.encode(list(self.messages)), self.input_ids
        )


def encode_engine_request(
    fields: bytes, routed_experts_start: int | None, messages: bytes, input_ids: npt.NDArray[np.int32]
) -> bytes:
    """The JSON body of a request whose ``messages`` are JSON already; the rest is as in ``EngineRequest``."""
    return b"".join(
        (
            fields[:-1],
            b"," if len(fields) > len(b"{}") else b"",
            b"" if routed_experts_start is None else b'"routed_experts_start_len":%d,' % routed_experts_start,
            b'"messages":',
            messages,
            b',"input_ids":',
            encode_token_ids(input_ids),
            b"}",
        )
    )


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A validated chat request, still without a prompt: which history it extends is not known yet.

    Attributes:
        messages: at least one; every one an object with a string ``role``.
        spelled_messages: as in ``ChatBody``.
        tools: tool definitions as the client sent them, or None.
        template_kwargs: the request's own ``chat_template_kwargs``, empty when it has none.
        stream: whether the client wants the answer as server-sent events; what the engine is asked is another matter.
        fields: what goes to the engine besides messages, kwargs and prompt, with the forced fields in place.
        incremental_replay: whether ``engine_request`` names the first routing row that is not stored yet.
    """

    messages: Sequence[Mapping[str, Any]]
    spelled_messages: bytes
    tools: Sequence[Any] | None
    template_kwargs: Mapping[str, Any]
    stream: bool
    fields: Mapping[str, Any]
    incremental_replay: bool = False

    def engine_request(
        self,
        input_ids: npt.NDArray[np.int32],
        *,
        template_kwargs: Mapping[str, Any],
        stored_tokens: int,
        max_seq_len: int | None = None,
    ) -> EngineRequest:
        """The request with its exact prompt.

        Args:
            input_ids: the prompt, int32, shape (n,).
            template_kwargs: the effective kwargs that the prompt was rendered with; left out when empty.
            stored_tokens: how many leading ids of the prompt belong to the checkpoint it extends.
            max_seq_len: most ids of the prompt and its answer; what the client asks for is cut to what is left.

        Raises:
            ContextOverflow: nothing is left.
            InvalidRequest: there is a limit, and what the client asks for is no number.
        """
        fields = dict(self.fields)
        if max_seq_len is not None:
            if len(input_ids) >= max_seq_len:
                raise ContextOverflow(len(input_ids), max_seq_len)
            _limit_answer(fields, max_seq_len - len(input_ids))
        if template_kwargs:
            fields["chat_template_kwargs"] = dict(template_kwargs)
        return EngineRequest(
            fields=json.encode(fields),
            routed_experts_start=max(0, stored_tokens - 1) if self.incremental_replay else None,
            messages=self.messages,
            input_ids=input_ids,
        )


def prepare_chat_request(
    body: bytes, policy: RequestPolicy | None = None, *, sent: SentMessages | None = None
) -> PreparedRequest:
    """Decode and validate a chat body and put in place what the engine must be asked for.

    ``logprobs`` and ``return_meta_info`` are forced on and ``no_stop_trim`` off whatever the client sent; what the
    policy asks for is added; ``input_ids``, ``stream`` and the replay offsets are never the client's.

    Args:
        body: the request body; empty stands for ``{}``.
        policy: what the launch adds.
        sent: what the client sent before, which it may send again with more behind it.

    Raises:
        InvalidRequest: malformed JSON, not an object, or messages, tools or kwargs of the wrong shape. The text names
            the place.
    """
    return prepare_request(read_chat_body(body, sent=sent), policy)


def decode_request(body: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Args:
        body: the request body; empty stands for ``{}``.

    Raises:
        InvalidRequest: malformed JSON, or not an object.
        NestedTooDeeply: nested deeper than ``json.MAX_NESTING``.
    """
    try:
        decoded = json.decode(body) if body else {}
    except json.TooDeep as error:
        raise NestedTooDeeply(f"invalid JSON body: {error}") from error
    except json.InvalidJSON as error:
        raise InvalidRequest(f"invalid JSON body: {error}") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"the request body must be a JSON object, got {json.kind_of(decoded)}")
    return decoded


def read_chat_body(body: bytes, *, sent: SentMessages | None = None) -> ChatBody:
    """Decode a chat body, and check that it is an object with messages.

    Args:
        body: the request body; empty stands for ``{}``.
        sent: what the client sent before, which it may send again with more behind it.

    Raises:
        InvalidRequest: malformed JSON, not an object, or messages of the wrong shape. The text names the place.
    """
    return (sent and _read_rest(body, sent)) or _read(body)


def prepare_request(chat: ChatBody, policy: RequestPolicy | None = None) -> PreparedRequest:
    """Validate what a chat request asks for, and put in place what the engine must be asked for.

    Raises:
        InvalidRequest: tools or kwargs of the wrong shape, or more than one completion is asked for.
    """
    policy = policy or RequestPolicy()
    fields = dict(chat.fields)
    template_kwargs = fields.pop("chat_template_kwargs", None)
    if template_kwargs is not None and not isinstance(template_kwargs, dict):
        raise InvalidRequest("chat_template_kwargs must be an object")
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequest(f"tools must be a list, got {json.kind_of(tools)}")
    stream = bool(fields.get("stream", False))
    if fields.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: a session records one completion a turn")

    for name in _OWNED_BY_US:
        fields.pop(name, None)
    fields["logprobs"] = True
    fields["return_meta_info"] = True
    fields["no_stop_trim"] = False
    if policy.routing_replay:
        fields["return_routed_experts"] = True
    if policy.indexer_replay:
        fields["return_indexer_topk"] = True
    if policy.lora is not None:
        fields["lora_path"] = policy.lora

    return PreparedRequest(
        messages=chat.messages,
        spelled_messages=chat.spelled_messages,
        tools=tools,
        template_kwargs=template_kwargs or {},
        stream=stream,
        fields=fields,
        incremental_replay=policy.routing_replay and policy.incremental_replay,
    )


def _read(body: bytes) -> ChatBody:
    decoded = decode_request(body)
    messages = _messages(decoded.pop("messages", None))
    return ChatBody(decoded, messages, bytes(_spelled_decoder.decode(body)["messages"]))


def _read_rest(body: bytes, sent: SentMessages) -> ChatBody | None:
    """As ``_read``, where ``body`` repeats ``sent``; None where it does not, or where something is wrong with it."""
    try:
        spelled = _spelled_decoder.decode(body)
        spelled_messages = bytes(spelled.pop("messages", b""))
        rest = sent.rest_of(spelled_messages)
        if rest is None:
            return None
        fields = {name: _decode_member(value) for name, value in spelled.items()}
        appended = _decode_member(rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, json.InvalidJSON):
        return None
    _check(appended, first_index=len(sent.messages))
    return ChatBody(fields, [*sent.messages, *appended], spelled_messages)


def _decode_member(value: bytes | msgspec.Raw) -> Any:
    # In brackets, so that the limit on nesting is the same as inside the body.
    return json.decode(b"[%b]" % bytes(value))[0]


def _limit_answer(fields: dict[str, Any], room: int) -> None:
    """Have the engine sample at most ``room`` ids, whichever of the two names the client uses."""
    asked = [name for name in _ANSWER_LIMITS if fields.get(name) is not None]
    for name in asked:
        # An engine may read a number in what is none for us.
        if isinstance(fields[name], bool) or not isinstance(fields[name], int | float):
            raise InvalidRequest(f"{name} must be a number, got {json.kind_of(fields[name])}")
        fields[name] = min(fields[name], room)
    if not asked:
        fields[_ANSWER_LIMITS[0]] = room


def _messages(value: Any) -> list[dict[str, Any]]:
    if value is None:
        raise InvalidRequest("messages must be a list with at least one message")
    if not isinstance(value, list):
        raise InvalidRequest(f"messages must be a list, got {json.kind_of(value)}")
    if not value:
        raise InvalidRequest("messages must be a list with at least one message")
    _check(value, first_index=0)
    return value


def _check(messages: Sequence[Any], *, first_index: int) -> None:
    for index, message in enumerate(messages, first_index):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{index}] must be an object, got {json.kind_of(message)}")
        if "role" not in message:
            raise InvalidRequest(f"messages[{index}] has no role")
        if not isinstance(message["role"], str):
            raise InvalidRequest(f"messages[{index}].role must be a string, got {json.kind_of(message['role'])}")
