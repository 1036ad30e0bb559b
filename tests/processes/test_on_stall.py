"""`exec --on-stall report`: real generators that hang, go on or end, and are left alone."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from support import (
    CACHEWATCH,
    PATIENCE_S,
    assert_none_left,
    eventually,
    exec_argv,
    new_tag,
    program,
    run,
    run_exec,
    running,
    tagged,
)

SHADOW = (
    "--on-stall",
    "report",
    "--stall-after",
    "1s",
    "--first-write-within",
    "1s",
    "--poll",
    "0.2s",
    "--grace",
    "0.3s",
)
# Writes, waits until a file of its name is there, writes again, and ends with a code.
GOES_ON = """
import os, sys, time
def write(name):
    with open(f"{cache}/{name}", "wb") as file:
        file.write(os.urandom(50_000))
write("a.bin")
for name in names:
    while not os.path.exists(f"{cache}/../{name}"):
        time.sleep(0.02)
    write(name)
raise SystemExit(code)
"""


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def goes_on(cache: Path, tag: str, *names: str, code: int = 0) -> list[str]:
    return program(f"cache, names, code = {str(cache)!r}, {names!r}, {code}\n{GOES_ON}", tag)


def test_what_stalls_is_left_alone_and_each_report_says_what_became_of_it(cache, tmp_path):
    tag, report = new_tag(), tmp_path / "r.json"

    def stalls() -> list[dict[str, object]]:
        return json.loads(report.read_text())["would_be_stops"] if report.exists() else []

    argv = exec_argv(
        cache,
        *SHADOW,
        "--report",
        report,
        command=goes_on(cache, tag, "b.bin", "c.bin", code=3),
    )
    with running(argv) as watching:
        for name in ("b.bin", "c.bin"):
            known = len(stalls())
            assert eventually(lambda known=known: len(stalls()) > known)
            assert json.loads(report.read_text())["outcome"] == "stalled"
            assert len(tagged(tag)) == 1
            (tmp_path / name).touch()
            assert eventually(lambda name=name: (cache / name).exists() or watching.poll() is not None)
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 3
    final = json.loads(report.read_text())
    assert (final["outcome"], final["exit_code"], final["stop"], final["stall"]["kind"]) == ("failed", 3, None, None)
    told = final["would_be_stops"]
    # There may be more: the process may get no processor for a whole window.
    assert len(told) >= 2 and {stall["kind"] for stall in told} == {"no_growth"}
    assert all(stall["message"].count("would have been stopped, and was left alone.") == 1 for stall in told)
    assert all(json.loads((Path(stall["bundle"]) / "report.json").read_text())["would_be_stops"] for stall in told)
    ends = [json.loads((Path(stall["bundle"]) / "end.json").read_text()) for stall in told]
    assert [(end["outcome"], end["exit_code"]) for end in ends] == [("failed", 3)] * len(told)
    assert told[0]["at_s"] < told[0]["resumed_at_s"] < told[1]["at_s"]
    assert told[0]["in_vain"] is True
    assert said.count("The generator would have been stopped, and was left alone.") == len(told)
    assert f"It would have been stopped {len(told)} times, " in final["message"]
    assert said.rstrip().endswith(final["message"])
    assert_none_left(tag)


def test_the_history_has_a_run_that_was_left_alone_as_it_ended(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    ran = run_exec(cache, *SHADOW, command=["sh", "-c", f"echo 1234 > {cache}/a; sleep 3"])
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    (bundle,) = (tmp_path / "state" / "bundles").iterdir()

    def told(*words: str) -> str:
        ran = run([*CACHEWATCH, *words])
        assert ran.status == 0, ran.stderr
        return ran.stdout

    (last,) = json.loads(told("report", "--history", "cache", "--json"))["runs"]
    assert (last["outcome"], last["stalls"]) == ("completed", 1)
    assert "then    Tensor cache generation completed" in told("report", str(bundle))
    assert ", then completed" in told("report", "--list")


@pytest.mark.campaign
def test_a_generator_that_never_grows_again_and_fails_would_have_been_stopped_rightly(cache):
    code = f"{cache}/a.bin"
    ran = run_exec(
        cache, *SHADOW, "--no-bundle", "--quiet",
        command=[sys.executable, "-c", f"import time; open({code!r}, 'wb').write(bytes(9999)); time.sleep(4); raise SystemExit(7)"],
    )  # fmt: skip
    assert (ran.status, ran.report["outcome"]) == (7, "failed")
    (stall,) = ran.report["would_be_stops"]
    assert (stall["resumed_at_s"], stall["in_vain"]) == (None, False)
    assert "It would have been stopped once, and rightly: it never grew again." in ran.last_line
    assert len(ran.stderr.splitlines()) == 2  # each is said, quiet or not


@pytest.mark.campaign
def test_the_time_limit_and_an_empty_cache_are_said_and_change_no_exit_status(cache):
    ran = run_exec(
        cache, *SHADOW, "--max-duration", "0.5s", "--first-write-within", "5m", "--no-bundle",
        command=[sys.executable, "-c", "import time; time.sleep(2)"],
    )  # fmt: skip
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    (limit,) = ran.report["would_be_stops"]
    assert (limit["kind"], limit["in_vain"]) == (None, True)
    assert "exceeded its time limit in " in limit["message"]
    assert "it was empty before as well, which would have been a failure" in ran.last_line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_tree_as_ever_and_nothing_is_claimed(cache, tmp_path, number):
    tag, report = new_tag(), tmp_path / "r.json"
    argv = exec_argv(cache, *SHADOW, "--no-bundle", "--report", report, command=goes_on(cache, tag, "never"))
    with running(argv) as watching:
        assert eventually(report.exists)
        watching.send_signal(number)
        watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 128 + number
    final = json.loads(report.read_text())
    assert final["outcome"] == "cancelled"
    assert [stall["in_vain"] for stall in final["would_be_stops"]] == [None]
    assert_none_left(tag)
