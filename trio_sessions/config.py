"""Settings of a gateway: explicit, frozen, checked when made.

Where they come from (command line, environment, file) is the business of ``trio_sessions.cli``.
"""

from __future__ import annotations

import json as stdlib_json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from trio_sessions.core import json
from trio_sessions.core.credentials import hashed_key
from trio_sessions.core.history import MAX_NODES, OnToolsChange, OnTruncated, SeamPolicy
from trio_sessions.core.request import RequestPolicy
from trio_sessions.errors import ConfigurationError

__all__ = [
    "BUILTIN_TOKENIZER",
    "IN_MEMORY",
    "Durability",
    "LogFormat",
    "LogLevel",
    "Mode",
    "OnDelete",
    "SessionLimits",
    "Settings",
    "SpecialTokensInContent",
    "StreamMode",
    "ToolsAs",
]

Mode = Literal["linear", "tree"]
Durability = Literal["full", "relaxed"]
SpecialTokensInContent = Literal["allow", "escape", "reject"]
StreamMode = Literal["buffered", "real"]
OnDelete = Literal["answer", "cancel"]
ToolsAs = Literal["sglang", "given", "function"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

BUILTIN_TOKENIZER: Final = "builtin"
IN_MEMORY: Final = "memory"
"""A store that is none: sessions end with the process."""
_MOST_SECONDS: Final = 30 * 24 * 3600
_MOST_MIB: Final = 1024 * 1024
_MOST_SESSIONS: Final = 100_000_000
_MOST_WORKERS: Final = 256
_MOST_COUNT: Final = 10**9
_MOST_TOKENS: Final = 10**12
_INSTANCE_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What the sessions of one process may take.

    Attributes:
        sessions: how many there may be.
        memory: bytes that those in memory may take.
        idle: seconds after which a session is deleted that nobody uses.
        lifetime: seconds for which a session takes turns.
    """

    sessions: float = math.inf
    memory: float = math.inf
    idle: float = math.inf
    lifetime: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a gateway can be told.

    Attributes:
        host: address to listen on.
        port: TCP port to listen on; 0 picks a free one.
        workers: processes that serve behind that port, each with sessions of its own.
        worker_port_base: each of several workers also listens on a port of its own: this one and those behind it, or
            free ones if None.
        api_key: keys that open the gateway; with none, and no ``api_key_file``, it is open to whoever reaches it. They
            are hashed at once and kept as ``sha256:`` and 64 hex digits, which is also how they may be given.
        api_key_file: file with more keys, one a line; read when serving starts.
        insecure: listen on an address that other machines reach although there are no keys.
        tls_cert: PEM file with a certificate, and those between it and its root, to serve https.
        tls_key: PEM file with its private key, not encrypted.
        tls_ca: PEM file with certificates; clients must show one that these have signed.
        engine: base URL of the inference engine; None starts the embedded one.
        tokenizer: ``builtin``, a folder, or a hub id.
        family: what a probe of the chat template cannot find out: pinned kwargs, formats without a template.
        mode: ``linear`` keeps one line of turns a session; ``tree`` branches.
        chat_template: file with jinja text, or a model's encoder in Python, that replaces the tokenizer's own template.
        chat_template_kwargs: launch defaults for the template's kwargs.
        special_tokens_in_content: what to do with a client's text that spells a control token: ``escape`` makes it
            ordinary text, ``allow`` leaves it a control token, ``reject`` refuses the request.
        tools_as: form in which the template gets tool definitions: ``sglang`` as SGLang dumps them, ``given`` as the
            client sent them, ``function`` the bare function objects.
        on_truncated: what becomes of a request that extends a turn which ended at the length limit: ``close`` closes
            the turn with ids that are never trained, ``refuse`` is a 409; None closes in linear mode and refuses in
            tree mode.
        on_tools_change: what becomes of a request whose tools or template kwargs are not those of the turn it extends:
            ``report`` reuses the prefix and declares the change, ``reject`` is a 400, ``branch`` (tree mode) renders
            anew under a new root.
        message_matcher: name of a built-in matcher (``strict``, ``loose_tool_call``, ``role_content_only``, ``agent``)
            or a dotted import path; None takes ``strict`` for chat completions and ``agent`` for the other dialects.
        routing_replay: ask the engine for routed experts and keep them.
        indexer_replay: ask the engine for indexer choices and keep them.
        incremental_replay: keep only the routing rows each turn adds; needs ``routing_replay``.
        num_layers: layers in a routing row; needed to assemble replay data.
        sample_picker: name of a built-in picker or a dotted import path: which leaves of a tree session are trained.
        sample_postprocessor: likewise, what finishes the samples that were picked.
        lora: adapter the engine applies to every turn.
        instance_id: 32 hex digits that identify this process; None draws one.
        store: file that sessions are written down in, or ``memory``: then they end with the process.
        durability: when an answer is given: ``full`` once the turn is on the disk, ``relaxed`` a moment before.
        max_sessions: most sessions there may be; one more is a 429.
        session_ttl: seconds after which a session is deleted that nobody uses; None for never.
        max_memory_mb: most memory that sessions may take, in MiB; those that nobody uses leave it for the store.
        max_seq_len: most ids of a prompt and its answer: answers are limited to what is left, and a prompt that leaves
            nothing is a 400; None for no limit.
        session_deadline: seconds after which a session takes no more turns and those that run are cancelled; None for
            never.
        max_turns: most turns and proxied requests that run at a time, in each worker.
        max_session_turns: most of them in one session, those that wait included.
        turn_queue: most that wait for their turn, in each worker; more are a 429.
        turn_queue_timeout: seconds that one waits at most, until it is a 429.
        max_messages: most messages of a request.
        max_nodes: most nodes of a tree session.
        max_session_tokens: most ids that a session stores, over all its turns; answers that come meanwhile are kept.
        max_json_values: about the most values that a request's JSON may have.
        retry_window: seconds for which a committed answer is given again to a request that says it is a retry.
        retry_linger: seconds for which a turn goes on whose client has gone, where the request said that it may be
            retried: a retry within that time joins it.
        on_delete: what becomes of turns that are at the engine when their session is deleted: ``answer`` answers them
            and records nothing, ``cancel`` cancels them.
        engine_timeout: seconds until an engine call is given up.
        stream_grace: seconds that a stream waits for the engine before its head is sent; an error that comes sooner
            keeps its status.
        stream: how a client's stream is fed: ``buffered`` asks the engine for a whole answer, ``real`` for a stream
            with ids, and passes on what is sampled as it comes; where the engine refuses that, answers are whole.
        stream_keep_alive: seconds between signs of life in a stream that waits for the engine.
        max_body_mb: largest request body, in MiB.
        body_timeout: seconds in which a request's body has to arrive behind its head.
        header_timeout: seconds in which a request's head has to arrive, from its first byte on, and seconds until a new
            connection that sends nothing is closed.
        send_timeout: seconds after which a connection is closed whose client takes less than 256 KiB of its answer
            meanwhile.
        max_connections: most connections that are served at a time, in each worker.
        max_answer_mb: largest body that the engine may answer with, in MiB.
        open_proxy: proxy every path to the engine, not only the allow-list.
        drain_timeout: seconds that running turns get to finish at shutdown.
        log_level: least severe level that is logged.
        log_format: ``text`` for people, ``json`` for machines.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    workers: int = 1
    worker_port_base: int | None = None
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    engine: str | None = None
    tokenizer: str = BUILTIN_TOKENIZER
    family: str = "auto"
    mode: Mode = "linear"
    chat_template: Path | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens_in_content: SpecialTokensInContent = "escape"
    tools_as: ToolsAs = "sglang"
    on_truncated: OnTruncated | None = None
    on_tools_change: OnToolsChange = "report"
    message_matcher: str | None = None
    routing_replay: bool = False
    indexer_replay: bool = False
    incremental_replay: bool = False
    num_layers: int | None = None
    sample_picker: str = "drop_retries"
    sample_postprocessor: str = "train_once"
    lora: str | None = None
    instance_id: str | None = None
    store: str = IN_MEMORY
    durability: Durability = "full"
    max_sessions: int = 100_000
    session_ttl: float | None = 7 * 24 * 3600.0
    max_memory_mb: float = 4096.0
    max_seq_len: int | None = None
    session_deadline: float | None = None
    max_turns: int = 1024
    max_session_turns: int = 256
    turn_queue: int = 1024
    turn_queue_timeout: float = 120.0
    max_messages: int = 10_000
    max_nodes: int = MAX_NODES
    max_session_tokens: int = 100_000_000
    max_json_values: int = 200_000
    retry_window: float = 60.0
    retry_linger: float = 0.0
    on_delete: OnDelete = "answer"
    engine_timeout: float = 600.0
    stream_grace: float = 0.5
    stream: StreamMode = "buffered"
    stream_keep_alive: float = 10.0
    max_body_mb: float = 64.0
    body_timeout: float = 60.0
    header_timeout: float = 30.0
    send_timeout: float = 300.0
    max_connections: int = 4096
    max_answer_mb: float = 1024.0
    open_proxy: bool = False
    drain_timeout: float = 30.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, f"--port must be between 0 and 65535, got {self.port}")
        _require_between("--workers", self.workers, 1, _MOST_WORKERS)
        if self.worker_port_base is not None:
            _require_ports(self.worker_port_base, self.workers, self.port)
        object.__setattr__(self, "api_key", _hashed(self.api_key))
        _require_text("--host", self.host)
        _require(
            self.guarded or self.insecure or _is_loopback(self.host),
            f"--host {self.host} can be reached from other machines, and without keys whoever reaches the gateway may "
            "do everything: give --api-key KEY (or --api-key-file), or --insecure if the network is yours alone",
        )
        _require_tls(self)
        _require(self.mode in get_args(Mode), f"--mode must be linear or tree, got {self.mode}")
        _require(self.store != "", "--store must be a file or memory")
        _require(
            self.durability in get_args(Durability), f"--durability must be full or relaxed, got {self.durability}"
        )
        _require_between("--max-sessions", self.max_sessions, 1, _MOST_SESSIONS)
        if self.session_ttl is not None:
            _require_between("--session-ttl", self.session_ttl, 0.001, _MOST_SECONDS)
        _require_between("--max-memory-mb", self.max_memory_mb, 1, _MOST_MIB)
        _require(
            self.special_tokens_in_content in get_args(SpecialTokensInContent),
            f"--special-tokens-in-content must be allow, escape or reject, got {self.special_tokens_in_content}",
        )
        _require(
            self.tools_as in get_args(ToolsAs),
            f"--tools-as must be sglang, given or function, got {self.tools_as}",
        )
        _require(
            self.on_truncated is None or self.on_truncated in get_args(OnTruncated),
            f"--on-truncated must be refuse or close, got {self.on_truncated}",
        )
        _require(
            self.on_tools_change in get_args(OnToolsChange),
            f"--on-tools-change must be report, branch or reject, got {self.on_tools_change}",
        )
        _require(
            self.on_tools_change != "branch" or self.mode == "tree",
            f"--on-tools-change branch needs --mode tree: --mode {self.mode} has one line of turns; "
            "use report or reject",
        )
        _require(
            self.max_seq_len is None or self.max_seq_len > 1,
            f"--max-seq-len must be at least 2, got {self.max_seq_len}",
        )
        if self.session_deadline is not None:
            _require_between("--session-deadline", self.session_deadline, 0.001, _MOST_SECONDS)
        _require_between("--max-turns", self.max_turns, 1, _MOST_COUNT)
        _require_between("--max-session-turns", self.max_session_turns, 1, _MOST_COUNT)
        _require_between("--turn-queue", self.turn_queue, 0, _MOST_COUNT)
        _require_between("--turn-queue-timeout", self.turn_queue_timeout, 0, _MOST_SECONDS)
        _require_between("--max-messages", self.max_messages, 1, _MOST_COUNT)
        _require_between("--max-nodes", self.max_nodes, 1, _MOST_COUNT)
        _require_between("--max-session-tokens", self.max_session_tokens, 1, _MOST_TOKENS)
        _require_between("--max-json-values", self.max_json_values, 1000, _MOST_COUNT)
        _require_between("--retry-window", self.retry_window, 0, _MOST_SECONDS)
        _require_between("--retry-linger", self.retry_linger, 0, _MOST_SECONDS)
        _require(self.on_delete in get_args(OnDelete), f"--on-delete must be answer or cancel, got {self.on_delete}")
        _require_between("--engine-timeout", self.engine_timeout, 0.001, _MOST_SECONDS)
        _require_between("--stream-grace", self.stream_grace, 0, _MOST_SECONDS)
        _require(self.stream in get_args(StreamMode), f"--stream must be buffered or real, got {self.stream}")
        _require_between("--stream-keep-alive", self.stream_keep_alive, 0.01, _MOST_SECONDS)
        _require_between("--max-body-mb", self.max_body_mb, 0.0001, _MOST_MIB)
        _require_between("--body-timeout", self.body_timeout, 0.001, _MOST_SECONDS)
        _require_between("--header-timeout", self.header_timeout, 0.001, _MOST_SECONDS)
        _require_between("--send-timeout", self.send_timeout, 0.001, _MOST_SECONDS)
        _require_between("--max-connections", self.max_connections, 1, _MOST_COUNT)
        _require_between("--max-answer-mb", self.max_answer_mb, 0.0001, _MOST_MIB)
        _require_between("--drain-timeout", self.drain_timeout, 0, _MOST_SECONDS)
        _require_text("--lora", self.lora or "")
        _require_json("--chat-template-kwargs", self.chat_template_kwargs)
        object.__setattr__(self, "chat_template_kwargs", MappingProxyType(dict(self.chat_template_kwargs)))
        _require(
            self.num_layers is None or self.num_layers > 0,
            f"--num-layers must be positive, got {self.num_layers}",
        )
        _require(
            not self.incremental_replay or self.routing_replay,
            "--incremental-replay needs --routing-replay",
        )
        if self.engine is not None:
            _require_url(self.engine)
        if self.instance_id is not None:
            _require(
                _INSTANCE_ID.fullmatch(self.instance_id) is not None,
                f"--instance-id must be 32 lowercase hex digits, got {self.instance_id!r}",
            )

    @property
    def guarded(self) -> bool:
        """Whether requests need a key or a token."""
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def max_body_bytes(self) -> int:
        """Largest request body, in bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def max_answer_bytes(self) -> int:
        """Largest body of an engine's answer, in bytes."""
        return int(self.max_answer_mb * 2**20)

    @property
    def session_limits(self) -> SessionLimits:
        """What these settings allow sessions to take."""
        return SessionLimits(
            sessions=self.max_sessions,
            memory=self.max_memory_mb * 2**20,
            idle=math.inf if self.session_ttl is None else self.session_ttl,
            lifetime=math.inf if self.session_deadline is None else self.session_deadline,
        )

    @property
    def journal_files(self) -> tuple[Path, ...]:
        """The files that sessions are written down in, one a worker, by its index; none where they stay in memory."""
        if self.store == IN_MEMORY:
            return ()
        path = Path(self.store)
        if self.workers == 1:
            return (path,)
        return tuple(path.with_name(f"{path.name}.{worker}") for worker in range(self.workers))

    @property
    def request_policy(self) -> RequestPolicy:
        """What these settings add to every request."""
        return RequestPolicy(
            routing_replay=self.routing_replay,
            indexer_replay=self.indexer_replay,
            incremental_replay=self.incremental_replay,
            lora=self.lora,
        )

    @property
    def seam_policy(self) -> SeamPolicy:
        """What these settings want where a request extends a stored turn."""
        by_mode: OnTruncated = "close" if self.mode == "linear" else "refuse"
        return SeamPolicy(on_truncated=self.on_truncated or by_mode, on_tools_change=self.on_tools_change)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigurationError(otherwise)


def _require_between(option: str, value: float, least: float, most: float) -> None:
    _require(least <= value <= most, f"{option} must be between {least:g} and {most:.12g}, got {value:g}")


def _require_ports(base: int, workers: int, port: int) -> None:
    _require(workers > 1, "--worker-port-base needs --workers: one worker has the --port alone")
    last = base + workers - 1
    _require(
        base >= 1 and last <= 65535,
        f"--worker-port-base must leave a port between 1 and 65535 for each worker, got {base} for {workers}",
    )
    _require(
        not base <= port <= last,
        f"--worker-port-base {base} gives workers the ports {base} to {last}, which include --port {port}",
    )


def _hashed(keys: tuple[str, ...]) -> tuple[str, ...]:
    _require(not isinstance(keys, str), "--api-key must be several keys, not one text")
    try:
        return tuple(map(hashed_key, keys))
    except ValueError as error:
        raise ConfigurationError(f"--api-key: a key {error}") from None


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        # Where a name leads is for others to say.
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _require_tls(settings: Settings) -> None:
    _require(
        (settings.tls_cert is None) == (settings.tls_key is None),
        "--tls-cert and --tls-key need each other: a certificate and its private key",
    )
    _require(settings.tls_ca is None or settings.tls_cert is not None, "--tls-ca needs --tls-cert and --tls-key")
    _require(
        settings.tls_cert is None or settings.workers == 1,
        f"--tls-cert serves from one process, and --workers is {settings.workers}: workers ask each other without TLS; "
        "use --workers 1, or put a proxy that does TLS in front",
    )


def _require_text(option: str, value: str) -> None:
    _require(value.isprintable(), f"{option} must be printable text, got {value!r}")


def _require_json(option: str, value: Mapping[str, Any]) -> None:
    try:
        # Strict, where our own encoder would write null for a number that is not finite.
        json.decode(stdlib_json.dumps(dict(value), allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{option} must be a JSON object: {error}") from error


def _require_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    _require(usable, f"--engine must be an http or https URL such as http://127.0.0.1:30000, got {url!r}")
    address = url.rstrip("/").removesuffix("/v1")
    _require(address == url.rstrip("/"), f"--engine is the engine's address without /v1: {address}, not {url}")
