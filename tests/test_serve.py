"""The services of a gateway stand and fall together."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from trio_sessions import serve as serving
from trio_sessions.config import Settings
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import AddressInUse, ConfigurationError
from trio_sessions.render.load import load_renderer
from trio_sessions.serve import require_no_other_journals


class Crash(Exception):
    """What a service of ours must never raise."""


async def test_a_crash_of_the_engine_beside_it_ends_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = trio.Event()

    async def crashing_engine(settings: Settings, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started("http://127.0.0.1:1")
        await crash.wait()
        raise Crash

    monkeypatch.setattr(serving, "run_embedded_engine", crashing_engine)
    with trio.fail_after(30), pytest.RaisesGroup(Crash, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            running = await nursery.start(serving.serve, Settings(port=0))
            async with httpx.AsyncClient(base_url=running.base_url) as client:
                assert (await client.get("/health")).status_code == 200
                crash.set()
                await trio.sleep_forever()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(running.base_url)


async def test_a_second_gateway_on_the_same_port_is_refused_before_anything_is_loaded() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            running = await nursery.start(serving.serve, Settings(port=0))
            port = httpx.URL(running.base_url).port
            assert port is not None
            with pytest.raises(AddressInUse, match=f"cannot listen on 127.0.0.1:{port}"):
                await serving.serve(Settings(port=port, tokenizer="/nowhere"))
            nursery.cancel_scope.cancel()


async def test_what_the_launch_says_of_rendering_reaches_the_renderer(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    # The definitions first, then the turns; past thinking is dropped unless somebody asks for it.
    template.write_text(
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content and (loop.last or (preserve_thinking | default(false))) %}"
        "{{ m.reasoning_content }}{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": "f", "note": 1}}]
    with capture_logs() as logs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            settings = Settings(port=0, chat_template=template, tools_as="given")
            running = await nursery.start(serving.serve, settings)
            async with httpx.AsyncClient(base_url=running.base_url) as client:
                session = (await client.post("/sessions")).json()["session_id"]
                body = {"messages": [{"role": "user", "content": "hello"}], "tools": tools, "max_tokens": 1}
                assert (await client.post(f"/sessions/{session}/v1/chat/completions", json=body)).status_code == 200
                record = (await client.get(f"/sessions/{session}")).json()["records"][0]["request"]
            nursery.cancel_scope.cancel()
    renderer = load_renderer("builtin", chat_template=template, tools_as="given")
    prompt = renderer.decode(as_token_ids(record["input_ids"]))
    assert '{"type": "function", "function": {"name": "f", "note": 1}}' in prompt
    # What was chosen without being asked for is told, and reaches the engine.
    assert record["chat_template_kwargs"] == {"preserve_thinking": True}
    assert [line["note"] for line in logs if line["event"] == "renderer chosen"] == list(renderer.notes)
    assert "preserve_thinking=true" in renderer.notes[0]


async def test_a_gateway_that_is_served_says_how_late_its_loop_is() -> None:
    loaded = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            start = partial(serving.serve, Settings(port=0), loaded=lambda: loaded.append(trio.current_time()))
            running = await nursery.start(start)
            async with httpx.AsyncClient(base_url=running.base_url) as client:
                count = 0.0
                while not count:
                    metrics = (await client.get("/metrics")).text
                    found = re.search(r"^trio_sessions_loop_lag_seconds_count (\S+)", metrics, re.MULTILINE)
                    assert found is not None
                    count = float(found[1])
            nursery.cancel_scope.cancel()
    assert len(loaded) == 1


@pytest.mark.parametrize(
    ("before", "now", "left"), [(1, 2, "j"), (2, 1, "j.0"), (3, 2, "j.2"), (1, 1, ""), (3, 3, "")], ids=str
)
def test_another_number_of_workers_does_not_begin_anew(tmp_path, before, now, left):
    store = str(tmp_path / "j")
    for path in Settings(store=store, workers=before).journal_files:
        path.write_bytes(b"sessions")
    (tmp_path / "j.damaged-1").write_bytes(b"kept")
    settings = Settings(store=store, workers=now)
    if not left:
        require_no_other_journals(settings)
        return
    with pytest.raises(ConfigurationError, match="another number of --workers") as raised:
        require_no_other_journals(settings)
    assert f"which left {tmp_path / left}:" in str(raised.value)
