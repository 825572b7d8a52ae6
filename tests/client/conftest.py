from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.drivers import KINDS, Driver
from tests.client.scripted import Scripted


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.param)


@pytest.fixture
def server() -> Scripted:
    return Scripted()


@pytest.fixture
def url(server: Scripted) -> Iterator[str]:
    with server.running() as url:
        yield url
