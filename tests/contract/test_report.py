"""`--report`: what it holds for each outcome, with its last line word by word, and what never gets into it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import QUICK, WELL, Place, assert_golden, eventually

TEXT, NUMBER, WHOLE = (str,), (int, float), (int,)
NONE = type(None)
PROCESS = {"pid": WHOLE, "state": TEXT, "argv": [TEXT]}
# Fields are added and never taken away: each of these is there, and of these types.
SHAPE: dict[str, Any] = {
    "schema_version": WHOLE, "cachewatch_version": TEXT, "outcome": TEXT, "message": TEXT, "name": TEXT,
    "exit_code": (int, NONE), "signal": (int, NONE), "command": [TEXT], "cache_dirs": [TEXT], "attempt": WHOLE,
    "started_at": TEXT, "duration_s": NUMBER, "log_tail": [TEXT], "notes": [TEXT], "bundle": (str, NONE),
    "findings": [{"category": TEXT, "severity": TEXT, "message": TEXT}],
    "stall": {"kind": (str, NONE), "window_s": (int, float, NONE), "pause_s": (int, float, NONE), "learned": (bool,)},
    "growth": {
        "bytes_written": WHOLE, "allocated_written": WHOLE, "bytes_present": WHOLE, "files_present": WHOLE,
        "first_write_s": (int, float, NONE), "last_growth_s": (int, float, NONE), "longest_pause_s": NUMBER,
        "suspected": [{"at_s": NUMBER, "pause_s": NUMBER, "message": TEXT, "cleared_at_s": (int, float, NONE)}],
        "samples": [{"at_s": NUMBER, "bytes_written": WHOLE, "allocated_written": WHOLE, "percent": (int, float, NONE)}],
    },
    "listing": {
        "total_files": WHOLE, "total_bytes": WHOLE, "truncated": (bool,),
        "entries": [{"path": TEXT, "size_bytes": WHOLE, "allocated_bytes": WHOLE, "modified_at": TEXT, "age_s": NUMBER, "flags": [TEXT]}],
        "rest": [{"path": TEXT, "files": WHOLE, "bytes": WHOLE}],
    },
    "where": {
        "host": TEXT, "user": TEXT, "pid": WHOLE,
        "windows": {"first_write_within_s": NUMBER, "stall_after_s": NUMBER, "max_duration_s": (int, float, NONE)},
    },
    "would_be_stops": [{"at_s": NUMBER, "kind": TEXT, "message": TEXT, "resumed_at_s": (int, float, NONE), "in_vain": (bool, NONE)}],
    "retry": (NONE,), "publication": (NONE,), "attached": (NONE,), "ready": (NONE,), "logged": (NONE,), "learned": (NONE,),
}  # fmt: skip
STOP = {
    "decided_after_last_growth_s": (int, float, NONE), "gone_after_s": NUMBER, "terminated": [PROCESS],
    "killed": [PROCESS], "survivors": [PROCESS],
}  # fmt: skip
DIAGNOSIS = {"category": TEXT, "summary": TEXT, "evidence": [TEXT], "resolution": TEXT, "confidence": TEXT}

STALL = (*QUICK, "--poll", "0.2s", "--stall-after", "1s", "--first-write-within", "1s", "--no-bundle")
SILENT = (*STALL, "--first-write-within", "60s")
WRITES = "head -c 9000 /dev/zero > $C/a; "
# A generator of sh that touches $HERE/up where a signal follows; options; the signal; then of the report: outcome, kind
# of stall, exit code, signal of the generator, flags of the file that grew last.
OUTCOMES: dict[str, tuple[str, tuple[str, ...], int, tuple[Any, ...]]] = {
    "completed": (WRITES, WELL, 0, ("completed", None, 0, None, ["grew_in_window"])),
    "temporary": ("head -c 9000 /dev/zero > $C/b.tmp", WELL, 0, ("completed", None, 0, None, ["temporary", "grew_in_window"])),
    "empty": ("exit 0", WELL, 0, ("nothing_written", None, 0, None, None)),
    "failed": (WRITES + "echo loading; exit 3", WELL, 0, ("failed", None, 3, None, ["suspect_partial", "grew_in_window"])),
    "crashed": ("ulimit -c 0; kill -SEGV $$", WELL, 0, ("failed", None, None, 11, None)),
    "stalled": (WRITES + "exec sleep 100", SILENT, 0, ("stalled", "no_growth", None, 15, ["suspect_partial", "grew_in_window"])),
    "never_started": ("exec sleep 100", STALL, 0, ("stalled", "never_started", None, 15, None)),
    "left_behind": ("sleep 100 & exit 0", STALL, 0, ("stalled", "never_started", 0, None, None)),
    "directory_gone": ("rmdir $C; exec sleep 100", SILENT, 0, ("stalled", "cache_directory_missing", None, 15, None)),
    "deadline": ("exec sleep 100", (*WELL, "--max-duration", "1s", "--no-bundle"), 0, ("deadline_exceeded", None, None, 15, None)),
    "SIGTERM": (WRITES + "touch $HERE/up; exec sleep 100", WELL, signal.SIGTERM, ("cancelled", None, None, 15, ["suspect_partial", "grew_in_window"])),
    "SIGINT": ("touch $HERE/up; exec sleep 100", WELL, signal.SIGINT, ("cancelled", None, None, 15, None)),
    "SIGHUP": ("trap 'exit 6' HUP; touch $HERE/up; while :; do sleep 0.1; done", WELL, signal.SIGHUP, ("cancelled", None, 6, None, None)),
}  # fmt: skip


def name_of(pid: int) -> str:
    """The name of a process; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def misfits(value: Any, shape: Any, where: str = "") -> list[str]:
    """The fields that are missing or of another type."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [where]
        return [miss for key in shape for miss in misfits(value.get(key, ...), shape[key], f"{where}.{key}")]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [where]
        return [miss for number, one in enumerate(value) for miss in misfits(one, shape[0], f"{where}[{number}]")]
    fits = isinstance(value, shape) and (bool in shape or not isinstance(value, bool))
    return [] if fits else [f"{where}: {value!r}"]


@pytest.mark.parametrize("case", OUTCOMES)
def test_each_outcome_has_its_fields_and_its_last_line(place: Place, case: str) -> None:
    script, options, number, (outcome, kind, exit_code, died_of, flags) = OUTCOMES[case]
    place.cache.mkdir()
    file = place.root / "r.json"
    argv = ["exec", "--cache-dir", place.cache, *options, "--report", file, "--", "sh", "-c", script]
    with place.started(*argv) as process:
        if number:
            assert eventually((place.root / "up").exists)
            if script.endswith("exec sleep 100"):  # not the shell, which may catch the signal until then
                assert eventually(lambda: "sleep" in map(name_of, place.everybody()))
            process.send_signal(number)
        error = process.communicate(timeout=120)[1]
    report = json.loads(file.read_text())
    ended = (report["outcome"], report["stall"]["kind"], report["exit_code"], report["signal"])
    assert ended == (outcome, kind, exit_code, died_of), error
    gone = {} if case != "directory_gone" else {"listing": (dict, NONE)}
    assert misfits(report, SHAPE | gone) == []
    assert (report["schema_version"], report["name"], report["attempt"]) == (1, "cache", 1)
    assert (report["cache_dirs"], report["command"]) == ([str(place.cache)], ["sh", "-c", script])
    by_itself = outcome in ("completed", "nothing_written", "failed")
    assert report["stop"] is None if by_itself else misfits(report["stop"], STOP) == []
    diagnosed = outcome in ("failed", "stalled", "deadline_exceeded")
    assert misfits(report["diagnosis"], DIAGNOSIS) == [] if diagnosed else report["diagnosis"] is None
    assert (report["stall"]["window_s"] is None) == (outcome != "stalled")
    if outcome == "stalled":
        assert report["stall"]["pause_s"] >= 0.9 * report["stall"]["window_s"]
    if flags:
        assert report["listing"]["entries"][0]["flags"] == flags
        assert report["listing"]["entries"][0]["size_bytes"] == report["growth"]["bytes_written"] == 9000
        assert 0 <= report["growth"]["first_write_s"] <= report["growth"]["last_growth_s"] <= report["duration_s"]
    else:
        assert report["growth"]["bytes_written"] == 0
    last = error.rstrip("\n").rpartition("\n")[2]
    assert last == report["message"]
    assert_golden(case, place, last)


def test_a_verdict_comes_with_the_look_at_the_end_of_its_window(place: Place) -> None:
    # The looks are aligned with the window, and time by which one is late is not counted.
    options = ("--poll", "3s", "--stall-after", "6s", "--first-write-within", "60s", "--grace", "0.5s", "--no-bundle")
    stall = place.exec(*options, command=["sh", "-c", WRITES + "exec sleep 100"]).report["stall"]
    assert stall["window_s"] == 6
    assert 6 <= stall["pause_s"] + 0.01 < 9, "not a poll later"


def test_what_was_stopped_is_named_with_how_it_ended(place: Place) -> None:
    source = """
        import signal
        (PLACE / "cache/layers.0").write_bytes(b"x" * 100_000)
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(15, signal.SIG_IGN)
            time.sleep(100)
        time.sleep(100)
    """
    place.cache.mkdir()
    ran = place.exec(*SILENT, "--grace", "1s", command=place.program(source))
    stop = ran.report["stop"]
    assert [len(stop[key]) for key in ("terminated", "killed", "survivors")] == [1, 1, 0], ran.stderr
    assert stop["decided_after_last_growth_s"] >= 0.9
    assert stop["gone_after_s"] >= 1
    place.assert_nobody()


def test_a_stall_that_is_only_reported_is_written_at_once_and_again_at_the_end(place: Place) -> None:
    file, go = place.root / "r.json", place.root / "go"
    script = WRITES + "while [ ! -e $HERE/go ]; do sleep 0.1; done; head -c 9000 /dev/zero > $C/b; sleep 2"
    argv = ["exec", "--cache-dir", place.cache, *SILENT, "--on-stall", "report", "--report", file]
    with place.started(*argv, "--", "sh", "-c", script) as process:
        assert eventually(file.exists)
        told = json.loads(file.read_text())
        (stop,) = told["would_be_stops"]
        assert (told["stop"], stop["kind"], stop["resumed_at_s"]) == (None, "no_growth", None)
        go.touch()
        assert process.wait(60) == 0
    report = json.loads(file.read_text())
    assert misfits(report, SHAPE) == []
    first, *_ = report["would_be_stops"]
    assert (report["outcome"], first["in_vain"]) == ("completed", True)
    assert first["resumed_at_s"] >= first["at_s"]


def test_several_directories_are_one_cache_and_a_nested_one_counts_once(place: Place) -> None:
    script = "head -c 5000 /dev/zero > $C/b/x; head -c 300 /dev/zero > c/y"
    ran = place.exec(*WELL, "--cache-dir", "cache/b", "--cache-dir", "c", command=["sh", "-c", script])
    assert ran.report["cache_dirs"] == [str(place.root / name) for name in ("cache", "cache/b", "c")]
    assert (ran.report["growth"]["bytes_written"], ran.report["growth"]["files_present"]) == (5300, 2)
    assert ran.report["listing"]["total_bytes"] == 5300


def test_what_is_there_is_no_growth_and_what_is_ignored_is_not_listed(place: Place) -> None:
    place.cache.mkdir()
    (place.cache / "old").write_bytes(b"x" * 5000)
    # A removed file that NFS keeps while somebody has it open is never the cache's.
    script = "cd $C; for name in a.log b.lock .nfs1 c.skip d; do head -c 700 /dev/zero > $name; done"
    ran = place.exec(*WELL, "--ignore", "*.skip", command=["sh", "-c", script])
    assert (ran.report["growth"]["bytes_written"], ran.report["growth"]["bytes_present"]) == (700, 5700)
    assert {Path(one["path"]).name for one in ran.report["listing"]["entries"]} == {"old", "d"}


def test_a_directory_that_is_made_anew_is_measured_on_and_noted(place: Place) -> None:
    script = "while ! grep -q '\"progress\"' $HERE/said; do sleep 0.1; done; rm -r $C; mkdir $C; head -c 9000 /dev/zero > $C/a"
    with (place.root / "said").open("w") as said:
        ran = place.exec(*WELL, "--progress", "json", command=["sh", "-c", script], stderr=said)
    assert (ran.status, ran.report["growth"]["bytes_written"]) == (0, 9000)
    (note,) = ran.report["notes"]
    assert str(place.cache) in note


def test_a_large_directory_is_listed_in_part_with_totals_for_the_rest(place: Place) -> None:
    source = """
        for n in range(1200):
            file = PLACE / f"cache/d{n % 3}/{n}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * 10)
            if n < 1100:
                os.utime(file, (1e9, 1e9))
    """
    listing = place.exec(*WELL, command=place.program(source)).report["listing"]
    assert (listing["total_files"], listing["total_bytes"], listing["truncated"]) == (1200, 12000, True)
    assert len(listing["entries"]) == 1000
    assert sum(row["files"] for row in listing["rest"]) == 200
    assert sum(row["bytes"] for row in listing["rest"]) == 2000


def test_secrets_are_kept_out(place: Place) -> None:
    script = 'echo "using $API_TOKEN and $0"; echo https://me:s3cr3tpass@host/x; echo done'
    command = ["sh", "-c", script, "--token", "s3cr3tvalue", "https://me:s3cr3tpass@host/x"]
    ran = place.exec(*WELL, "--env", "API_TOKEN=hunter2hunter2", "--allow-empty", command=command)
    assert "hunter2hunter2" in ran.stdout  # what passes through is the user's own
    assert ran.report["command"][3:] == ["--token", "***", "https://***@host/x"]
    text = json.dumps(ran.report)
    assert [word for word in ("hunter2hunter2", "s3cr3tvalue", "s3cr3tpass") if word in text] == []
    assert ran.report["log_tail"][-1] == "done"


def test_names_that_are_no_utf8_are_in_it_and_commands_of_a_terminal_are_not_said(place: Place) -> None:
    place.cache = Path(os.fsdecode(os.fsencode(place.root) + b"/c\xff\x1b[31m\n"))
    ran = place.exec(*WELL, command=[*place.program("Path(os.fsdecode(os.fsencode(sys.argv[1]) + b'/f\\xfe')).touch()"), place.cache])  # fmt: skip
    assert (ran.status, ran.stderr.count("\n")) == (0, 1), ran.stderr
    assert "\x1b" not in ran.stderr
    (entry,) = ran.report["listing"]["entries"]
    assert os.fsencode(entry["path"]) == os.fsencode(place.cache) + b"/f\xfe"


def test_json_is_the_report_as_the_last_line_of_standard_output(place: Place) -> None:
    ran = place.exec("--json", "--quiet", *WELL, command=["sh", "-c", "printf 'no end of line'; exit 3"])
    said, line = ran.stdout.rstrip("\n").split("\n")
    assert (ran.status, said, json.loads(line)) == (3, "no end of line", ran.report)


def test_the_file_is_its_owners_alone_and_an_older_one_is_replaced_whole(place: Place) -> None:
    file = place.root / "r.json"
    argv = ["exec", "--cache-dir", place.cache, *WELL, "--allow-empty", "--report", file, "--", "true"]
    assert place.run(*argv).status == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("x" * 100_000)
    file.chmod(0o640)
    assert place.run(*argv).status == 0
    assert json.loads(file.read_text())["outcome"] == "completed"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_report_that_cannot_be_written_at_the_end_is_elsewhere_and_the_status_stands(place: Place) -> None:
    (place.root / "reports").mkdir()
    (place.root / "tmp").mkdir()
    place.env["TMPDIR"] = str(place.root / "tmp")
    script = "rmdir reports; touch reports; exit 3"
    options = ("--cache-dir", place.cache, *WELL, "--no-bundle", "--report", "reports/r.json")
    ran = place.run("exec", *options, "--", "sh", "-c", script)
    (elsewhere,) = (place.root / "tmp").glob("*.json")
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    assert (ran.status, json.loads(elsewhere.read_text())["exit_code"]) == (3, 3)
    assert str(elsewhere) in ran.stderr
    ran = place.run(
        "exec", "--cache-dir", place.cache, *WELL, "--report", "/dev/full", "--", "sh", "-c", WRITES + "exit 4"
    )
    assert (ran.status, "/dev/full" in ran.stderr, "Traceback" in ran.stderr) == (4, True, False)
