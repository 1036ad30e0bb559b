"""Settings for all tests."""

import signal

from hypothesis import HealthCheck, settings

# No example is timed: the machine that runs them may be busy.
settings.register_profile("cachewatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cachewatch")

# Who runs the tests in the background of a script (`make test &`) ignores Ctrl-C, and so would every command under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And under nohup that the terminal was closed.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
