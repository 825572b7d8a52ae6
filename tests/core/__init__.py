"""Property tests of the pure core."""

from hypothesis import HealthCheck, settings

# A busy machine is no finding: neither a slow example nor slow generation fails a test here.
PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
