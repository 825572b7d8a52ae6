"""Real templates: what the probe finds, and the matrix of conversations under each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.render.real import template_of, unpack
from trio_sessions.errors import ConfigurationError
from trio_sessions.render.load import load_renderer
from trio_sessions.render.verify import verify_renderer

DROPPED = "the template drops the message"
MOVED = "the template moves the message before the assistant turn"
GLM_STOPS = {"<|endoftext|>", "<|user|>", "<|observation|>", "<|system|>"}


@dataclass(frozen=True)
class Facts:
    """What a template is known to do."""

    roles: set[str]
    refused: dict[str, str]
    stops: set[str]
    arguments: str = "object"
    content: str = "string"
    trim: int = 0
    thought: str | None = None
    past: str = "never written"
    keeps: dict[str, bool] = field(default_factory=dict)
    reaches: dict[str, set[str]] = field(default_factory=dict)


def chatml(*roles: str, **refused: str) -> Facts:
    return Facts(set(roles), refused, {"<|im_end|>"})


def deepseek(*roles: str, arguments: str = "string", **refused: str) -> Facts:
    return Facts(set(roles), refused, {"<｜end▁of▁sentence｜>"}, arguments)


THOUGHT = "\n</think>\n\n"


def drops(facts: Facts, close: str, **keeps: bool) -> Facts:
    """A template that drops past thinking, unless one of ``keeps`` says otherwise."""
    return replace(facts, thought=close, past="dropped", keeps=keeps)


GLM = Facts({"user", "tool", "system"}, {"developer": DROPPED}, GLM_STOPS, trim=1)
OLD_GLM = Facts({"user"}, {"tool": DROPPED, "system": MOVED, "developer": DROPPED}, {"<|user|>"}, trim=1)
QWEN35 = chatml("user", "tool", system="System message must be at the beginning", developer="Unexpected message role")
MINIMAX = Facts({"user", "tool"}, {"system": DROPPED, "developer": DROPPED}, {"[e~["})
FAMILIES = {
    "qwen-2.5": chatml("user", "tool", "system", developer=DROPPED),
    "qwen-3": drops(chatml("user", "tool", "system", developer=DROPPED), THOUGHT),
    "qwq-32b": replace(chatml("user", "tool", "system", developer=DROPPED), thought=THOUGHT),
    "qwen-3.5": drops(QWEN35, THOUGHT),
    "qwen-3.6": drops(QWEN35, THOUGHT),
    "glm-4-32b-0414": OLD_GLM,
    "glm-z1-32b-0414": OLD_GLM,
    "glm-4.5v": drops(GLM, "</think>\n"),
    "glm-4.6v": drops(GLM, "</think>\n"),
    "glm-4.7-flash": drops(GLM, "</think>", clear_thinking=False),
    "glm-5": drops(GLM, "</think>", clear_thinking=False),
    "glm-5.1": drops(GLM, "</think>", clear_thinking=False),
    "glm-5.2": drops(GLM, "</think>", clear_thinking=False),
    "minimax-m1-40k": Facts(
        {"user"},
        {"tool": "has no attribute 'name'", "system": MOVED, "developer": DROPPED},
        {"<end_of_sentence>"},
        content="parts",
    ),
    "minimax": drops(MINIMAX, THOUGHT),
    "minimax-m3": replace(MINIMAX, thought="</mm:think>", past="kept"),
    "deepseek-v2": deepseek("user", "system", arguments="object", tool=DROPPED, developer=DROPPED),
    "deepseek-v3": replace(
        deepseek("user", "tool", arguments="object", system=MOVED, developer=DROPPED), reaches={"tool": {"history"}}
    ),
    "deepseek-r1": replace(
        deepseek("user", "tool", system=MOVED, developer=DROPPED),
        thought=THOUGHT,
        reaches={"tool": {"history"}},
    ),
    "deepseek-r1-0528-qwen3-8b": replace(
        deepseek("user", "tool", system=MOVED, developer=DROPPED), reaches={"tool": {"history"}}
    ),
    "deepseek-v3.1": replace(deepseek("user", "tool", system=MOVED, developer=DROPPED), thought="</think>"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.parametrize("model", FAMILIES)
def test_a_family_is_probed_and_passes_the_matrix(model, folder):
    facts = FAMILIES[model]
    renderer = load_renderer(str(unpack(model, folder)), chat_template=template_of(model))
    profile = renderer.profile
    assert profile.appendable_roles == facts.roles
    assert profile.refused.keys() == facts.refused.keys()
    assert all(reason in profile.refused[role] for role, reason in facts.refused.items())
    assert {renderer.decode([stop]) for stop in profile.stop_ids} == facts.stops
    assert (profile.form.arguments, profile.form.content) == (facts.arguments, facts.content)
    assert profile.max_trim_tokens == facts.trim
    assert (profile.thinking.close if profile.thinking else None) == facts.thought
    assert {name: set(role.reach.values()) for name, role in profile.roles.items() if role.reach} == facts.reaches
    assert not profile.reads_clock
    # The kwarg that keeps past thinking is a default, where there is one.
    assert renderer.effective_kwargs({}) == facts.keeps
    assert profile.past_thinking == ("kept" if facts.keeps else facts.past)
    passes_the_matrix(renderer)


@pytest.mark.parametrize("model", [model for model, facts in FAMILIES.items() if facts.keeps])
def test_a_template_that_drops_past_thinking_is_served_as_well(model, folder):
    facts = FAMILIES[model]
    renderer = load_renderer(str(unpack(model, folder)), family="default", chat_template=template_of(model))
    assert renderer.effective_kwargs({}) == {}
    assert (renderer.profile.past_thinking, renderer.profile.keeps_thinking) == (facts.past, facts.keeps)
    assert "thinking" in renderer.profile.rewritten
    passes_the_matrix(renderer)


def passes_the_matrix(renderer):
    report = verify_renderer(renderer)
    assert report.passed, str(report)
    # A case is skipped for a refused role or a template that says no, and most are not.
    assert report.count("passed") >= 15
    assert all(case.detail for case in report.cases if case.outcome == "skipped")


def test_a_template_that_separates_turns_by_text_alone_is_refused_with_the_reason(folder):
    with pytest.raises(ConfigurationError, match="no control token separates the assistant turn from what follows"):
        load_renderer(str(unpack("deepseek-vl2-small", folder)))
