"""What docs/agents.md says beside its recipes, which tests/agents runs, is run here as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.agents.recipes import PAGE, SECTIONS, blocks, recipe
from tests.agents.test_recipes import BUNDLED, MORE, NPM
from tests.processes import command
from trio_sessions.client import Client

GATEWAY = "http://127.0.0.1:8700"


def options(section: str) -> list[str]:
    """How a section starts its gateway, but for the port."""
    [line] = [text for language, text in blocks(section) if language == "sh"]
    program, serve, *rest = line.split()
    assert (program, serve) == ("trio-sessions", "serve")
    return ["serve", "--port", "0", *rest]


def python(section: str, session_url: str, more: str = "") -> None:
    """Run the snippet of a section, and ``more`` behind it."""
    [snippet] = [text for language, text in blocks(section) if language == "python"]
    program = f"session_url = {session_url!r}\n{snippet}\n{more}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_first_lines_make_a_session() -> None:
    [serve, session] = re.findall(r"```sh\n(.*?)```", PAGE.partition("| agent |")[0], re.DOTALL)
    with command(*serve.split()[1:], "--port", "0") as gateway:
        assert GATEWAY in session
        script = session.replace(GATEWAY, gateway.url) + 'printf "%s" "$SESSION"'
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=True)
        assert httpx.get(done.stdout).json()["records"] == []


def test_sub_agents_have_urls_of_their_own() -> None:
    section = "Side requests and sub-agents"
    with command(*options(section)) as gateway, Client(gateway.url) as client, client.session() as session:
        python(section, f"{gateway.url}/sessions/{session.id}")
        callers = [sample.metadata["caller"] for sample in session.samples().samples]
    assert callers == [{"agent": "writer"}, {"agent": "reviewer"}]
    assert all(f"`{caller}`".replace("'", '"') in PAGE for caller in callers)


def test_the_options_of_long_turns_are_options() -> None:
    with command(*options("Long turns")) as gateway:
        assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_a_request_with_a_key_is_answered_once() -> None:
    with command(*options("Retries")) as gateway, Client(gateway.url) as client, client.session() as session:
        python("Retries", f"{gateway.url}/sessions/{session.id}", "assert answer.status_code == 200")
        assert len(session.read().records) == 1


def test_what_is_left_is_in_a_header() -> None:
    with command(*options("Budgets")) as gateway, Client(gateway.url) as client, client.session() as session:
        python("Budgets", f"{gateway.url}/sessions/{session.id}", "assert 0 < remaining < 32768")


def test_every_recipe_is_run_and_everything_else_is_run_here() -> None:
    recipes = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    assert {agent.section for agent in {**NPM, **MORE, **BUNDLED}.values()} == set(recipes)
    table = PAGE.partition("| agent |")[2].partition("\n\n")[0]
    assert re.findall(r"\[([^]]+)\]\(#", table) == recipes
    others = [title for title in SECTIONS if title not in recipes and blocks(title)]
    assert others == ["Side requests and sub-agents", "Long turns", "Retries", "Budgets"]


def test_the_test_extra_has_what_the_library_recipes_install() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    extra = {re.split(r"[>=<]", line)[0] for line in project["project"]["optional-dependencies"]["test"]}
    for agent in BUNDLED.values():
        packages = recipe(agent.section).install.replace("'", "").removeprefix("pip install ").split()
        assert {re.split(r"[>=<]", package)[0] for package in packages} <= extra
