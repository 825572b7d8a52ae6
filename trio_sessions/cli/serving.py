"""``trio-sessions serve``: start the gateway, say how to use it, wait for its end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trio_sessions import __version__
from trio_sessions.cli.checks import check_family, check_matcher, check_tokenizer
from trio_sessions.cli.complaint import announce, report_failure
from trio_sessions.cli.progress import progress
from trio_sessions.cli.resolve import ResolvedSettings
from trio_sessions.config import BUILTIN_TOKENIZER, Settings
from trio_sessions.errors import ConfigurationError
from trio_sessions.observe import configure_logging
from trio_sessions.process import allow_open_files, settle, share_heap
from trio_sessions.service.keys import with_keys_of_file
from trio_sessions.workers.restarts import WorkersFailed

if TYPE_CHECKING:
    from trio_sessions.serve import Running

__all__ = ["banner", "serve_until_stopped", "starting"]

# Is read in about half a second where the system has it in memory, and in some seconds where it has not.
_LARGE_JOURNAL_BYTES: Final = 512 * 2**20

_OTHER_FILES: Final = 64
_OPEN_FILES_ADVICE: Final = "raise ulimit -n, or lower --max-connections and --max-turns"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.cli")


async def serve_until_stopped(resolved: ResolvedSettings) -> int:
    """Serve until a signal or a failure; the exit status."""
    settings = resolved.settings
    share_heap()
    configure_logging(settings.log_level, settings.log_format)
    for warning in resolved.warnings:
        _log.warning(resolved.explain(warning))
    _allow_connections(settings)
    try:
        settings = with_keys_of_file(settings)
        check_tokenizer(settings.tokenizer)
        check_family(settings.family)
        if settings.message_matcher is not None:
            check_matcher(settings.message_matcher)
    except ConfigurationError as error:
        raise ConfigurationError(resolved.explain(str(error))) from error
    try:
        async with trio.open_nursery() as nursery:
            with progress(starting(settings)):
                if settings.workers == 1:
                    from trio_sessions.serve import serve

                    run = partial(serve, settings, loaded=settle)
                else:
                    from trio_sessions.workers.supervisor import serve_with_workers

                    run = partial(serve_with_workers, settings)
                running = await nursery.start(run)
            announce(banner(settings, running))
    except ExceptionGroup as failure:
        return report_failure(failure, what="the gateway", explain=resolved.explain, foreseen=(WorkersFailed,))
    return 0


def _allow_connections(settings: Settings) -> None:
    """Have the process open as many connections as its limits come to, or say that it may not."""
    # One for each client, one for each turn at the engine, and some for what else there is.
    wanted = settings.max_connections + settings.max_turns + _OTHER_FILES
    if settings.workers > 1:
        # What a worker passes on.
        wanted += settings.max_connections
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        _log.warning("the system allows too few open files", allowed=allowed, wanted=wanted, advice=_OPEN_FILES_ADVICE)


def starting(settings: Settings) -> str:
    """What is done before requests are answered, and may take a while."""
    text = f"Starting: loading tokenizer {settings.tokenizer}"
    size = sum(_size(path) for path in settings.journal_files)
    if size >= _LARGE_JOURNAL_BYTES:
        text += f" and reading the journal {settings.store} ({size / 2**30:.1f} GiB)"
    return f"{text} ..."


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # It is new, or what is wrong with it is said when it is opened.
        return 0


def _store(settings: Settings) -> str:
    files = [str(path.absolute()) for path in settings.journal_files]
    if not files:
        return "memory - sessions end with this process"
    named = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
    return f"{named} - sessions are there again after a restart"


def banner(settings: Settings, running: Running) -> str:
    """How to reach a running gateway, use it and stop it; what it works with."""
    url = running.base_url
    engine = (
        running.engine_url
        if settings.engine is not None
        else f"embedded at {running.engine_url} - a toy n-gram model, for trying out; give --engine URL for a real one"
    )
    tokenizer = settings.tokenizer
    if tokenizer == BUILTIN_TOKENIZER and settings.engine is not None:
        tokenizer += " - only for trying out; give --tokenizer PATH_OR_ID, the one of your model"
    workers = ""
    if running.worker_urls:
        workers = f"  workers     {len(running.worker_urls)}, each also at its own: {', '.join(running.worker_urls)}\n"
    with_key = for_turns = keys = ""
    if settings.guarded:
        with_key = ' -H "authorization: Bearer $TRIO_SESSIONS_API_KEY"'
        for_turns = " -H 'authorization: Bearer <token>'"
        keys = "  keys        needed: an API key, or for turns the token that comes with the session\n"
    turn = '{"model":"default","messages":[{"role":"user","content":"Hello"}]}'
    return f"""\
trio-sessions {__version__} is ready at {url}

  engine      {engine}
  tokenizer   {tokenizer} (chat format: {running.family})
  mode        {settings.mode}
  store       {_store(settings)}
{workers}{keys}
  Create a session:
    curl -sX POST {url}/sessions{with_key}
  Send it a turn, with the id from that answer in place of <id>:
    curl -s {url}/sessions/<id>/v1/chat/completions{for_turns} -H 'content-type: application/json' -d '{turn}'
  Base URL for an OpenAI client:
    {url}/sessions/<id>/v1
  Base URL for an Anthropic client, Claude Code for one:
    {url}/sessions/<id>
  Records for a trainer:
    curl -s {url}/sessions/<id>{with_key}

  Stop it with Ctrl-C or SIGTERM; running turns get {settings.drain_timeout:g} s to finish, and a second signal ends
  them at once.
"""
