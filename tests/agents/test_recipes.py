"""The recipes of docs/agents.md, with the agents themselves: a tool turn and a final turn are one exact line.

The embedded engine is told which tool to call with which arguments, because an agent runs whatever is sampled.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio

from tests.agents.checks import assert_one_line, message, tool_result
from tests.agents.engine import Call
from tests.agents.install import Unavailable, cache_folder, install
from tests.agents.program import Ended, run
from tests.agents.recipes import Recipe, recipe
from tests.agents.stack import Exchange, Rollout, Stack, stack
from trio_sessions.core.samples import Sample

LIMIT_SECONDS = 120.0
SLOW_SECONDS = 2.0
TASK = "What is in note.txt?"
COMMAND = "cat note.txt"
CHAT, MESSAGES, RESPONSES = "v1/chat/completions", "v1/messages", "v1/responses"
CHOICE_VARIABLE = "TRIO_SESSIONS_AGENTS"


@dataclass(frozen=True)
class Agent:
    """An agent of the document, and what is known of it.

    Attributes:
        section: where its recipe is.
        path: where its turns have to arrive.
        calls: what it is made to call, all of it harmless; the first reads ``note.txt``.
        changes: text of the recipe, and what a variant has in its place.
        environment: variables of a variant.
        modes: of the gateway.
        thread: header with the id of its conversation.
        ends_with_a_call: whether what it says last are the arguments of a call.
    """

    section: str
    path: str
    calls: Sequence[Call]
    changes: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    modes: Sequence[str] = ("linear", "tree")
    thread: str | None = None
    ends_with_a_call: bool = False

    def recipe(self) -> Recipe:
        """The recipe of this variant."""
        written = recipe(self.section)
        program = written.program
        for old, new in self.changes.items():
            assert old in program, f"{self.section}: {old}"
            program = program.replace(old, new)
        return replace(written, program=program)


READ = (Call("read_file", {"path": "note.txt"}),)
CLAUDE = Agent("Claude Code", MESSAGES, [Call("Bash", {"command": COMMAND})], thread="x-claude-code-session-id")
CODEX = Agent("Codex", RESPONSES, [Call("exec_command", {"cmd": COMMAND})], thread="thread-id")
PI = Agent("pi", CHAT, [Call("bash", {"command": COMMAND})])
OPENCODE = Agent(
    "opencode",
    CHAT,
    [Call("bash", {"command": COMMAND, "description": "Reads the note"})],
    modes=["tree"],
    thread="x-session-id",
)
QWEN = Agent("qwen-code", CHAT, [Call("run_shell_command", {"command": COMMAND, "is_background": False})])
MINI = Agent(
    "mini-swe-agent",
    CHAT,
    [Call("bash", {"command": COMMAND}), Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})],
    ends_with_a_call=True,
)

NPM = {
    "claude": CLAUDE,
    "codex": CODEX,
    "pi-chat": PI,
    "pi-responses": replace(PI, path=RESPONSES, environment={"API": "openai-responses"}, thread="session_id"),
    "pi-messages": replace(PI, path="v1/v1/messages", environment={"API": "anthropic-messages"}),
}
MORE = {
    "opencode-chat": OPENCODE,
    "opencode-responses": replace(OPENCODE, path=RESPONSES, environment={"API": "@ai-sdk/openai"}),
    "opencode-messages": replace(OPENCODE, path=MESSAGES, environment={"API": "@ai-sdk/anthropic"}),
    "qwen-code": QWEN,
    "mini-swe-agent": MINI,
    "smolagents": Agent(
        "smolagents", CHAT, [*READ, Call("final_answer", {"answer": "It is read."})], ends_with_a_call=True
    ),
    "strands": Agent("strands", CHAT, READ),
    "litellm": Agent("litellm", CHAT, READ),
    "inspect": Agent("inspect-ai", CHAT, READ),
}
OPENAI_AGENTS = Agent("openai-agents", RESPONSES, READ)
LANGCHAIN = Agent("langchain", CHAT, READ)
PYDANTIC_AI = Agent("pydantic-ai", CHAT, READ)
BUNDLED = {
    "openai": Agent("openai", CHAT, READ),
    "anthropic": Agent("anthropic", MESSAGES, READ),
    "openai-agents-responses": OPENAI_AGENTS,
    "openai-agents-chat": replace(
        OPENAI_AGENTS, path=CHAT, changes={"OpenAIResponsesModel": "OpenAIChatCompletionsModel"}
    ),
    "langchain-chat": LANGCHAIN,
    "langchain-responses": replace(
        LANGCHAIN, path=RESPONSES, changes={'api_key="unused"': 'api_key="unused", use_responses_api=True'}
    ),
    "langchain-messages": replace(
        LANGCHAIN,
        path=MESSAGES,
        changes={
            "langchain_openai": "langchain_anthropic",
            "ChatOpenAI": "ChatAnthropic",
            "{session_url}/v1": "{session_url}",
        },
    ),
    "pydantic-ai-chat": PYDANTIC_AI,
    "pydantic-ai-responses": replace(PYDANTIC_AI, path=RESPONSES, changes={"OpenAIChatModel": "OpenAIResponsesModel"}),
    "pydantic-ai-messages": replace(
        PYDANTIC_AI,
        path=MESSAGES,
        changes={
            "OpenAIChatModel": "AnthropicModel",
            "OpenAIProvider": "AnthropicProvider",
            ".openai": ".anthropic",
            "{session_url}/v1": "{session_url}",
        },
    ),
}


def cases() -> Iterator[object]:
    """Agents that are to be installed, in every mode, with and without reasoning."""
    asked_for = pytest.mark.skipif(
        os.environ.get(CHOICE_VARIABLE) != "all", reason=f"on request: {CHOICE_VARIABLE}=all"
    )
    for name, agent in {**NPM, **MORE}.items():
        for mode in agent.modes:
            for thinks in (False, True):
                label = f"{name}-{mode}{'-thinks' if thinks else ''}"
                yield pytest.param(agent, mode, thinks, id=label, marks=[asked_for] if name in MORE else [])


@pytest.mark.agents
@pytest.mark.parametrize(("agent", "mode", "thinks"), [*cases()])
async def test_an_agent_as_it_is(
    agent: Agent, mode: str, thinks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        installed = await trio.to_thread.run_sync(install, agent.recipe().install, cache_folder())
    except Unavailable as reason:
        pytest.skip(str(reason))
    if installed.seconds > SLOW_SECONDS:
        with capsys.disabled():
            print(f"\n{agent.recipe().install}: {installed.seconds:.0f} s")
    await keeps_one_line(agent, mode, thinks=thinks, folder=tmp_path, programs=installed.bin)


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("agent", BUNDLED.values(), ids=BUNDLED)
async def test_a_library(agent: Agent, mode: str, thinks: bool, tmp_path: Path) -> None:
    await keeps_one_line(agent, mode, thinks=thinks, folder=tmp_path, programs=None)


async def keeps_one_line(agent: Agent, mode: str, *, thinks: bool, folder: Path, programs: Path | None) -> None:
    """The agent reads a note, because it is told to, and says something; nothing of that is lost or sampled twice."""
    written = agent.recipe()
    note = secrets.token_hex(8)
    (folder / "work").mkdir()
    (folder / "work" / "note.txt").write_text(f"{note}\n")
    async with stack(agent.calls, thinks=thinks, options=["--mode", mode, *written.options]) as served:
        ended = await run(
            written,
            session_url=served.session_url,
            task=TASK,
            folder=folder,
            programs=programs,
            environment=agent.environment,
            seconds=LIMIT_SECONDS,
        )
        rollout = await served.rollout()
    assert ended.status == 0, ended
    assert_answered(agent, served.exchanges, served.session_url)
    sample = assert_one_line(served, rollout, turns=2)
    assert_said(agent, rollout, ended, note=note, thinks=thinks)
    assert_caller(agent, served, sample)


def assert_answered(agent: Agent, exchanges: Sequence[Exchange], session_url: str) -> None:
    """Nothing was refused, and every turn came in where the agent's dialect has it."""
    assert {exchange.status for exchange in exchanges} == {200}, exchanges
    session_path = session_url[session_url.index("/sessions/") :]
    turns = [exchange for exchange in exchanges if exchange.method == "POST"]
    assert {exchange.path for exchange in turns} == {f"{session_path}/{agent.path}"}


def assert_said(agent: Agent, rollout: Rollout, ended: Ended, *, note: str, thinks: bool) -> None:
    """The agent ran the tool and sent back what that gave, and it printed the last answer."""
    first, last = (message(record) for record in rollout.records)
    [call] = first["tool_calls"]
    assert call["function"]["name"] == agent.calls[0].tool
    assert note in tool_result(rollout.records[1], call)
    assert [bool(said["reasoning_content"]) for said in (first, last)] == [thinks, thinks]
    if agent.ends_with_a_call:
        [call] = last["tool_calls"]
        assert call["function"]["name"] == agent.calls[1].tool
        [said] = agent.calls[1].arguments.values()
    else:
        said = last["content"]
    # Terminals wrap lines.
    assert "".join(said.split()) in "".join((ended.stdout + ended.stderr).split())


def assert_caller(agent: Agent, served: Stack, sample: Sample) -> None:
    """The sample names the conversation as the agent does."""
    if agent.thread is None:
        assert "caller" not in sample.metadata
        return
    [thread] = {exchange.headers[agent.thread] for exchange in served.exchanges if exchange.method == "POST"}
    assert thread
    assert sample.metadata["caller"] == {"thread": thread}
