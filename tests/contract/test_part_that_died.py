"""A part of the tree dies and the rest waits: the message says which, and why, however much was said since."""

import pytest

from tests.contract.harness import QUICK, Place

SHORT = (*QUICK, "--stall-after", "4s", "--first-write-within", "60s")
# The engine lives for some looks, then ends; the front says so often that it waits that its end is far above.
FRONT = """
import subprocess
(PLACE / 'cache/a.bin').write_bytes(os.urandom(50_000))
engine = subprocess.Popen([sys.executable, '-c', ENGINE])
time.sleep(1)
{reap}
while True:
    for number in range({lines}):
        print(f'INFO waiting for the engine to be ready ({{number}} s)', flush=True)
    time.sleep(0.5)
"""
DIES_OF_MEMORY = "import time; time.sleep(0.8); bytearray(1 << 62)"
KILLED = "import os, time; time.sleep(0.8); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("reap", ["", "engine.wait()"])
def test_an_engine_that_died_with_a_traceback_is_the_cause(place: Place, reap: str) -> None:
    place.cache.mkdir()
    source = f"ENGINE = {DIES_OF_MEMORY!r}\n" + FRONT.format(reap=reap, lines=400)
    ran = place.exec(*SHORT, command=place.program(source))
    assert ran.status == 124
    assert ran.report["diagnosis"]["category"] == "host_out_of_memory", ran.said
    assert "MemoryError" in ran.report["message"]
    assert "ended with exit code 1" in ran.said or "only its parent knows" in ran.said


def test_a_server_that_never_becomes_ready_says_why_its_engine_ended(place: Place) -> None:
    place.cache.mkdir()
    source = f"ENGINE = {DIES_OF_MEMORY!r}\n" + FRONT.format(reap="", lines=100)
    ready = ("--ready", "http=http://127.0.0.1:9/health", "--warmup-within", "4s")
    ran = place.exec(*SHORT, *ready, command=place.program(source))
    assert ran.status == 124, ran.stderr
    assert "MemoryError" in ran.report["message"].partition("Tensor cache generation")[0]


def test_an_engine_that_was_killed_without_a_word_is_told_with_its_signal(place: Place) -> None:
    place.cache.mkdir()
    source = f"ENGINE = {KILLED!r}\n" + FRONT.format(reap="", lines=1)
    ran = place.exec(*SHORT, command=place.program(source))
    assert ran.status == 124
    assert ran.report["diagnosis"]["category"] == "killed", ran.said
    assert "was killed by SIGKILL" in ran.report["message"] and " ago" in ran.report["message"]


def test_an_engine_that_ended_without_a_word_is_told_with_its_status(place: Place) -> None:
    place.cache.mkdir()
    source = "ENGINE = 'import os, time; time.sleep(0.8); os._exit(3)'\n" + FRONT.format(reap="", lines=1)
    ready = ("--ready", "http=http://127.0.0.1:9/health", "--warmup-within", "4s")
    ran = place.exec(*SHORT, *ready, command=place.program(source))
    assert ran.status == 124
    first = ran.report["message"].partition("Tensor cache generation")[0]
    assert "ended with exit code 3" in first and "also seen" not in first, ran.said


def test_a_helper_that_ended_well_and_an_error_that_was_survived_are_not_blamed(place: Place) -> None:
    place.cache.mkdir()
    source = """
        import subprocess
        print('Traceback (most recent call last):\\n  File "x.py", line 3, in f\\nMemoryError: no room, using disk', flush=True)
        subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.8)'])
        for number in range(10):
            (PLACE / f'cache/{number}.bin').write_bytes(os.urandom(50_000)); print('wrote layer', number, flush=True); time.sleep(0.2)
        time.sleep(3600)
    """
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "unknown"), ran.said
