"""What can be set from outside: the options of every command, each with its kind, default and meaning.

Defaults of ``serve`` are those of ``Settings``; they are not repeated here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from trio_sessions.cli import kinds
from trio_sessions.cli.kinds import Kind
from trio_sessions.config import (
    BUILTIN_TOKENIZER,
    Durability,
    LogFormat,
    LogLevel,
    OnDelete,
    Settings,
    SpecialTokensInContent,
    StreamMode,
    ToolsAs,
)
from trio_sessions.core.history import OnToolsChange, OnTruncated
from trio_sessions.errors import ConfigurationError
from trio_sessions.export import FORMATS

__all__ = [
    "CONFIG",
    "DEMO_OPTIONS",
    "ENGINE_OPTIONS",
    "ENVIRONMENT_PREFIX",
    "SAMPLES_OPTIONS",
    "SERVE_OPTIONS",
    "VERIFY_OPTIONS",
    "Option",
    "options_by_field",
]

ENVIRONMENT_PREFIX: Final = "TRIO_SESSIONS_"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    Attributes:
        field: name in Python, and in a TOML file; the command line spells it with dashes.
        kind: how its value is read.
        meaning: one sentence for the help.
        default: value when nobody sets it; None for "not set".
        unset: what "not set" amounts to, for the help.
        positional: whether it is given by its place on the command line, which it then has to be, and not by name.
        repeated: whether it takes several values; its value is then a tuple. One that is positional takes all that
            comes, at least one; another is given once for each, in the environment with white space between them, in a
            TOML file as a list.
        secret: whether its values are shown to nobody.
        required: whether it has to be given.
    """

    field: str
    kind: Kind
    meaning: str
    default: Any = None
    unset: str = "not set"
    positional: bool = False
    repeated: bool = False
    required: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        if self.positional:
            return self.field.upper()
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.field.upper()

    @property
    def default_text(self) -> str:
        """The default as a person would type it."""
        match self.default:
            case None | ():
                return self.unset
            case bool():
                return str(self.default).lower()
            case float():
                return f"{self.default:g}"
            case Mapping():
                return json.dumps(dict(self.default))
            case _:
                return str(self.default)

    def read_text(self, value: str, *, origin: str = "") -> Any:
        """The typed value of ``value``, from a command line or an environment variable.

        Raises:
            ConfigurationError: it is not of this option's kind; the text names the option and ``origin``.
        """
        try:
            return self.kind.from_text(value)
        except ValueError:
            raise self._wrong(value, origin) from None

    def read_variable(self, value: str) -> Any:
        """The typed value of an environment variable.

        Raises:
            ConfigurationError: as ``read_text``.
        """
        if self.repeated:
            return tuple(self.read_text(item, origin=self.variable) for item in value.split() or [value])
        return self.read_text(value, origin=self.variable)

    def read_toml(self, value: Any, *, origin: str) -> Any:
        """The typed value of a decoded TOML value.

        Raises:
            ConfigurationError: as ``read_text``.
        """
        try:
            if not self.repeated:
                return self.kind.from_toml(value)
            # One may stand alone; none is no value of the kind, like an empty text.
            return tuple(map(self.kind.from_toml, value if isinstance(value, list) and value else [value]))
        except ValueError:
            raise self._wrong(value, origin) from None

    def _wrong(self, value: Any, origin: str) -> ConfigurationError:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        got = "" if self.secret else f", got {shown}"
        place = f" (from {origin})" if origin else ""
        return ConfigurationError(f"{self.flag} must be {self.kind.expects}{got}{place}")


def options_by_field(options: tuple[Option, ...]) -> dict[str, Option]:
    """The options, each under its Python name."""
    return {option.field: option for option in options}


_DEFAULTS: Final = Settings()


def _setting(field: str, kind: Kind, meaning: str, *, unset: str = "not set") -> Option:
    return Option(field, kind, meaning, default=getattr(_DEFAULTS, field), unset=unset)


CONFIG: Final = Option(
    "config", kinds.FILE, "TOML file with any of the other options, at its top level or under [serve]."
)

SERVE_OPTIONS: Final = (
    _setting("host", kinds.text("HOST"), "Address to listen on."),
    _setting("port", kinds.INTEGER, "TCP port to listen on; 0 picks a free one."),
    _setting(
        "workers",
        kinds.INTEGER,
        "Processes that serve behind the port, to use several cores; each has sessions of its own.",
    ),
    _setting(
        "worker_port_base",
        replace(kinds.INTEGER, metavar="PORT"),
        "With several workers, the port the first also listens on for itself; the others use the ports that follow.",
        unset="free ports",
    ),
    replace(
        _setting(
            "api_key",
            kinds.text("KEY"),
            "Key that opens the gateway, or sha256: and the hex digest of one; may be given several times, in the "
            "environment with spaces between them, in TOML as a list. Other users of the machine can read a command "
            "line: better a file, or the environment.",
            unset="none: open to whoever reaches the port",
        ),
        repeated=True,
        secret=True,
    ),
    _setting("api_key_file", kinds.FILE, "File with more such keys, one a line."),
    _setting(
        "insecure",
        kinds.FLAG,
        "Listen without keys on an address that other machines reach, which is refused otherwise.",
    ),
    _setting("tls_cert", kinds.FILE, "PEM file with a certificate, to serve https; for one worker."),
    _setting("tls_key", kinds.FILE, "PEM file with the certificate's private key, not encrypted."),
    _setting(
        "tls_ca",
        kinds.FILE,
        "PEM file with certificates; clients then need one that these have signed.",
        unset="clients need no certificate",
    ),
    _setting(
        "engine",
        kinds.URL,
        "Base URL of the inference engine, such as http://127.0.0.1:30000.",
        unset="the embedded toy engine",
    ),
    _setting(
        "tokenizer",
        kinds.text("PATH_OR_ID"),
        f"Tokenizer of the engine's model: {BUILTIN_TOKENIZER}, a folder, or a hub id.",
    ),
    _setting(
        "family",
        kinds.text("NAME|auto"),
        "Model family, for what no probe of the chat template finds out: pinned kwargs, formats without a template.",
    ),
    _setting(
        "mode",
        kinds.text("linear|tree"),
        "linear keeps one line of turns a session and allows a retry of the last one; tree branches on anything.",
    ),
    _setting(
        "chat_template",
        kinds.FILE,
        "File with a chat template: jinja text, or the Python encoder that comes with the model.",
        unset="the tokenizer's own",
    ),
    _setting(
        "chat_template_kwargs",
        kinds.JSON_OBJECT,
        "Values for the chat template's variables, which a request may override; a table in TOML.",
    ),
    _setting(
        "special_tokens_in_content",
        kinds.text("allow|escape|reject"),
        "Text of a client that spells a control token: escape makes it ordinary text, allow leaves it a control token, "
        "reject refuses the request.",
    ),
    _setting(
        "tools_as",
        kinds.choice(get_args(ToolsAs)),
        "Form in which the chat template gets tool definitions: sglang as SGLang dumps them, given as the client sent "
        "them, function the bare function objects.",
    ),
    _setting(
        "on_truncated",
        kinds.choice(get_args(OnTruncated)),
        "A request that extends a turn which ended at the length limit: close closes the turn with ids that are never "
        "trained, refuse answers 409.",
        unset="the mode's rule: linear closes, tree refuses",
    ),
    _setting(
        "on_tools_change",
        kinds.choice(get_args(OnToolsChange)),
        "A request whose tools or template kwargs are not those of the turn it extends: report reuses the prefix and "
        "declares the change, reject answers 400, branch (tree mode only) renders anew under a new root.",
    ),
    _setting(
        "message_matcher",
        kinds.text("NAME_OR_PATH"),
        "Decides whether a replayed message equals the stored one: strict, loose_tool_call, role_content_only, "
        "agent (what agents are known to make of a message), or the dotted path of a function.",
        unset="what each dialect's clients need: strict for chat completions, agent for the others",
    ),
    _setting("routing_replay", kinds.FLAG, "Ask the engine for routed experts and keep them."),
    _setting("indexer_replay", kinds.FLAG, "Ask the engine for its sparse-attention choices and keep them."),
    _setting(
        "incremental_replay",
        kinds.FLAG,
        "Keep only the routing rows that each turn adds; needs --routing-replay.",
    ),
    _setting("num_layers", kinds.INTEGER, "Layers in a routing row; needed to assemble samples with routed experts."),
    _setting(
        "sample_picker",
        kinds.text("NAME_OR_PATH"),
        "Chooses the leaves of a tree session that are trained: drop_retries, keep_all, longest, active_only, "
        "by_agent, or the dotted path of a function.",
    ),
    _setting(
        "sample_postprocessor",
        kinds.text("NAME_OR_PATH"),
        "Finishes the samples that were picked: train_once, or the dotted path of a function.",
    ),
    _setting("lora", kinds.text("NAME"), "Adapter that the engine applies to every turn."),
    _setting(
        "instance_id",
        kinds.text("HEX"),
        "32 lowercase hex digits that name this process in /health.",
        unset="drawn at random",
    ),
    replace(
        _setting(
            "store",
            kinds.text("FILE|memory"),
            "File that sessions are written down in, so that they outlive the process, or memory. Each of several "
            "workers has one of its own, whose name ends in its index.",
        ),
        default="trio-sessions.journal",
    ),
    _setting(
        "durability",
        kinds.choice(get_args(Durability)),
        "When an answer is given: full once its turn is on the disk, relaxed a moment before.",
    ),
    _setting("max_sessions", kinds.INTEGER, "Most sessions of a worker; one more is a 429."),
    _setting(
        "session_ttl",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds after which a session is deleted that nobody uses.",
        unset="never",
    ),
    _setting(
        "max_memory_mb",
        kinds.NUMBER,
        "Most memory that the sessions of a worker may take, in MiB, as it is reckoned; sessions that nobody uses "
        "leave it for the store, and a turn for which there is none is a 503.",
    ),
    _setting(
        "max_seq_len",
        kinds.INTEGER,
        "Most ids of a prompt and its answer: answers are limited to what is left, and a prompt that leaves nothing is "
        "a 400.",
        unset="no limit",
    ),
    _setting(
        "session_deadline",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds after which a session takes no more turns and those that run are cancelled.",
        unset="never",
    ),
    _setting(
        "max_turns",
        kinds.INTEGER,
        "Most turns and proxied requests that are at work at a time, in each worker; more wait.",
    ),
    _setting(
        "max_session_turns",
        kinds.INTEGER,
        "Most of them in one session, those that wait included; more are a 429.",
    ),
    _setting("turn_queue", kinds.INTEGER, "Most that wait for their turn, in each worker; more are a 429."),
    _setting(
        "turn_queue_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds that one waits for its turn at most, until it is a 429.",
    ),
    _setting("max_messages", kinds.INTEGER, "Most messages of a request; more are a 400."),
    _setting("max_nodes", kinds.INTEGER, "Most turns of a tree session; the next is a 400."),
    _setting(
        "max_session_tokens",
        kinds.INTEGER,
        "Most ids that a session stores over all its turns, each counted where it was added; a prompt that would add "
        "more is a 400.",
    ),
    _setting(
        "max_json_values",
        kinds.INTEGER,
        "Most values (commas and opening brackets outside of text, to be exact) in a request's JSON; more are a 400.",
    ),
    _setting(
        "retry_window",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds for which a committed answer is given again to a request that says it is a retry.",
    ),
    _setting(
        "retry_linger",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds for which a turn goes on whose client has gone, where the request said that it may be retried: a "
        "retry within that time joins it, else it is cancelled.",
    ),
    _setting(
        "on_delete",
        kinds.choice(get_args(OnDelete)),
        "Turns that are at the engine when their session is deleted: answer answers them and records nothing, cancel "
        "cancels them.",
    ),
    _setting(
        "engine_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds until a call to the engine is given up.",
    ),
    _setting(
        "stream_grace",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds that a stream waits for the engine before its head is sent; an error that comes sooner keeps its "
        "status.",
    ),
    _setting(
        "stream",
        kinds.choice(get_args(StreamMode)),
        "How a client's stream is fed: buffered asks the engine for a whole answer, real for a stream with ids, and "
        "passes on what is sampled as it comes; where the engine refuses that, answers are whole.",
    ),
    _setting(
        "stream_keep_alive",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds between signs of life in a stream that waits for the engine.",
    ),
    _setting("max_body_mb", kinds.NUMBER, "Largest request body, in MiB."),
    _setting(
        "body_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds in which the body of a request has to arrive behind its head; later is a 408.",
    ),
    _setting(
        "header_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds in which the head of a request has to arrive from its first byte on, later is a 408; also seconds "
        "until a new connection that sends nothing is closed.",
    ),
    _setting(
        "send_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds after which a connection is closed whose client takes less than 256 KiB of its answer meanwhile.",
    ),
    _setting(
        "max_connections",
        kinds.INTEGER,
        "Most connections that are served at a time, in each worker; more are answered 503 and closed.",
    ),
    _setting("max_answer_mb", kinds.NUMBER, "Largest body that the engine may answer with, in MiB; more is a 502."),
    _setting(
        "open_proxy",
        kinds.FLAG,
        "Let sessions reach every path of the engine, its control plane included.",
    ),
    _setting(
        "drain_timeout",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds that running turns get to finish when the gateway stops.",
    ),
    _setting("log_level", kinds.choice(get_args(LogLevel)), "Least severe level that is logged."),
    _setting("log_format", kinds.choice(get_args(LogFormat)), "text for people, json for machines."),
)

ENGINE_OPTIONS: Final = (
    Option("host", kinds.text("HOST"), "Address to listen on.", "127.0.0.1"),
    Option("port", kinds.INTEGER, "TCP port to listen on; 0 picks a free one.", 30000),
    Option(
        "latency",
        replace(kinds.NUMBER, metavar="SECONDS"),
        "Seconds that an answer takes, on top of making it.",
        0.0,
    ),
    Option("seed", kinds.INTEGER, "Seed of what the engine samples.", 0),
    Option("fault", kinds.text("SPEC"), "Make the engine misbehave; a wrong value lists the kinds.", unset="none"),
    Option(
        "tokenizer",
        kinds.text("PATH"),
        f"Tokenizer of the toy model: {BUILTIN_TOKENIZER} or a folder.",
        BUILTIN_TOKENIZER,
    ),
    Option(
        "model",
        kinds.text("DIR"),
        "Folder of a small causal language model to sample from, with its tokenizer; needs the extra [model].",
        unset="the toy model",
    ),
    Option("log_level", kinds.choice(get_args(LogLevel)), "Least severe level that is logged.", "info"),
)

SAMPLES_OPTIONS: Final = (
    Option(
        "session",
        kinds.text("ID"),
        "Sessions whose samples to write, in this order.",
        unset="required",
        positional=True,
        repeated=True,
        required=True,
    ),
    Option("out", kinds.FILE, "File to write: .safetensors, .parquet or .jsonl.", unset="required", required=True),
    Option("format", kinds.choice(FORMATS), "Format of the file, whatever its suffix.", unset="by the suffix"),
    Option("gateway", kinds.URL, "Base URL of the gateway.", f"http://{_DEFAULTS.host}:{_DEFAULTS.port}"),
    Option(
        "api_key",
        kinds.text("KEY"),
        "Key of the gateway.",
        unset="the environment variable TRIO_SESSIONS_API_KEY",
        secret=True,
    ),
    Option("max_seq_len", kinds.INTEGER, "Longest sample in ids; what is longer loses its tail.", unset="no limit"),
    Option("force", kinds.FLAG, "Replace the file if it is there already.", False),
)

DEMO_OPTIONS: Final = (
    Option("seed", kinds.INTEGER, "Seed of what the engine samples; the same seed gives the same tokens.", 0),
)

VERIFY_OPTIONS: Final = (
    Option(
        "tokenizer",
        kinds.text("PATH_OR_ID"),
        f"Tokenizer to check, with its chat template: {BUILTIN_TOKENIZER}, a folder, or a hub id.",
        unset="required",
        positional=True,
        required=True,
    ),
    Option("family", kinds.text("NAME|auto"), "Model family whose chat format is rendered.", _DEFAULTS.family),
    Option(
        "chat_template",
        kinds.FILE,
        "File with a chat template: jinja text, or the Python encoder that comes with the model.",
        unset="the tokenizer's own",
    ),
    Option(
        "chat_template_kwargs",
        kinds.JSON_OBJECT,
        "Values for the chat template's variables, as for serve.",
        _DEFAULTS.chat_template_kwargs,
    ),
    Option("tools_as", kinds.choice(get_args(ToolsAs)), "Form of tool definitions, as for serve.", _DEFAULTS.tools_as),
    Option(
        "special_tokens_in_content",
        kinds.choice(get_args(SpecialTokensInContent)),
        "Text of a client that spells a control token, as for serve.",
        _DEFAULTS.special_tokens_in_content,
    ),
    Option("json", kinds.FLAG, "Print one JSON object instead of tables.", False),
)
