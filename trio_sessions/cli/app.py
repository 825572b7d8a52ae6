"""The command line: the only module that knows the argument parser.

Options are handed on as text and read by ``options``, so that a value is refused in the same words wherever it
came from. The parser only splits the line, knows the names and prints the help.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError

from trio_sessions import __version__
from trio_sessions.cli.complaint import INTERRUPTED, PROGRAM, WRONG_USE, complain, warn
from trio_sessions.cli.options import (
    CONFIG,
    DEMO_OPTIONS,
    ENGINE_OPTIONS,
    SAMPLES_OPTIONS,
    SERVE_OPTIONS,
    VERIFY_OPTIONS,
    Option,
)
from trio_sessions.cli.resolve import (
    Argument,
    Arguments,
    config_path,
    parse_arguments,
    read_config,
    resolve_settings,
)
from trio_sessions.cli.variables import misspelt_variables
from trio_sessions.errors import ConfigurationError

__all__ = ["build_app", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status.

    0: done, or stopped on request. 1: it failed. 2: the command line, the environment or the file is wrong.

    Args:
        argv: arguments without the program's name; None reads the process's own.
    """
    # Its advice is for those who train or load models with it; here it only reads tokenizers.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        status = build_app()(list(sys.argv[1:] if argv is None else argv))
    except CycloptsError as error:
        complain(_sentence(error))
        return WRONG_USE
    except ConfigurationError as error:
        complain(str(error))
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseExceptionGroup as failure:
        if failure.subgroup(KeyboardInterrupt) is None:
            raise
        return INTERRUPTED
    return int(status or 0)


def build_app() -> App:
    """The parser with all commands; calling it with arguments runs one and returns its exit status."""
    app = App(
        name=PROGRAM,
        help="A token-exact session gateway: agents speak chat, trainers get the ids that were sampled.",
        version=__version__,
        backend="trio",
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        help_format="plaintext",
    )
    _add(app, "serve", _serve, (*SERVE_OPTIONS, CONFIG), environment=True)
    _add(app, "engine", _engine, ENGINE_OPTIONS)
    _add(app, "verify", _verify, VERIFY_OPTIONS)
    _add(app, "samples", _samples, SAMPLES_OPTIONS)
    _add(app, "demo", _demo, DEMO_OPTIONS)
    return app


async def _serve(arguments: Arguments) -> int:
    """Serve sessions until it is stopped.

    Every option can also be set by its environment variable or in a TOML file.
    The command line wins over the environment, the environment over the file.
    """
    for text in misspelt_variables(os.environ):
        warn(text)
    named = config_path(arguments, os.environ)
    file = read_config(named[0], origin=named[1]) if named else None
    resolved = resolve_settings(arguments, environment=os.environ, file=file)

    from trio_sessions.cli.serving import serve_until_stopped

    return await serve_until_stopped(resolved)


async def _engine(arguments: Arguments) -> int:
    """Serve the embedded engine alone, with a toy model or one of yours, to try a gateway or a client against."""
    values = parse_arguments(ENGINE_OPTIONS, arguments)

    from trio_sessions.cli.engine import serve_engine_until_stopped

    return await serve_engine_until_stopped(**values)


async def _demo(arguments: Arguments) -> int:
    """Run a small agent for three turns, and show which tokens came from where and what a trainer gets."""
    values = parse_arguments(DEMO_OPTIONS, arguments)

    from trio_sessions.cli.demo import run_and_show

    return await run_and_show(**values)


async def _verify(arguments: Arguments) -> int:
    """Check whether a model's chat template can be served exactly, and show what was found out about it.

    The exit status is 0 if every conversation of the matrix passed, 1 if one failed, 2 if the template is refused.
    """
    values = parse_arguments(VERIFY_OPTIONS, arguments)

    from trio_sessions.cli.verify import verify_and_show

    return await verify_and_show(**values)


async def _samples(arguments: Arguments) -> int:
    """Write the training samples of sessions to a file; the sessions stay as they are.

    The exit status is 1 if a session failed; the samples of the others are written nevertheless.
    """
    values = parse_arguments(SAMPLES_OPTIONS, arguments)

    from trio_sessions.cli.samples import export_and_report

    return await export_and_report(**values)


def _add(
    app: App,
    name: str,
    run: Callable[[Arguments], Awaitable[int]],
    options: tuple[Option, ...],
    *,
    environment: bool = False,
) -> None:
    """Register a command whose parameters are ``options``."""
    places = [option.field for option in options if option.positional]

    async def command(*placed: Argument, **named: Argument | None) -> int:
        given: dict[str, Argument | None] = {**dict(zip(places, placed, strict=True)), **named}
        return await run({field: value for field, value in given.items() if value is not None})

    command.__doc__ = run.__doc__
    command.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(
                option.field,
                inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.required else None,
                annotation=_annotation(option, environment=environment),
            )
            for option in options
        ]
    )
    app.command(command, name=name)


def _annotation(option: Option, *, environment: bool) -> Any:
    meaning = f"{option.meaning} [env: {option.variable}]" if environment else option.meaning
    value: Any = bool if option.kind.is_flag else list[str] if option.repeated else str
    if not (option.positional and option.repeated):
        value |= None
    return Annotated[
        value,
        Parameter(
            name=None if option.positional else option.flag,
            help=meaning,
            metavar=option.kind.metavar or None,
            show_default=lambda _: option.default_text,
            # A negative number is a value, to be refused by the option that gets it.
            allow_leading_hyphen=option.kind.metavar in ("N", "PORT", "SECONDS"),
        ),
    ]


def _sentence(error: CycloptsError) -> str:
    """What the parser found wrong, where its own words would puzzle a user."""
    unused = (error.unused_tokens or [""])[0]
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {unused!r}: options are written --name VALUE"
    if isinstance(error, UnknownCommandError) and unused.startswith("-"):
        return f"unknown option {unused}: the options of a command follow its name; see {PROGRAM} --help"
    return str(error)
