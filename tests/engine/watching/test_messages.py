"""The sentences that say how a generation ended."""

import pytest

from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.watching.outcomes import describe_growth, describe_stall
from prefect_cachewatch.watching.stall import Verdict

GROWTH = "1.08 GiB in 43 files"


def stalled(kind, pause_s=300.0, window_s=300.0):
    return Verdict("stalled", kind, pause_s, window_s)


@pytest.mark.parametrize(
    "kind",
    ["no_growth", "never_started", "never_ready", "churning", "cache_directory_missing", "filesystem_unresponsive"],
)
def test_a_hostile_path_stays_on_its_line(kind):
    text = describe_stall(stalled(kind), ["/mnt/a\x1b[2J\nb"], GROWTH, problem="/mnt/\x1bx: gone")
    assert "\x1b" not in text
    assert "\n" not in text


def test_what_there_is_is_said_with_its_number():
    assert describe_growth(0, 0) == "0 B in 0 files"
    assert describe_growth(5, 1) == "5 B in 1 file"
    assert describe_growth(2**40, 12345, "/c/a\n") == "1.00 TiB in 12,345 files; last growth a\\n"


def test_signals_are_named():
    assert [signal_name(9), signal_name(11), signal_name(64), signal_name(99)] == [
        "SIGKILL",
        "SIGSEGV",
        "SIGRTMAX",
        "signal 99",
    ]
