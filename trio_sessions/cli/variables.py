"""Environment variables that look like options and are none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from trio_sessions.cli.options import CONFIG, ENVIRONMENT_PREFIX, SERVE_OPTIONS

__all__ = ["misspelt_variables"]

# Of the project's own tests, which run gateways in the same environment.
_OF_TESTS: Final = frozenset(
    {
        "TRIO_SESSIONS_AGENTS",
        "TRIO_SESSIONS_AGENTS_CACHE",
        "TRIO_SESSIONS_KILLS",
        "TRIO_SESSIONS_KILLS_SEED",
    }
)


def misspelt_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each variable that has our prefix and sets nothing, in the order of their names.

    Args:
        names: of the variables that are set.
    """
    known = [option.variable for option in (*SERVE_OPTIONS, CONFIG)]
    ours = {name for name in names if name.upper().startswith(ENVIRONMENT_PREFIX)}
    unknown = sorted(ours - {*known, *_OF_TESTS})
    return [_sentence(name, known) for name in unknown]


def _sentence(name: str, known: list[str]) -> str:
    # Behind the prefix, which would make everything alike.
    options = {variable.removeprefix(ENVIRONMENT_PREFIX): variable for variable in known}
    close = get_close_matches(name.upper().removeprefix(ENVIRONMENT_PREFIX), options, n=1)
    meant = f"; did you mean {options[close[0]]}?" if close else ""
    return f"{name} is no option of trio-sessions serve and is ignored{meant}"
