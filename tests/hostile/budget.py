"""How much is tried: by default a little and always the same, more and at random where somebody has the time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

VARIABLE = "HOSTILE_EXAMPLES"
"""Environment variable: how many times as many examples as by default."""


def effort(number: int) -> settings:
    """Settings for a test that by default tries ``number`` examples."""
    times = float(os.environ.get(VARIABLE, "1"))
    return settings(
        max_examples=max(1, round(number * times)),
        derandomize=times <= 1,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
