"""Serve the peer: ``python -m benchmarks.peer --engine URL --tokenizer FOLDER [--port N]``; it prints its URL."""

from __future__ import annotations

import argparse
import logging
import os
import socket

import uvicorn

from benchmarks.peer.app import build


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="base URL of the engine")
    parser.add_argument("--tokenizer", required=True, help="folder of the tokenizer")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    given = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    app = build(str(given.engine), str(given.tokenizer))
    # asyncio turns Nagle's algorithm off only where the protocol is named, as uvicorn does when it opens the socket.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", int(given.port)))
    listener.listen(1024)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201
    # Named, so that it does not depend on what else is installed: what `pip install uvicorn` brings.
    config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
