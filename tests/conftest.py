"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import structlog
from hypothesis import HealthCheck, settings

# Cores are shared: how long one example takes says nothing.
settings.register_profile("shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-cores")

# Processes that tests start leave no files; what is about files names one.
os.environ.setdefault("TRIO_SESSIONS_STORE", "memory")


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


def _drop(*_: Any) -> NoReturn:
    raise structlog.DropEvent
