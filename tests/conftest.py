"""What holds for every test."""

from hypothesis import settings

# Cores are shared: how long one example takes says nothing.
settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")
