from __future__ import annotations

import json

import pytest

from tests.render.conversations import user
from tests.render.families import CHATML_SPECIALS, TEMPLATES, renderer_of
from tests.render.vocabularies import byte_level
from trio_sessions.errors import ConfigurationError
from trio_sessions.render.load import load_renderer


@pytest.fixture
def folder(tmp_path):
    byte_level(CHATML_SPECIALS, eos="<|im_end|>").save_pretrained(tmp_path)
    return tmp_path


def test_an_unknown_family():
    with pytest.raises(ConfigurationError, match="unknown family 'qwen4'; choose one of auto, default, qwen3,"):
        load_renderer("builtin", family="qwen4")


def test_a_folder_without_a_template_says_what_to_do(folder):
    with pytest.raises(ConfigurationError, match="has no chat template; give one with --chat-template FILE"):
        load_renderer(str(folder))


def test_a_template_of_ones_own(folder):
    renderer = load_renderer(str(folder), chat_template=TEMPLATES["chatml"])
    assert renderer.decode(renderer.render([user("a")], tools=None, kwargs={})).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("eos", [[1, 2], 2])
def test_the_generation_config_names_further_stops(folder, eos):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    renderer = load_renderer(str(folder), chat_template=TEMPLATES["chatml"])
    assert 2 in renderer.profile.stop_ids


@pytest.mark.parametrize("text", ["{", '{"eos_token_id": "x"}'])
def test_a_broken_generation_config(folder, text):
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        load_renderer(str(folder), chat_template=TEMPLATES["chatml"])


@pytest.mark.parametrize("content", [None, "{"])
def test_a_folder_that_is_no_tokenizer(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigurationError, match="--tokenizer: cannot load") as caught:
        load_renderer(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="--tokenizer: cannot load"):
        load_renderer(str(tmp_path / "nowhere"))


def test_truncation_in_the_tokenizers_file_is_ignored(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"max_length": 3, "direction": "Right", "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content))
    renderer = load_renderer(str(folder), chat_template=TEMPLATES["chatml"])
    assert len(renderer.render([user("hello " * 50)], tools=None, kwargs={})) > 50


def test_named_templates_are_chosen_by_tools(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": TEMPLATES["chatml"]},
        {"name": "tool_use", "template": "<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n" + TEMPLATES["chatml"]},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    renderer = load_renderer(str(folder))
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain, with_tools = (renderer.decode(renderer.render([user("a")], tools=t, kwargs={})) for t in (None, tools))
    assert plain.startswith("<|im_start|>user")
    assert with_tools.startswith("<|im_start|>tools")


def test_qwen3_loads_from_its_package():
    assert renderer_of("qwen3").profile.roles["user"].usual.terminator_id == 151645
