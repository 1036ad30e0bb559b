"""Settings for all tests."""

from hypothesis import HealthCheck, settings

# No example is timed: the machine that runs them may be busy.
settings.register_profile("cachewatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cachewatch")
