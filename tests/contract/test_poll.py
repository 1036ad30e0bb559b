"""A poll that does not fit twice into the shortest window is shortened, and who asked for it is told so."""

from __future__ import annotations

import subprocess

import pytest

from tests.contract.harness import Place

SHORT = ("--stall-after", "1s", "--first-write-within", "1s", "--grace", "0.5s", "--no-bundle")


@pytest.mark.parametrize(("poll", "told"), [(("--poll", "15s"), 1), (("--poll", "0.5s"), 0), ((), 0)])
def test_a_watch_tells_of_a_shortened_poll_where_it_was_asked_for(
    place: Place, poll: tuple[str, ...], told: int
) -> None:
    place.cache.mkdir()
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            ran = place.run(
                "watch", "--pid", sleeper.pid, "--cache-dir", place.cache, "--on-stall", "stop", *SHORT, *poll
            )
        finally:
            sleeper.kill()
    assert (ran.status, ran.stderr.count("measuring every 0.5 s")) == (124, told), ran.stderr
