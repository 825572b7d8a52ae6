"""The commands and the snippet of docs/keys.md run as they stand, but for the port."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import command
from trio_sessions.client import Client

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
MAKING_AND_SERVING, ASKING, ENCRYPTING = [block for language, block in BLOCKS if language == "sh"]
[PYTHON] = [block for language, block in BLOCKS if language == "python"]


def shell(lines: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def serving(line: str) -> list[str]:
    program, *arguments = line.split()
    assert program == "trio-sessions"
    return [*arguments, "--port", "0"]


def test_the_page_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one gateway, which takes time to start: it has TLS, and all else that the page says of one without."""
    monkeypatch.chdir(tmp_path)
    making, serve = MAKING_AND_SERVING.splitlines()
    certificate, serve_tls, asking_tls = ENCRYPTING.splitlines()
    assert serve_tls.startswith(serve)
    shell(making, tmp_path)
    shell(certificate, tmp_path)
    key = (tmp_path / "keys.txt").read_text().strip()

    with command(*serving(serve_tls)) as gateway:
        assert "keys        needed" in "".join(gateway.output)
        assert gateway.url.startswith("https://")
        assert json.loads(shell(asking_tls.replace("https://127.0.0.1:8700", gateway.url), tmp_path))["status"] == "ok"

        certificates = {"SSL_CERT_FILE": "cert.pem", "CURL_CA_BUNDLE": "cert.pem"}
        asking = ASKING.replace("http://127.0.0.1:8700", gateway.url).replace("\ncurl", "; echo\ncurl")
        created, listed, health = shell(asking, tmp_path, **certificates).splitlines()[1:]
        assert json.loads(listed)["sessions"][0]["session_id"] == json.loads(created)["session_id"]
        assert json.loads(health)["status"] == "ok"

        for name, value in {"TRIO_SESSIONS_API_KEY": key, **certificates}.items():
            monkeypatch.setenv(name, value)
        program = PYTHON.replace("http://127.0.0.1:8700", gateway.url)
        assert program != PYTHON
        left: dict[str, Any] = {}
        exec(program, left)
        assert sum(left["sample"].loss_mask) > 0
        with Client(gateway.url) as trainer, trainer.session() as session:
            token = session.token
            assert token is not None
            for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/samples")):
                url = f"{gateway.url}/sessions/{session.id}{below}"
                assert httpx.request(method, url, headers={"x-api-key": token}).status_code == 403
                assert httpx.request(method, url).status_code == 401
        with pytest.raises(httpx.HTTPError):
            httpx.get(gateway.url.replace("https", "http"))
        assert gateway.stop() == 0
    said = "".join((*gateway.output, *gateway.log))
    assert not any(secret in said for secret in (key, token))
