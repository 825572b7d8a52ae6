"""What holds for every test."""

from hypothesis import HealthCheck, settings

# Cores are shared: how long one example takes says nothing.
settings.register_profile("shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-cores")
