"""One line for a person and an exit status for a supervisor."""

from __future__ import annotations

import pytest
import trio

from trio_sessions.cli import app as cli_app
from trio_sessions.cli.complaint import CRASHED, INTERRUPTED, WRONG_USE, complain, report_failure
from trio_sessions.cli.progress import progress
from trio_sessions.cli.resolve import resolve_settings
from trio_sessions.cli.serving import banner, starting
from trio_sessions.config import Settings
from trio_sessions.errors import AddressInUse, ConfigurationError
from trio_sessions.serve import Running


def test_a_complaint_is_one_line(capsys):
    complain("a\n  b\tc")
    assert capsys.readouterr().err == "trio-sessions: error: a b c\n"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_configuration_error_is_found_inside_groups_and_names_its_origin(capsys, depth):
    resolved = resolve_settings({}, environment={"TRIO_SESSIONS_FAMILY": "x"})
    failure: Exception = ConfigurationError("--family x is unknown")
    for _ in range(depth):
        failure = ExceptionGroup("nursery", [failure])
    assert report_failure(failure, what="it", explain=resolved.explain) == WRONG_USE
    assert capsys.readouterr().err == "trio-sessions: error: --family x is unknown (from TRIO_SESSIONS_FAMILY)\n"


def test_an_address_in_use_is_no_wrong_use(capsys):
    assert report_failure(ExceptionGroup("", [AddressInUse("cannot listen")]), what="it") == CRASHED
    assert capsys.readouterr().err == "trio-sessions: error: cannot listen\n"


def test_a_crash_is_logged_and_named(capsys):
    assert report_failure(ExceptionGroup("", [RuntimeError("boom")]), what="the gateway") == CRASHED
    written = capsys.readouterr()
    assert written.err.endswith("trio-sessions: error: the gateway crashed: RuntimeError: boom\n")
    assert "crashed" in written.out + written.err.removesuffix("boom\n")


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: BaseExceptionGroup("nursery", [error])])
def test_an_interrupt_before_anything_runs_is_130(monkeypatch, wrap):
    async def interrupted(arguments):
        raise wrap(KeyboardInterrupt())

    monkeypatch.setattr(cli_app, "_demo", interrupted)
    assert cli_app.main(["demo"]) == INTERRUPTED


def test_what_is_not_an_interrupt_is_not_hidden(monkeypatch):
    async def broken(arguments):
        raise BaseExceptionGroup("", [SystemExit(3)])

    monkeypatch.setattr(cli_app, "_demo", broken)
    with pytest.RaisesGroup(SystemExit):
        cli_app.main(["demo"])


def test_commands_run_under_trio(monkeypatch):
    async def command(arguments):
        await trio.lowlevel.checkpoint()
        return 7 if arguments == {"seed": "3"} else 0

    monkeypatch.setattr(cli_app, "_demo", command)
    assert cli_app.main(["demo", "--seed", "3"]) == 7


def test_progress_is_one_plain_line_without_a_terminal(capsys):
    with progress("Starting: [x] ..."):
        assert capsys.readouterr().err == "Starting: [x] ...\n"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("workers", "files"), [(1, ["journal"]), (2, ["journal.0", "journal.1"])])
def test_a_large_journal_is_named_while_it_is_read(tmp_path, workers, files):
    settings = Settings(engine="http://127.0.0.1:5", store=str(tmp_path / "journal"), workers=workers)
    plain = "Starting: loading tokenizer builtin ..."
    assert starting(settings) == plain
    for name in files:
        (tmp_path / name).write_bytes(b"")
    assert starting(settings) == plain
    for name in files:
        with (tmp_path / name).open("ab") as file:
            # It takes no room on the disk.
            file.truncate(3 * 2**30 // len(files))
    journal = f"and reading the journal {tmp_path / 'journal'} (3.0 GiB) ..."
    assert starting(settings) == f"Starting: loading tokenizer builtin {journal}"
    assert starting(Settings(engine="http://127.0.0.1:5", store="memory")) == plain


RUNNING = Running(
    base_url="http://127.0.0.1:8700", engine_url="http://127.0.0.1:5", instance_id="a" * 32, family="chatml"
)


def test_the_banner_says_how_to_reach_use_and_stop_it():
    text = banner(Settings(engine="http://127.0.0.1:5", tokenizer="some/model"), RUNNING)
    for part in (
        "ready at http://127.0.0.1:8700\n",
        "curl -sX POST http://127.0.0.1:8700/sessions\n",
        "http://127.0.0.1:8700/sessions/<id>/v1/chat/completions",
        "    http://127.0.0.1:8700/sessions/<id>/v1\n",
        "http://127.0.0.1:5\n",
        "some/model",
        "Ctrl-C or SIGTERM",
        "30 s",
    ):
        assert part in text
    assert "toy" not in text


def test_the_banner_says_that_the_embedded_engine_is_a_toy():
    assert "a toy" in banner(Settings(), RUNNING)


def test_the_banner_warns_of_the_builtin_tokenizer_with_a_real_engine():
    assert "only for trying out" in banner(Settings(engine="http://127.0.0.1:5"), RUNNING)
