"""Agents are installed once, whole, and what goes wrong is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.agents.install import Unavailable, install

NOWHERE = "http://127.0.0.1:9"

needs_npm = pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node is not installed")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a program, which npm installs without a registry."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "package.json").write_text(json.dumps({"name": "hello", "version": "1.0.0", "bin": "hello.js"}))
    (folder / "hello.js").write_text("#!/usr/bin/env node\n")
    return folder


@needs_npm
def test_a_second_run_installs_nothing(package: Path, tmp_path: Path) -> None:
    command = f"npm install --global {package}"
    first = install(command, tmp_path / "cache")
    assert (first.bin / "hello").exists()
    assert first.seconds > 0
    shutil.rmtree(package)
    second = install(command, tmp_path / "cache")
    assert (second.bin, second.seconds) == (first.bin, 0.0)


@needs_npm
def test_what_was_left_half_done_is_done_again(package: Path, tmp_path: Path) -> None:
    command = f"npm install --global {package}"
    first = install(command, tmp_path / "cache")
    folder = first.bin.parents[1]
    (folder / ".installed").unlink()
    (folder / "left").touch()
    assert install(command, tmp_path / "cache").seconds > 0
    assert not (folder / "left").exists()
    assert (first.bin / "hello").exists()


@needs_npm
def test_what_fails_says_what_npm_printed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ENOENT"):
        install(f"npm install --global {tmp_path / 'missing'}", tmp_path / "cache")


@needs_npm
def test_without_npms_registry_an_agent_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", NOWHERE)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(Unavailable, match="npm's registry cannot be reached: ECONNREFUSED"):
        install("npm install --global hello@1.0.0", tmp_path / "cache")


def test_without_pips_index_an_agent_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(Unavailable, match="pip's registry cannot be reached"):
        install("pip install hello==1.0.0", tmp_path / "cache")


def test_without_npm_an_agent_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not installed"):
        install("npm install --global hello@1.0.0", tmp_path / "cache")
