"""The rules of an attached watch that are functions of values: exit statuses, input, and what the report carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_cachewatch.cli.options.fields import build_model
from prefect_cachewatch.cli.watching import exit_status
from prefect_cachewatch.config import AttachJob
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.supervise.supervisor import TreeEnd
from prefect_cachewatch.watching.attempt import Outcome


def outcome(name: str, stop: TreeEnd | None, exit_code: int | None = None, number: int | None = None) -> Outcome:
    return Outcome(
        name=name, kind=None, message="", exit_code=exit_code, signal=number, started_at=0.0, duration_s=1.0,
        growth=Growth(), first_write_s=None, last_growth_s=None, longest_pause_s=0.0, suspicions=(), samples=(),
        stop=stop, decided_after_last_growth_s=None, window_s=None, pause_s=None, listing=None, grown_since_scan=0,
        paths=("/c",),
    )  # fmt: skip


EXITED = TreeEnd("exited", None, None, 0.0)


@pytest.mark.parametrize(
    ("ended", "stalls", "received", "status"),
    [
        (outcome("completed", EXITED, 0), 0, None, 0),
        (outcome("failed", EXITED, 3), 0, None, 3),
        (outcome("failed", EXITED, None, 9), 0, None, 137),
        (outcome("ended", EXITED), 0, None, 123),
        (outcome("completed", EXITED, 0), 1, None, 124),
        (outcome("failed", EXITED, 3), 2, None, 124),
        (outcome("ended", EXITED), 1, None, 124),
        (outcome("stalled", TreeEnd("stop", None, 15, 0.1)), 0, None, 124),
        (outcome("deadline_exceeded", TreeEnd("stop", None, 15, 0.1)), 0, None, 124),
        (outcome("detached", TreeEnd("released", None, None, 0.0)), 0, 2, 130),
        (outcome("detached", TreeEnd("released", None, None, 0.0)), 3, 15, 143),
        (outcome("detached", TreeEnd("released", None, None, 0.0)), 0, None, 125),
        (outcome("failed", None), 0, None, 125),
    ],
)
def test_the_exit_status_says_stall_first_and_then_how_it_ended(ended, stalls, received, status):
    assert exit_status(ended, stalls=stalls, received=received) == status


def test_a_watch_leaves_the_process_alone_unless_it_is_told_to_stop_it():
    job = AttachJob(pid=4711, cache_dirs=[Path("/mnt/cache")])
    assert (job.on_stall, job.wait_for, job.start_ticks) == ("report", "leader", None)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"cache_dirs": ["cache"]}, "--cache-dir: cache directory 'cache' is not an absolute path: write it from / on"),
        ({"pid": 2**23}, "--pid: input should be less than or equal to 4194304 (given: 8388608)"),
        ({"container": "web"}, "give either the pid of a process or the name of a container, not both and not none"),
        ({"engine": "unix:///x"}, "an engine is a container's: name the container too"),
        ({"start_ticks": -100}, "--start-ticks: input should be greater than or equal to 0 (given: -100)"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_option(values, sentence):
    with pytest.raises(InputError) as caught:
        build_model(AttachJob, **{"pid": 4711, "cache_dirs": ["/mnt/cache"], **values})
    assert caught.value.message == sentence
