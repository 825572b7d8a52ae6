"""``trio-sessions verify``: probe a chat template, play the matrix of conversations, show both."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trio_sessions.cli.checks import check_family, check_tokenizer
from trio_sessions.cli.complaint import CRASHED
from trio_sessions.cli.progress import progress
from trio_sessions.config import SpecialTokensInContent, ToolsAs
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import ConfigurationError

if TYPE_CHECKING:
    from trio_sessions.render.template import TemplateRenderer
    from trio_sessions.render.verify import VerifyReport

__all__ = ["describe", "print_verification", "verify_and_show"]

_REACHES: Final = {"last turn": "turn before it", "history": "whole history"}
_TOOL_FORMS: Final = {"wrapper": "with their wrapper", "function": "bare functions", "given": "as given"}
_MOST_SHOWN: Final = 8
_STYLES: Final = {"passed": "green", "failed": "bold red", "skipped": "dim"}


async def verify_and_show(
    *,
    tokenizer: str,
    family: str,
    chat_template: Path | None,
    chat_template_kwargs: Mapping[str, Any],
    tools_as: ToolsAs,
    special_tokens_in_content: SpecialTokensInContent,
    json: bool,
) -> int:
    """Check a template and print what came of it; the exit status.

    Raises:
        ConfigurationError: the tokenizer cannot be loaded, or its template cannot be served; the text says why.
    """
    check_tokenizer(tokenizer, name="TOKENIZER")
    check_family(family)
    with progress(f"Checking the chat template of {tokenizer} ..."):
        try:
            renderer, report = await trio.to_thread.run_sync(
                partial(
                    _verify,
                    tokenizer,
                    family=family,
                    chat_template=chat_template,
                    chat_template_kwargs=chat_template_kwargs,
                    tools_as=tools_as,
                    special_tokens=special_tokens_in_content,
                )
            )
        except ConfigurationError as error:
            # Here the tokenizer is no option but an argument.
            raise ConfigurationError(str(error).replace("--tokenizer:", "TOKENIZER:", 1)) from error
    if json:
        _print_json({"tokenizer": tokenizer, "profile": describe(renderer), **report.to_json()})
    else:
        print_verification(renderer, report)
    return 0 if report.passed else CRASHED


def describe(renderer: TemplateRenderer) -> dict[str, Any]:
    """What the probe found, as JSON-like values: control tokens by their text, roles with the reason of a refusal."""
    profile = renderer.profile
    return {
        "family": renderer.name,
        "notes": list(renderer.notes),
        "kwargs": renderer.effective_kwargs({}),
        "terminators": {name: role.usual.terminator for name, role in sorted(profile.roles.items())},
        "terminators_behind_calls": {
            name: role.junctions["call"].terminator
            for name, role in sorted(profile.roles.items())
            if "call" in role.junctions and role.junctions["call"].terminator != role.usual.terminator
        },
        "stops": _texts(renderer, profile.stop_ids),
        "alternate_stops": _texts(renderer, profile.alternate_ids),
        "ambiguous_stops": _texts(renderer, profile.replaceable_ids),
        "max_trim_tokens": profile.max_trim_tokens,
        "separator": profile.separator,
        "opener": profile.generation_opener,
        "appendable_roles": sorted(profile.appendable_roles),
        "rendered_behind": {name: dict(role.reach) for name, role in profile.roles.items() if role.reach},
        "unjoined": {name: dict(role.unjoined) for name, role in profile.roles.items() if role.unjoined},
        "refused_roles": dict(sorted(profile.refused.items())),
        "generates_again": profile.again if isinstance(profile.again, str) else None,
        "arguments": profile.form.arguments,
        "content": profile.form.content,
        "tools": profile.tools,
        "thinking": _thinking(renderer),
        "past_thinking": profile.past_thinking,
        "keeps_thinking": dict(profile.keeps_thinking),
        "rewritten": sorted(profile.rewritten),
        "reads_clock": profile.reads_clock,
        "injection": list(profile.injection),
    }


def print_verification(renderer: TemplateRenderer, report: VerifyReport, console: Console | None = None) -> None:
    """Print the profile of a template and the matrix.

    Args:
        renderer: what was checked.
        report: what came of it.
        console: where to; standard output if None.
    """
    console = console or Console(highlight=False)
    console.print(_profile_table(describe(renderer)))
    console.print()
    console.print(_matrix(report))
    console.print()
    counts = ", ".join(f"{report.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    without = [role for role in ("user", "tool") if role in renderer.profile.refused]
    but = f", but without {' and '.join(without)} messages behind a turn" if without else ""
    verdict = Text(f"This template can be served exactly{but}", "bold yellow" if but else "bold green")
    if not report.passed:
        verdict = Text("This template is not served exactly", "bold red")
    console.print(verdict.append(f": {counts}.", "default not bold"))


def _profile_table(facts: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    by_terminator: dict[str, list[str]] = {}
    for role, terminator in facts["terminators"].items():
        by_terminator.setdefault(terminator, []).append(role)
    ends = [f"{_quoted(terminator)} before {', '.join(roles)}" for terminator, roles in by_terminator.items()]
    ends += [
        f"{_quoted(terminator)} behind a call before {role}"
        for role, terminator in facts["terminators_behind_calls"].items()
    ]
    thinking, rewritten = facts["thinking"], facts["rewritten"]
    keeping = " or ".join(f"{name}={json.dumps(value)}" for name, value in facts["keeps_thinking"].items())
    rows = [
        ("family", facts["family"]),
        *(("  note", note) for note in facts["notes"]),
        ("template kwargs", json.dumps(facts["kwargs"], ensure_ascii=False)),
        ("terminator", "; ".join(ends)),
        ("stop ids", _listed(facts["stops"])),
        ("alternate stops", _listed(facts["alternate_stops"]) or "none"),
        ("ambiguous stops", _listed(facts["ambiguous_stops"]) or "none"),
        ("max_trim_tokens", str(facts["max_trim_tokens"])),
        ("separator", _quoted(facts["separator"])),
        ("opener", _quoted(facts["opener"])),
        ("roles to append", ", ".join(facts["appendable_roles"])),
        *(
            (f"  {role}", f"behind a {kind} depends on the {_REACHES[reach]}, which is rendered with it")
            for role, reaches in facts["rendered_behind"].items()
            for kind, reach in reaches.items()
        ),
        *(
            (f"  {role}", f"not behind a {kind}: {reason}")
            for role, reasons in facts["unjoined"].items()
            for kind, reason in reasons.items()
        ),
        *((f"  not {role}", reason) for role, reason in facts["refused_roles"].items()),
        ("generate again", f"no: {facts['generates_again']}" if facts["generates_again"] else "yes"),
        ("tool arguments", "an object" if facts["arguments"] == "object" else "JSON text"),
        ("content", "a string" if facts["content"] == "string" else "a list of parts"),
        ("thinking", _quoted(thinking["open"]) + " to " + _quoted(thinking["close"]) if thinking else "no marks"),
        ("past thinking", facts["past_thinking"] + (f"; kept with {keeping}" if keeping else "")),
        ("history", f"rewritten when it has {' or '.join(rewritten)}" if rewritten else "append-only"),
        ("clock", "read: the date of a session's start is used" if facts["reads_clock"] else "not read"),
        ("tool definitions", _TOOL_FORMS[facts["tools"]]),
        ("control texts", f"{len(facts['injection'])}: {_some(facts['injection'])}"),
    ]
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _matrix(report: VerifyReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("Conversation")
    table.add_column("Turns", justify="right")
    table.add_column("Result")
    table.add_column("Remark", overflow="fold")
    for case in report.cases:
        table.add_row(Text(case.name), str(case.turns), Text(case.outcome, _STYLES[case.outcome]), Text(case.detail))
    return table


def _verify(tokenizer: str, **options: Any) -> tuple[TemplateRenderer, VerifyReport]:
    from trio_sessions.render.load import load_renderer
    from trio_sessions.render.verify import verify_renderer

    renderer = load_renderer(tokenizer, **options)
    return renderer, verify_renderer(renderer)


def _thinking(renderer: TemplateRenderer) -> dict[str, str] | None:
    thinking = renderer.profile.thinking
    if thinking is None:
        return None
    return {"open": renderer.decode(as_token_ids([thinking.open_id])), "close": thinking.close}


def _texts(renderer: TemplateRenderer, ids: frozenset[int]) -> list[dict[str, Any]]:
    return [{"id": token_id, "text": renderer.decode(as_token_ids([token_id]))} for token_id in sorted(ids)]


def _listed(tokens: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{_quoted(token['text'])} ({token['id']})" for token in tokens)


def _some(texts: Sequence[str]) -> str:
    shown = " ".join(texts[:_MOST_SHOWN])
    return shown if len(texts) <= _MOST_SHOWN else f"{shown} ..."


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()
