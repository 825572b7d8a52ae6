"""The demo's pure parts: its tool, the trace of a session, the report."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from trio_sessions.demo.failure import NotExact
from trio_sessions.demo.report import print_report
from trio_sessions.demo.run import Demonstration
from trio_sessions.demo.tools import TOOLS, execute
from trio_sessions.demo.trace import Origin, trace_session


def record(prompt: list[int], sampled: list[tuple[float, int]]) -> dict[str, Any]:
    entries = [[log_prob, token_id, None] for log_prob, token_id in sampled]
    return {
        "request": {"input_ids": prompt},
        "response": {"choices": [{"meta_info": {"output_token_logprobs": entries}}]},
    }


def session() -> dict[str, Any]:
    return {
        "records": [record([1, 2], [(-0.5, 3), (-0.25, 4)]), record([1, 2, 3, 4, 5], [(-1.0, 6)])],
        "metadata": {"accumulated_token_ids": [1, 2, 3, 4, 5, 6]},
    }


def test_a_trace_cuts_the_sequence_where_the_origin_changes():
    trace = trace_session(session())
    assert [(segment.origin, segment.turn, segment.token_ids) for segment in trace.segments] == [
        (Origin.PROMPT, 0, (1, 2)),
        (Origin.SAMPLED, 0, (3, 4)),
        (Origin.TEMPLATE, 1, (5,)),
        (Origin.SAMPLED, 1, (6,)),
    ]
    assert [segment.log_probs for segment in trace.segments] == [(), (-0.5, -0.25), (), (-1.0,)]


def test_the_sample_trains_what_was_sampled():
    sample = trace_session(session()).sample()
    assert sample.tokens == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 1)
    assert sample.log_probs == (0.0, 0.0, -0.5, -0.25, 0.0, -1.0)
    assert sample.response_length == 4


def test_a_session_without_turns_is_an_empty_sample():
    sample = trace_session({"records": [], "metadata": {"accumulated_token_ids": []}}).sample()
    assert (sample.tokens, sample.response_length) == ((), 0)


@pytest.mark.parametrize(
    ("prompt", "accumulated", "text"),
    [
        ([1, 2, 3, 9, 5], [1, 2, 3, 9, 5, 6], "the prompt of turn 2 has 9 at index 3, but 4 was there before"),
        ([1, 2, 3], [1, 2, 3, 6], "the prompt of turn 2 has 3 tokens, fewer than the 4"),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7], "the session's sequence has 7 at index 5"),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], "the session's sequence has 7 tokens, its last turn ends at 6"),
    ],
)
def test_a_session_that_is_not_exact_is_refused(prompt, accumulated, text):
    broken = session()
    broken["records"][1]["request"]["input_ids"] = prompt
    broken["metadata"]["accumulated_token_ids"] = accumulated
    with pytest.raises(NotExact, match=text):
        trace_session(broken)


def test_the_tool_answers_what_it_is_asked():
    name = TOOLS[0]["function"]["name"]
    for city in TOOLS[0]["function"]["parameters"]["properties"]["city"]["enum"]:
        assert json.loads(execute(name, json.dumps({"city": city})))["city"] == city


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("other", "{}"), ("get_weather", "{"), ("get_weather", "[]"), ("get_weather", '{"city": "Nowhere"}')],
)
def test_a_wrong_call_is_answered_with_an_error(name, arguments):
    assert json.loads(execute(name, arguments))["error"]


MESSAGES = [
    {"role": "user", "content": "[bold]not markup[/bold]"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}],
    },
]
PIECES = [["<|im_start|>", "user\n"], [" it", " is"], ["\n"], ["<|im_end|>"]]


def report(**options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False, **options)
    print_report(Demonstration(MESSAGES, trace_session(session()), PIECES, encoded_again=5), console)
    return out.getvalue()


def test_a_report_without_colours_says_everything():
    text = report(no_color=True)
    assert "\x1b" not in text
    for part in (
        "[bold]not markup[/bold]",
        "(thinks: hm)",
        'calls get_weather({"city": "Oslo"})',
        "[turn 1, prompt, 2 tokens]",
        "[turn 1, sampled, 2 tokens]",
        "[turn 2, template, 1 token]",
        "2 tokens, mean -0.375, lowest -0.500",
        "-0.250 ·is",
        "3 trained, 3 not",
        "Encoding the same text again would give 5 tokens",
    ):
        assert part in text


def test_a_report_on_a_terminal_colours_each_origin_its_own_way():
    text = report(force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[36m<|im_start|>user" in text
    assert "\x1b[1;32m it is" in text
