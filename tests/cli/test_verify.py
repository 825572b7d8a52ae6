"""``trio-sessions verify``: what it shows, and how it ends."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tests.render.families import TEMPLATES, renderer_of
from tests.tokenizers import qwen3_tokenizer
from trio_sessions.cli.app import main
from trio_sessions.cli.verify import describe, print_verification
from trio_sessions.render.verify import CaseReport, VerifyReport


def printed(name, report, **options):
    out = io.StringIO()
    print_verification(renderer_of(name), report, Console(file=out, width=120, highlight=False, **options))
    return out.getvalue()


PASSED = VerifyReport((CaseReport("a walk", "passed", 3), CaseReport("a [b]talk[/b]", "skipped", 1, "[i]because[/i]")))
FAILED = VerifyReport((CaseReport("a walk", "failed", 3, "expected this, found that"),))


def test_the_profile_of_a_template_with_an_ambiguous_stop():
    text = printed("glm", PASSED)
    for line in (
        'terminator        "<|system|>" before system; "<|observation|>" before tool; "<|user|>" before user',
        "max_trim_tokens   1",
        'opener            "<|assistant|>\\n"',
        "roles to append   system, tool, user",
        "  not developer   the template drops the message",
        "tool arguments    an object",
        "content           a string",
    ):
        assert line in text
    ambiguous = next(line for line in text.splitlines() if line.startswith("ambiguous stops"))
    assert all(token in ambiguous for token in ("<|user|>", "<|observation|>", "<|system|>"))


def test_the_profile_of_an_ordinary_template():
    text = printed("mistral", PASSED)
    assert 'terminator        "</s>" before tool, user' in text
    assert "ambiguous stops   none" in text
    assert "  not system      the chat template refuses the messages: roles must be user" in text
    assert "content           a list of parts" in printed("parts", PASSED)
    assert "tool definitions  bare functions" in printed("bare functions", PASSED)
    assert "tool arguments    JSON text" in printed("string arguments", PASSED)


def test_thinking_and_the_clock():
    text = printed("thinks", PASSED)
    assert 'thinking          "<think>" to "</think>"' in text
    assert "past thinking     dropped; kept with preserve_thinking=true" in text
    assert "clock             not read" in text
    text = printed("reads the clock", PASSED)
    assert "thinking          no marks" in text
    assert "past thinking     never written" in text
    assert "clock             read: the date of a session's start is used" in text


def test_the_matrix_and_the_verdict():
    text = printed("chatml", PASSED)
    assert "a [b]talk[/b]" in text
    assert "[i]because[/i]" in text
    assert text.endswith("This template can be served exactly: 1 passed, 0 failed, 1 skipped.\n")
    text = printed("chatml", FAILED)
    assert "expected this, found that" in text
    assert text.endswith("This template is not served exactly: 0 passed, 1 failed, 0 skipped.\n")


def test_a_failure_is_coloured_on_a_terminal():
    text = printed("chatml", FAILED, force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[1;31mfailed" in text


def test_what_was_found_is_json():
    facts = json.loads(json.dumps(describe(renderer_of("qwen3"))))
    assert facts["stops"] == [{"id": 151645, "text": "<|im_end|>"}]
    assert facts["appendable_roles"] == ["system", "tool", "user"]
    assert facts["thinking"] == {"open": "<think>", "close": "\n</think>\n\n"}
    assert facts["refused_roles"] == {"developer": "the template drops the message"}


def test_a_template_that_passes_ends_with_0(run):
    done = run("verify", str(qwen3_tokenizer()), "--json")
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert answer["passed"]
    assert answer["profile"]["max_trim_tokens"] == 0
    assert {case["outcome"] for case in answer["cases"]} == {"passed", "skipped"}
    assert "Traceback" not in done.err


def test_a_template_that_is_refused_ends_with_2_and_one_line(capsys, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert main(["verify", "builtin", "--chat-template", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("trio-sessions: error: nothing can be appended")


def test_a_template_file_that_cannot_be_read(capsys):
    assert main(["verify", "builtin", "--chat-template", "absent.jinja"]) == 2
    assert "cannot read --chat-template absent.jinja" in capsys.readouterr().err


def test_kwargs_reach_the_template(capsys, tmp_path):
    file = tmp_path / "t.jinja"
    # The built-in vocabulary has no second end of a turn, so the opener shows that the value came through.
    file.write_text(TEMPLATES["chatml"].replace("assistant\n", "assistant {{ mood }}\n"))
    arguments = ["verify", "builtin", "--chat-template", str(file), "--chat-template-kwargs", '{"mood": "calm"}']
    assert main(arguments) == 0
    assert 'opener            "<|im_start|>assistant calm\\n"' in capsys.readouterr().out


def test_a_case_that_fails_ends_with_1(capsys, monkeypatch):
    monkeypatch.setattr("trio_sessions.render.verify.verify_renderer", lambda _: FAILED)
    assert main(["verify", "builtin"]) == 1
    assert "not served exactly" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_nothing_but_the_result_is_on_standard_output(capsys, arguments):
    assert main(["verify", "builtin", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "Checking the chat template of builtin" in err
    assert "Checking" not in out


def test_a_tokenizer_that_cannot_be_loaded_is_named_as_it_was_given(capsys, tmp_path):
    assert main(["verify", str(tmp_path)]) == 2
    assert f"trio-sessions: error: TOKENIZER: cannot load '{tmp_path}'" in capsys.readouterr().err
