"""What users may import. A change here is a change for them."""

from __future__ import annotations

import subprocess
import sys

import trio_sessions


def test_the_package_exports_exactly_these_names() -> None:
    assert trio_sessions.__all__ == [
        "Completion",
        "EngineRequest",
        "PrefixMatch",
        "PreparedRequest",
        "RequestPolicy",
        "__version__",
        "assert_pretokenized_prefix",
        "extract_completion",
        "prepare_chat_request",
    ]
    assert all(hasattr(trio_sessions, name) for name in trio_sessions.__all__)


def test_the_client_exports_exactly_these_names() -> None:
    from trio_sessions import client

    assert client.__all__ == [
        "NO_RETRIES",
        "AssemblyFailed",
        "AsyncClient",
        "AsyncSession",
        "AuthenticationFailed",
        "BaseUrls",
        "ChatCompletion",
        "Client",
        "ClientError",
        "GatewayUnreachable",
        "Health",
        "PermissionRefused",
        "PrefixCacheInfo",
        "RequestRefused",
        "RetryPolicy",
        "Sample",
        "SamplesReply",
        "ServerError",
        "Session",
        "SessionNotFound",
        "SessionState",
        "StatusError",
        "TruncatedGeneration",
        "UnusableAnswer",
    ]
    assert all(hasattr(client, name) for name in client.__all__)


def test_the_export_exports_exactly_these_names() -> None:
    from trio_sessions import export

    assert export.__all__ == [
        "COLUMNS",
        "FORMATS",
        "SCHEMA_VERSION",
        "Column",
        "Format",
        "SampleExport",
        "format_of",
        "rows_of",
    ]
    assert all(hasattr(export, name) for name in export.__all__)


def test_the_engine_transport_exports_exactly_these_names() -> None:
    from trio_sessions.engine import http

    assert http.__all__ == ["AnswerTooLarge", "Limits", "TrioTransport"]
    assert all(hasattr(http, name) for name in http.__all__)


def test_client_and_export_come_without_a_server_or_a_tokenizer_library() -> None:
    program = (
        "import sys, trio_sessions.client, trio_sessions.export\n"
        "heavy = {'trio', 'quart', 'hypercorn', 'transformers', 'tokenizers', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "raise SystemExit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_primitives_come_without_a_server_or_a_tokenizer_library() -> None:
    program = (
        "import sys, trio_sessions\n"
        "heavy = {'trio', 'quart', 'httpx', 'transformers', 'tokenizers', 'torch'} & set(sys.modules)\n"
        "raise SystemExit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert files("trio_sessions").joinpath("py.typed").is_file()
