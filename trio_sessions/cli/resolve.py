"""From command line, environment and file to ``Settings``: pure functions, except for the one that reads the file.

Precedence: command line, then environment, then file, then default. Only the value that wins is looked at.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trio_sessions.cli.options import CONFIG, SERVE_OPTIONS, Option, options_by_field
from trio_sessions.config import Settings
from trio_sessions.core.credentials import is_short
from trio_sessions.errors import ConfigurationError

__all__ = [
    "Argument",
    "Arguments",
    "ConfigFile",
    "ResolvedSettings",
    "config_path",
    "parse_arguments",
    "parse_config",
    "read_config",
    "resolve_settings",
]

Argument = str | bool | list[str]
Arguments = Mapping[str, Argument]
"""What a command line set, by field: text as typed, a list of it, or a bool for an option that stands alone."""

_FLAG: Final = re.compile(r"--([a-z][a-z-]*)")
_SECTION: Final = "serve"


# Where the command has another default than a gateway that is made in Python.
_OWN_DEFAULTS: Final = {
    option.field: option.default for option in SERVE_OPTIONS if option.default != getattr(Settings(), option.field)
}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file with known keys.

    Attributes:
        name: the path as the user gave it.
        values: decoded TOML values by field; their types are not checked yet.
    """

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings, and where those that no command line set came from.

    Attributes:
        settings: the valid settings.
        origins: by field, the environment variable or file that set it.
        warnings: what is accepted and may not have been meant, a sentence each.
    """

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def explain(self, text: str) -> str:
        """``text`` with the origin of the first option that it names, if a person has to look for it."""
        return _with_origin(text, self.origins)


def config_path(arguments: Arguments, environment: Mapping[str, str]) -> tuple[Path, str] | None:
    """The configuration file to read and the variable that named it (empty for the command line), or None."""
    if CONFIG.field in arguments:
        return CONFIG.read_text(str(arguments[CONFIG.field])), ""
    if named := environment.get(CONFIG.variable):
        return CONFIG.read_text(named, origin=CONFIG.variable), CONFIG.variable
    return None


def read_config(path: Path, *, origin: str = "") -> ConfigFile:
    """The configuration file at ``path``.

    Raises:
        ConfigurationError: it cannot be read, or as ``parse_config``.
    """
    try:
        return parse_config(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        place = f" (from {origin})" if origin else ""
        raise ConfigurationError(f"{CONFIG.flag}: cannot read {path}: {reason}{place}") from error


def parse_config(text: str, name: str) -> ConfigFile:
    """The values in the text of a configuration file.

    Keys are option names with dashes or underscores, at the top level or under ``[serve]``.

    Raises:
        ConfigurationError: it is not TOML, or has a key that is unknown or given twice; the text names it.
    """
    try:
        decoded = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{CONFIG.flag}: {name} is not valid TOML: {error}") from error
    section = decoded.pop(_SECTION, {})
    if not isinstance(section, dict):
        raise ConfigurationError(f"{CONFIG.flag}: {_SECTION} in {name} must be a table, [{_SECTION}]")
    known = options_by_field(SERVE_OPTIONS)
    values: dict[str, Any] = {}
    for key, value in (*decoded.items(), *section.items()):
        field = key.replace("-", "_")
        if field not in known:
            raise ConfigurationError(
                f"{CONFIG.flag}: unknown key {key!r} in {name}; keys are the option names of trio-sessions serve"
            )
        if field in values:
            raise ConfigurationError(f"{CONFIG.flag}: {key!r} is set twice in {name}")
        values[field] = value
    return ConfigFile(name, values)


def resolve_settings(
    arguments: Arguments, *, environment: Mapping[str, str], file: ConfigFile | None = None
) -> ResolvedSettings:
    """The settings of a gateway.

    Args:
        arguments: what the command line set.
        environment: environment variables; an empty one counts as not set.
        file: the configuration file, if there is one.

    Raises:
        ConfigurationError: a value is wrong, or two do not go together. One line that names the option and, unless it
            was on the command line, where the value came from.
    """
    values: dict[str, Any] = dict(_OWN_DEFAULTS)
    origins: dict[str, str] = {}
    for option in SERVE_OPTIONS:
        if option.field in arguments:
            values[option.field] = _argument(option, arguments[option.field])
        elif set_here := environment.get(option.variable):
            origins[option.field] = option.variable
            values[option.field] = option.read_variable(set_here)
        elif file is not None and option.field in file.values:
            origins[option.field] = file.name
            values[option.field] = option.read_toml(file.values[option.field], origin=file.name)
    try:
        settings = Settings(**values)
    except ConfigurationError as error:
        raise ConfigurationError(_with_origin(str(error), origins)) from error
    return ResolvedSettings(settings, origins, tuple(_warnings(values)))


def _warnings(values: Mapping[str, Any]) -> Iterator[str]:
    if any(map(is_short, values.get("api_key", ()))):
        yield "--api-key: a key is so short that it might be guessed"


def parse_arguments(options: tuple[Option, ...], arguments: Arguments) -> dict[str, Any]:
    """Every option's value, by field, for a command that reads nothing but its command line.

    Raises:
        ConfigurationError: a value is not of its option's kind.
    """
    return {
        option.field: _argument(option, arguments[option.field]) if option.field in arguments else option.default
        for option in options
    }


def _argument(option: Option, value: Argument) -> Any:
    if isinstance(value, bool):
        return value
    texts = [value] if isinstance(value, str) else value
    read = tuple(map(option.read_text, texts))
    return read if option.repeated else read[0]


def _with_origin(text: str, origins: Mapping[str, str]) -> str:
    named = _FLAG.search(text)
    origin = origins.get(named[1].replace("-", "_")) if named else None
    return f"{text} (from {origin})" if origin else text
