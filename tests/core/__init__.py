"""Property tests of the pure core."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

# A busy machine is no finding: neither a slow example nor slow generation fails a test here.
PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """How many bytes more than before are allocated by Python and numpy; ask before the block ends, or after it."""
    held = 0

    def now() -> int:
        if not tracemalloc.is_tracing():
            return held
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield now
        held = now()
    finally:
        tracemalloc.stop()
