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

from tests.agents.checks import assert_one_line, message, tool_result
from tests.agents.cut import losing_an_answer
from tests.agents.engine import Call
from tests.agents.install import Unavailable, cache_folder, install
from tests.agents.program import Ended, run
from tests.agents.recipes import Recipe, recipe
from tests.agents.stack import Rollout, Stack, stack
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
        side: what it asks for beside its task.
        counts: whether a second attempt at a request says that it is one.
    """

    section: str
    path: str
    calls: Sequence[Call]
    changes: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    modes: Sequence[str] = ("linear", "tree")
    thread: str | None = None
    ends_with_a_call: bool = False
    side: Sequence[str] = ()
    counts: bool = False

    def recipe(self) -> Recipe:
        """The recipe of this variant."""
        written = recipe(self.section)
        program = written.program
        for old, new in self.changes.items():
            assert old in program, f"{self.section}: {old}"
            program = program.replace(old, new)
        return replace(written, program=program)


@dataclass(frozen=True)
class RolledOut:
    """An agent that has run.

    Attributes:
        stack: where.
        rollout: what its session holds.
        ended: how it ended.
        note: what it was to read.
    """

    stack: Stack
    rollout: Rollout
    ended: Ended
    note: str


READ = (Call("read_file", {"path": "note.txt"}),)
CLAUDE = Agent("Claude Code", MESSAGES, [Call("Bash", {"command": COMMAND})], thread="x-claude-code-session-id")
CODEX = Agent("Codex", RESPONSES, [Call("exec_command", {"cmd": COMMAND})], thread="thread-id")
PI = Agent("pi", CHAT, [Call("bash", {"command": COMMAND})], counts=True)
OPENCODE = Agent(
    "opencode", CHAT, [Call("bash", {"command": COMMAND, "description": "Reads the note"})], thread="x-session-id"
)
QWEN = Agent(
    "qwen-code",
    CHAT,
    [Call("run_shell_command", {"command": COMMAND, "is_background": False})],
    environment={"HTTPS_PROXY": ""},
)
MINI = Agent(
    "mini-swe-agent",
    CHAT,
    [
        Call("bash", {"command": COMMAND}),
        Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}, behind_result=True),
    ],
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
    "opencode-titles": replace(
        OPENCODE, modes=["tree"], changes={'    "agent": {"title": {"disable": true}},\n': ""}, side=["title"]
    ),
    "opencode-responses": replace(OPENCODE, path=RESPONSES, environment={"API": "@ai-sdk/openai"}),
    "opencode-messages": replace(OPENCODE, path=MESSAGES, environment={"API": "@ai-sdk/anthropic"}),
    "qwen-code": QWEN,
    "mini-swe-agent": MINI,
    "smolagents": Agent(
        "smolagents",
        CHAT,
        [*READ, Call("final_answer", {"answer": "It is read."}, behind_result=True)],
        ends_with_a_call=True,
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


# In no test of trio, where the reason of a skip would be lost.
@pytest.fixture
def programs(agent: Agent, capsys: pytest.CaptureFixture[str]) -> Path:
    """The programs of an agent, installed if need be."""
    command = agent.recipe().install
    try:
        installed = install(command, cache_folder())
    except Unavailable as reason:
        pytest.skip(str(reason))
    if installed.seconds > SLOW_SECONDS:
        with capsys.disabled():
            print(f"\n{command}: {installed.seconds:.0f} s")
    return installed.bin


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
async def test_an_agent_as_it_is(agent: Agent, mode: str, thinks: bool, tmp_path: Path, programs: Path) -> None:
    await keeps_one_line(agent, mode, thinks=thinks, folder=tmp_path, programs=programs)


@pytest.mark.agents
@pytest.mark.parametrize("agent", NPM.values(), ids=NPM)
async def test_an_agent_whose_streams_begin_before_the_answer(agent: Agent, tmp_path: Path, programs: Path) -> None:
    options = ("--stream-grace", "0.05", "--stream-keep-alive", "0.1")
    done = await keeps_one_line(
        agent, "tree", thinks=True, folder=tmp_path, programs=programs, options=options, latency=0.5
    )
    # At the least what opened the stream, something behind that, and the end.
    assert all(exchange.pieces >= 3 for exchange in done.stack.exchanges if exchange.method == "POST")


@pytest.mark.agents
@pytest.mark.parametrize("agent", NPM.values(), ids=NPM)
async def test_an_agent_whose_streams_are_the_engines(agent: Agent, tmp_path: Path, programs: Path) -> None:
    done = await keeps_one_line(
        agent, "tree", thinks=True, folder=tmp_path, programs=programs, options=("--stream", "real")
    )
    # In how many pieces an answer comes depends on how fast it is sampled; that it was asked for as a stream does not.
    assert [record["request"].get("stream") for record in done.rollout.records] == [True, True]


@pytest.mark.agents
@pytest.mark.parametrize("agent", NPM.values(), ids=NPM)
async def test_an_agent_that_loses_an_answer_asks_again(agent: Agent, tmp_path: Path, programs: Path) -> None:
    written = agent.recipe()
    written = replace(written, options=["--mode", "tree", *written.options])
    done = await rolled_out(written, agent, thinks=True, folder=tmp_path, programs=programs, loses=2)
    assert done.ended.status == 0, done.ended
    assert_answered(agent, done.stack)
    assert_said(agent, done, thinks=True)
    # Only one that says that it asks again gets the answer that was lost; of two answers the later one counts.
    assert done.stack.count("trio_sessions_turns_total", outcome="repeated") == agent.counts
    parents = [node["parent"] for node in done.rollout.metadata["tree"]["nodes"]]
    assert parents == ([None, 0] if agent.counts else [None, 0, 0])
    [sample] = done.rollout.samples
    assert sample.metadata["leaf"]["path_node_ids"] == [0, len(parents) - 1]


@pytest.mark.agents
@pytest.mark.parametrize("agent", [CLAUDE], ids=["claude"])
async def test_two_sub_agents_with_the_same_prompt_at_once(agent: Agent, tmp_path: Path, programs: Path) -> None:
    task = {"subagent_type": "general-purpose", "description": "Reads", "prompt": TASK, "run_in_background": False}
    agent = replace(agent, calls=[Call("Agent", task, times=2), *agent.calls, *agent.calls])
    written = replace(agent.recipe(), options=["--mode", "tree", "--sample-picker", "by_agent"])
    done = await rolled_out(written, agent, thinks=True, folder=tmp_path, programs=programs)
    assert done.ended.status == 0, done.ended
    assert {exchange.status for exchange in done.stack.exchanges} == {200}
    nodes = done.rollout.metadata["tree"]["nodes"]
    callers = [sample.metadata["caller"] for sample in done.rollout.samples]
    assert [sorted(caller) for caller in callers] == [["thread"], ["agent", "thread"], ["agent", "thread"]]
    assert callers[1]["agent"] != callers[2]["agent"]
    paths = [sample.metadata["leaf"]["path_node_ids"] for sample in done.rollout.samples]
    assert sorted(id_ for path in paths for id_ in path) == [node["id"] for node in nodes] == list(range(6))
    for caller, path in zip(callers, paths, strict=True):
        assert [nodes[id_]["caller"] for id_ in path] == [caller, caller]


@pytest.mark.parametrize(("mode", "thinks"), [("linear", True), ("tree", False)])
@pytest.mark.parametrize("agent", BUNDLED.values(), ids=BUNDLED)
async def test_a_library(agent: Agent, mode: str, thinks: bool, tmp_path: Path) -> None:
    await keeps_one_line(agent, mode, thinks=thinks, folder=tmp_path, programs=None)


async def test_one_that_re_spells_its_answers_needs_the_matcher(tmp_path: Path) -> None:
    written = replace(PYDANTIC_AI.recipe(), options=["--mode", "tree", "--message-matcher", "strict"])
    done = await rolled_out(written, PYDANTIC_AI, thinks=True, folder=tmp_path, programs=None)
    assert done.ended.status == 0, done.ended
    assert [node["parent"] for node in done.rollout.metadata["tree"]["nodes"]] == [None, None]


async def keeps_one_line(
    agent: Agent,
    mode: str,
    *,
    thinks: bool,
    folder: Path,
    programs: Path | None,
    options: Sequence[str] = (),
    latency: float = 0.0,
) -> RolledOut:
    """The agent reads a note, because it is told to, and says something; nothing of that is lost or sampled twice."""
    written = agent.recipe()
    written = replace(written, options=["--mode", mode, *written.options, *options])
    done = await rolled_out(written, agent, thinks=thinks, folder=folder, programs=programs, latency=latency)
    assert done.ended.status == 0, done.ended
    assert_answered(agent, done.stack)
    sample = assert_one_line(done.stack, done.rollout, turns=2, side=agent.side)
    assert_said(agent, done, thinks=thinks)
    assert_caller(agent, done.stack, sample)
    return done


async def rolled_out(
    written: Recipe,
    agent: Agent,
    *,
    thinks: bool,
    folder: Path,
    programs: Path | None,
    latency: float = 0.0,
    loses: int | None = None,
) -> RolledOut:
    """Runs a recipe, with a note in its folder that nobody can guess.

    Args:
        written: the recipe.
        agent: whose.
        thinks, latency: of the engine, as for ``stack``.
        folder: where it runs.
        programs: as for ``run``.
        loses: the POST whose answer is lost on the way.
    """
    note = secrets.token_hex(8)
    (folder / "work").mkdir()
    (folder / "work" / "note.txt").write_text(f"{note}\n")
    async with stack(agent.calls, thinks=thinks, options=written.options, latency=latency) as served:
        async with losing_an_answer(served.port, turn=loses or 0) as port:
            ended = await run(
                written,
                session_url=served.session_url if loses is None else served.url_by_way_of(port),
                task=TASK,
                folder=folder,
                programs=programs,
                environment=agent.environment,
                seconds=LIMIT_SECONDS,
            )
        return RolledOut(served, await served.rollout(), ended, note)


def assert_answered(agent: Agent, served: Stack) -> None:
    """Nothing was refused, and every turn came in where the agent's dialect has it."""
    assert {exchange.status for exchange in served.exchanges} == {200}, served.exchanges
    session_path = served.session_url[served.session_url.index("/sessions/") :]
    turns = [exchange for exchange in served.exchanges if exchange.method == "POST"]
    assert {exchange.path for exchange in turns} == {f"{session_path}/{agent.path}"}


def assert_said(agent: Agent, done: RolledOut, *, thinks: bool) -> None:
    """The agent ran the tool and sent back what that gave, and it printed the last answer."""
    first, last = (message(record) for record in done.rollout.records)
    [call] = first["tool_calls"]
    assert call["function"]["name"] == agent.calls[0].tool
    assert done.note in tool_result(done.rollout.records[1], call)
    assert [bool(said.get("reasoning_content")) for said in (first, last)] == [thinks, thinks]
    if agent.ends_with_a_call:
        [call] = last["tool_calls"]
        assert call["function"]["name"] == agent.calls[1].tool
        [said] = agent.calls[1].arguments.values()
    else:
        said = last["content"]
    # Terminals wrap lines.
    assert "".join(said.split()) in "".join(done.ended.stdout.split())


def assert_caller(agent: Agent, served: Stack, sample: Sample) -> None:
    """The sample names the conversation as the agent does."""
    if agent.thread is None:
        assert "caller" not in sample.metadata
        return
    [thread] = {exchange.headers[agent.thread] for exchange in served.exchanges if exchange.method == "POST"}
    assert thread
    assert sample.metadata["caller"] == {"thread": thread}
