"""``docs/options.md``: the table of all options, written from the options themselves.

Regenerate it with ``python -m trio_sessions.cli.reference > docs/options.md``.
"""

from __future__ import annotations

import sys
from typing import Final

from trio_sessions.cli.options import (
    CONFIG,
    DEMO_OPTIONS,
    ENGINE_OPTIONS,
    SAMPLES_OPTIONS,
    SERVE_OPTIONS,
    VERIFY_OPTIONS,
    Option,
)

__all__ = ["render_reference"]

_HEAD: Final = """\
# Options

<!-- Generated: python -m trio_sessions.cli.reference > docs/options.md -->

## trio-sessions serve

A value comes from the command line, else from the environment, else from the file that `--config` names, else it is the
default. An empty environment variable counts as not set, and one whose name is no option is told of. Options without a
value stand alone on the command line (`--routing-replay`, `--no-routing-replay`); in the environment they are `1`, `0`,
`true` or `false`.

Keys of the TOML file are the names below, with dashes or underscores and without the two in front, at its top level or
under `[serve]`; paths in it are relative to where the command runs:

```toml
[serve]
port = 8800
engine = "http://127.0.0.1:30000"
tokenizer = "Qwen/Qwen3-8B"
routing-replay = true

[serve.chat-template-kwargs]
enable_thinking = false
```

A wrong value is one line on stderr and exit status 2; a crash, or an address that is taken, is exit status 1; a stop by
Ctrl-C or SIGTERM is 0.

"""

_ENGINE: Final = """
## trio-sessions engine

The embedded engine alone. It answers with a toy model, or with `--model DIR`: any causal language model that
`transformers` loads and whose tokenizer is byte-level (Qwen, Llama 3, GLM, DeepSeek), after
`pip install 'trio-sessions[model]'`. It runs on the CPU, in float32, one answer at a time: for checking log probs, not
for speed. They are those of SGLang, the model's own at the request's temperature; top-p does not change them. An answer
is free until a stop id of the generation config, unless the request demands a tool call (`tool_choice` `required` or a
name; in the form of Qwen's calls) or a JSON schema.

"""

_VERIFY: Final = """
## trio-sessions verify

Checks whether a chat template can be served exactly, and shows what was found out about it; see
[How exactness is kept](exactness.md). Exit status 0: every conversation passed; 1: one failed; 2: wrong use, or the
template is refused.

"""

_SAMPLES: Final = """
## trio-sessions samples

Writes the training samples of sessions to a file, in the [schema](samples.md#files) that trainers read. The file is
there whole or not at all. Exit status 0: all sessions are in it; 1: one failed, and the others are in it; 2: wrong use.

"""

_TAIL: Final = """
`trio-sessions --help` and `trio-sessions COMMAND --help` show the same; `trio-sessions --version` shows the version.
"""


def render_reference() -> str:
    """The text of ``docs/options.md``."""
    return "".join(
        (
            _HEAD,
            _table((*SERVE_OPTIONS, CONFIG), environment=True),
            _ENGINE,
            _table(ENGINE_OPTIONS, environment=False),
            _VERIFY,
            _table(VERIFY_OPTIONS, environment=False),
            _SAMPLES,
            _table(SAMPLES_OPTIONS, environment=False),
            "\n## trio-sessions demo\n\nEngine, gateway and an agent that takes three turns, in one process.\n\n",
            _table(DEMO_OPTIONS, environment=False),
            _TAIL,
        )
    )


def _table(options: tuple[Option, ...], *, environment: bool) -> str:
    heads = ["Option", *(["Environment variable"] if environment else []), "Default", "Meaning"]
    rows = [_row(heads), _row(["---"] * len(heads))]
    for option in options:
        value = ("..." if option.repeated else "") if option.positional else f" {option.kind.metavar}"
        name = f"`{option.flag}{value}`".replace(" `", "`")
        default = option.default_text if option.default in (None, ()) else f"`{option.default_text}`"
        rows.append(_row([name, *([f"`{option.variable}`"] if environment else []), default, option.meaning]))
    return "".join(rows)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
