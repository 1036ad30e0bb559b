"""Exit statuses of `cachewatch exec`: the command's own, those of a stop, and those of what cannot be executed."""

from __future__ import annotations

import signal

import pytest

from tests.contract.harness import QUICK, WELL, Place, assert_refused, eventually

STALL = (*QUICK, "--poll", "0.2s", "--stall-after", "1s", "--first-write-within", "1s", "--no-bundle")
SILENT = (*STALL, "--first-write-within", "60s")
WRITES = "head -c 9000 /dev/zero > $C/a; "
# A generator of sh, the options, the exit status, outcome and kind of stall. $C is the cache directory.
ENDS = {
    "writes": (WRITES, WELL, 0, "completed", None),
    "a warm cache and nothing new": ("exit 0", WELL, 0, "completed", None),
    "an empty cache": ("exit 0", WELL, 1, "nothing_written", None),
    "an empty cache that may be": ("exit 0", (*WELL, "--allow-empty"), 0, "completed", None),
    "directories and a log": ("mkdir -p $C/a/b; echo done > $C/run.log", WELL, 1, "nothing_written", None),
    "an empty file": ("touch $C/layer0.bin", WELL, 0, "completed", None),
    "its own 1": (WRITES + "exit 1", WELL, 1, "failed", None),
    "its own 3 without a file": ("exit 3", WELL, 3, "failed", None),
    "its own 124, as of a stall": (WRITES + "exit 124", WELL, 124, "failed", None),
    "its own 255": (WRITES + "exit 255", WELL, 255, "failed", None),
    "dies of SIGSEGV": ("ulimit -c 0; kill -SEGV $$", WELL, 128 + signal.SIGSEGV, "failed", None),
    "dies of SIGKILL": (WRITES + "kill -KILL $$", WELL, 128 + signal.SIGKILL, "failed", None),
    "dies of SIGUSR1 to its group": ("kill -USR1 0; sleep 100", WELL, 128 + signal.SIGUSR1, "failed", None),
    "writes once and hangs": (WRITES + "sleep 100", SILENT, 124, "stalled", "no_growth"),
    "never writes": ("sleep 100", STALL, 124, "stalled", "never_started"),
    "writes a few bytes and a log for ever": (
        WRITES + "while :; do printf x >> $C/a; echo still here >> $C/run.log; echo still here; sleep 0.1; done",
        SILENT,
        124,
        "stalled",
        "no_growth",
    ),
    "removes the directory": ("rmdir $C; sleep 100", SILENT, 124, "stalled", "cache_directory_missing"),
    "leaves a process behind": ("sleep 100 & exit 0", STALL, 124, "stalled", "never_started"),
    "leaves one behind that nobody waits for": (
        WRITES + "sleep 100 & exit 0",
        (*WELL, "--wait-for", "leader"),
        0,
        "completed",
        None,
    ),
    "exceeds its time limit": (
        "for n in $(seq 1000); do head -c 9000 /dev/zero > $C/$n; sleep 0.1; done",
        (*WELL, "--max-duration", "1s", "--no-bundle"),
        124,
        "deadline_exceeded",
        None,
    ),
    "stalls and is left alone": (
        "while [ ! -e $HERE/told ]; do sleep 0.1; done; " + WRITES + "exit 5",
        (*STALL, "--on-stall", "report"),
        5,
        "failed",
        None,
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_status_says_how_it_ended_and_the_report_says_the_same(place: Place, case: str) -> None:
    script, options, status, outcome, kind = ENDS[case]
    place.cache.mkdir()
    if "warm" in case:
        (place.cache / "old").write_bytes(b"x" * 5000)
    if "left alone" in case:
        report = place.root / "r.json"
        with place.started(
            "exec", "--cache-dir", place.cache, *options, "--report", report, "--", "sh", "-c", script
        ) as run:
            assert eventually(report.exists)  # written for the stall, while the generator goes on
            (place.root / "told").touch()
            assert run.wait(60) == status
        return
    ran = place.exec(*options, command=["sh", "-c", script])
    assert (ran.status, ran.report["outcome"], ran.report["stall"]["kind"]) == (status, outcome, kind), ran.stderr
    assert ran.last_line == ran.report["message"]
    place.assert_nobody()


@pytest.mark.parametrize(
    ("script", "options", "status"),
    [
        ("touch $HERE/up; sleep 100", ("--then", "stop"), 0),
        (WRITES, (), 1),
        ("exit 5", (), 5),
        (WRITES + "sleep 100", ("--warmup-within", "1s", "--stall-after", "1s", "--first-write-within", "1s"), 124),
    ],
    ids=["ready", "ended well before it was ready", "ended badly", "never ready"],
)
def test_a_server_is_judged_by_whether_it_gets_ready(place: Place, script: str, options, status: int) -> None:
    ready = (*WELL, "--no-bundle", "--ready", f"file={place.root}/up")
    ran = place.exec(*ready, *options, command=["sh", "-c", script])
    assert ran.status == status, ran.stderr
    place.assert_nobody()


# What is to be executed: its content and mode if it is there, the status as a shell ends, words of the answer.
COMMANDS = {
    "./missing": (None, 0, 127, ("'./missing'", "check the path")),
    "no-such-command-anywhere": (None, 0, 127, ("PATH", "check its name")),
    "python3 gen.py": (None, 0, 127, ("one word", "leave out the quotes")),
    "": (None, 0, 127, ()),
    "./plain": ("x", 0o644, 126, ("not executable", "chmod +x")),
    "/tmp": (None, 0, 126, ("'/tmp'", "not executable")),
    "x" * 300: (None, 0, 126, ()),
    "./no-first-line": ("echo hello\n", 0o755, 126, ("Exec format error", "#!/bin/sh")),
    "./lost": ("#!/nowhere/python\n", 0o755, 127, ("No such file", "interpreter")),
}


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name[:24] or "empty")
def test_what_cannot_be_executed_ends_as_in_a_shell(place: Place, name: str) -> None:
    content, mode, status, words = COMMANDS[name]
    if content is not None:
        (place.root / name).write_text(content)
        (place.root / name).chmod(mode)
    assert_refused(place.exec(command=[name]), status, *words)


def test_a_second_job_on_the_directory_is_refused_and_a_later_one_is_not(place: Place) -> None:
    script = "touch $C/started; sleep 100"
    with place.started("exec", "--cache-dir", place.cache, *WELL, "--", "sh", "-c", script) as first:
        assert eventually((place.cache / "started").exists)
        assert_refused(
            place.exec(command=["touch", place.cache / "second"]), 125, f"pid {first.pid}", "wait for it to end"
        )
        assert not (place.cache / "second").exists()
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 143
    assert place.exec(*WELL, command=["true"]).status == 0
