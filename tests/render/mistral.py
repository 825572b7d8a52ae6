"""Real SentencePiece and tekken vocabularies as the folders that models are published in, with chat templates.

The vocabularies come from a package that carries them as data. The templates are written here, in the shapes that
models with these vocabularies are known for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import normalizers

from trio_sessions.render.load import load_tokenizer

# The first release that had calls: control tokens, with a space behind each but the closing ones.
V3 = (
    "{{ bos_token }}"
    "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}"
    "{% set ns.system = m.content + '\\n\\n' %}"
    "{% elif m.role == 'user' %}[INST] {{ ns.system + m.content }}[/INST]{% set ns.system = '' %}"
    "{% elif m.role == 'tool' %}"
    "[TOOL_RESULTS] {{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('call ids have nine letters') }}"
    "{% endif %}{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}"
    "{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('roles are system, user, assistant and tool') }}{% endif %}{% endfor %}"
)
# The brackets are ordinary text here, and roles alternate.
V1 = (
    "{{ bos_token }}{% set ns = namespace(system='', turn=0) %}{% for m in messages %}"
    "{% if m.role == 'system' and loop.first %}{% set ns.system = m.content + '\\n\\n' %}"
    "{% elif m.role == 'user' and ns.turn % 2 == 0 %}"
    "[INST] {{ ns.system + m.content }} [/INST]{% set ns.system = '' %}{% set ns.turn = ns.turn + 1 %}"
    "{% elif m.role == 'assistant' and ns.turn % 2 == 1 %}"
    " {{ m.content }}{{ eos_token }}{% set ns.turn = ns.turn + 1 %}"
    "{% else %}{{ raise_exception('user and assistant take turns') }}{% endif %}{% endfor %}"
)
TEMPLATES: Mapping[str, str] = {
    "v1": V1,
    "v3": V3,
    # The same without the spaces.
    "tekken": V3.replace("] {{", "]{{").replace("%} {{ m.content", "%}{{ m.content").replace("] [", "]["),
    # The marks of the roles are ordinary text; only the end of a turn is a control token.
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
}


@dataclass(frozen=True)
class Form:
    """How a vocabulary is published.

    Attributes:
        vocabulary: the file, as the package names it.
        template: of ``TEMPLATES``.
        config: of ``tokenizer_config.json``; None where the maker's file and the template are all there is.
        prepends: whether a normaliser of its own starts the words.
    """

    vocabulary: str
    template: str
    config: Mapping[str, Any] | None = None
    prepends: bool = False


_V1, _V2, _V3 = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
)
_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_FIRST = {**_NAMES, "tokenizer_class": "LlamaTokenizer", "legacy": False}
_ALWAYS = {**_FIRST, "legacy": True}
_WORDS = 30_000
# A word starts at the start of the text, behind every control token, or so by a normaliser.
FORMS: Mapping[str, Form] = {
    "v1-first": Form(_V1, "v1", _FIRST),
    "v1-always": Form(_V1, "v1", _ALWAYS),
    "v2-always": Form(_V2, "v3", _ALWAYS),
    "v3-first": Form(_V3, "v3", _FIRST),
    "v3-always": Form(_V3, "v3", _ALWAYS),
    "v3-prepended": Form(_V3, "v3", _NAMES, prepends=True),
    "v3-bare": Form(_V3, "v3"),
    "zephyr-first": Form(_V1, "zephyr", _FIRST),
    "zephyr-always": Form(_V1, "zephyr", _ALWAYS),
    "zephyr-prepended": Form(_V1, "zephyr", _NAMES, prepends=True),
    "tekken": Form("tekken_240718.json", "tekken", _NAMES),
    "tekken-bare": Form("tekken_240911.json", "tekken"),
}


def vocabulary(name: str) -> Path:
    """The file of a vocabulary."""
    # Importing the package would take longer than reading its files.
    spec = find_spec("mistral_common")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data" / name


def bare(name: str, folder: Path, *, words: int | None = None) -> Path:
    """``folder``, with nothing but a vocabulary under the name that its maker gives it.

    Args:
        name: of the vocabulary.
        folder: is made.
        words: how many words of a tekken vocabulary to keep, the most frequent ones, since all take seconds to read.
    """
    folder.mkdir(parents=True)
    if not name.endswith(".json"):
        shutil.copy(vocabulary(name), folder / "tokenizer.model")
        return folder
    content = json.loads(vocabulary(name).read_text(encoding="utf-8"))
    if words is not None:
        config = content["config"]
        config["default_vocab_size"] = config["default_num_special_tokens"] + words
        content["vocab"] = content["vocab"][:words]
    (folder / "tekken.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def publish(form: Form, folder: Path) -> Path:
    """``folder``, with a tokenizer in ``form``."""
    if form.config is None:
        bare(form.vocabulary, folder, words=_WORDS)
        if form.vocabulary.endswith(".json"):
            # Such a file does not say which of its tokens these are.
            (folder / "tokenizer_config.json").write_text(json.dumps(_NAMES))
    else:
        raw = bare(form.vocabulary, folder / "raw", words=_WORDS)
        (raw / "tokenizer_config.json").write_text(json.dumps(form.config))
        tokenizer = load_tokenizer(str(raw))
        if form.prepends:
            inner = tokenizer.backend_tokenizer
            inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            inner.pre_tokenizer = None
        tokenizer.save_pretrained(folder)
        # Saving forgets whether words start behind control tokens.
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | form.config))
        shutil.rmtree(raw)
    (folder / "chat_template.jinja").write_text(TEMPLATES[form.template])
    return folder
