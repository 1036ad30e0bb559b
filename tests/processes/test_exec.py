"""`cachewatch exec` end to end: every exit status, every kind of verdict, options, signals, streams."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_cachewatch.cli.main import main
from support import (
    CACHEWATCH,
    PATIENCE_S,
    assert_none_left,
    eventually,
    exec_argv,
    needs_root,
    new_tag,
    program,
    run,
    run_exec,
    running,
    tagged,
    unavailable,
    undo_ignored_signals,
)

# For generators that are well: a window that a busy machine does not fill.
WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.3s")
# For generators that hang: soon seen, soon gone.
SHORT = ("--stall-after", "1s", "--poll", "0.2s", "--grace", "0.3s", "--no-bundle")
HANG_S = 100
SCHEMA = {
    "schema_version", "outcome", "stall", "message", "exit_code", "signal", "name", "command", "cache_dirs", "attempt",
    "started_at", "duration_s", "growth", "stop", "listing", "log_tail", "notes", "cachewatch_version",
}  # fmt: skip


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


# Ends of its own


@pytest.mark.parametrize("status", [0, 3])
def test_the_generators_own_status_is_the_commands(cache, status):
    ran = run_exec(cache, *WELL, "--allow-empty", command=sh(f"exit {status}"))
    assert ran.status == status
    assert ran.report["exit_code"] == status
    assert (ran.report["outcome"], ran.report["stop"]) == ("failed" if status else "completed", None)
    assert ran.last_line == ran.report["message"]
    if status:
        assert ran.last_line == (
            f"cache failed: it printed nothing. Exit code {status}. "
            f"Tensor cache generation failed: the generator ended with exit code {status}; 0 B in 0 files in {cache}."
        )


def test_a_generator_that_died_by_a_signal_is_128_and_its_number(cache):
    number = signal.SIGSEGV
    ran = run_exec(cache, *WELL, command=sh(f"ulimit -c 0; kill -{int(number)} $$"))
    assert ran.status == 128 + number
    assert (ran.report["exit_code"], ran.report["signal"], ran.report["outcome"]) == (None, number, "failed")
    assert f"the generator was killed by {number.name};" in ran.last_line


def test_a_generator_that_writes_is_completed_and_counted_to_the_byte(cache):
    ran = run_exec(
        cache, *WELL, command=sh(f"head -c 50000 /dev/zero > {cache}/a; head -c 7 /dev/zero > {cache}/b.tmp")
    )
    assert ran.status == 0
    assert re.fullmatch(
        rf"Tensor cache generation completed in .*: 48\.8 KiB in 2 files; last growth (a|b\.tmp) in {cache}\. "
        r"It may not be whole: a temporary file was left behind: b\.tmp\.",
        ran.last_line,
    )
    report = ran.report
    assert set(report) >= SCHEMA
    growth = report["growth"]
    assert (growth["bytes_written"], growth["bytes_present"], growth["files_present"]) == (50007, 50007, 2)
    assert growth["allocated_written"] >= 50007
    assert 0 <= growth["first_write_s"] <= growth["last_growth_s"] <= report["duration_s"]
    assert (growth["suspected"], growth["samples"][0]["bytes_written"]) == ([], 0)
    assert growth["samples"][-1] | {"at_s": 0, "allocated_written": 0} == {
        "at_s": 0,
        "bytes_written": 50007,
        "allocated_written": 0,
        "percent": None,
    }
    assert report["stall"] == {"kind": None, "window_s": None, "pause_s": None, "learned": False}
    assert (report["listing"]["total_files"], report["listing"]["total_bytes"]) == (2, 50007)
    assert report["listing"]["truncated"] is False
    flags = {Path(e["path"]).name: e["flags"] for e in report["listing"]["entries"]}
    assert flags["b.tmp"] == ["temporary", "grew_in_window"]
    assert (report["cache_dirs"], report["name"], report["attempt"]) == ([str(cache)], "cache", 1)


def test_a_warm_run_that_writes_nothing_succeeds(cache):
    cache.mkdir()
    (cache / "old").write_bytes(b"x" * 5000)
    ran = run_exec(cache, *WELL, command=["true"])
    assert ran.status == 0
    assert ran.last_line.endswith(f"4.88 KiB in 1 file in {cache}; nothing new was written.")
    assert ran.report["growth"]["bytes_written"] == 0
    assert ran.report["growth"]["bytes_present"] == 5000


# Verdicts


def test_a_stall_stops_the_whole_tree_and_says_what_was_seen(cache):
    tag = new_tag()
    source = f"""
        import os, signal, sys, time
        open({str(cache / "layers.0")!r}, "wb").write(b"x" * 100_000)
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(15, signal.SIG_IGN)
            time.sleep({HANG_S})
            os._exit(0)
        time.sleep({HANG_S})
    """
    ran = run_exec(cache, *SHORT, "--first-write-within", "60s", command=program(source, tag))
    assert tagged(tag) == []
    assert ran.status == 124
    assert re.match(
        r"cache stalled: .+\. No growth for [\d.]+ s\. "
        rf"Tensor cache generation stalled: no disk write activity detected for [\d.]+ s in {re.escape(str(cache))} "
        r"\(97\.7 KiB in 1 file; last growth layers\.0\)\.",
        ran.last_line,
    )
    report = ran.report
    assert report["message"] == ran.last_line
    assert (report["outcome"], report["stall"]["kind"], report["stall"]["window_s"]) == ("stalled", "no_growth", 1.0)
    assert report["stall"]["pause_s"] >= 0.99
    assert report["stop"]["decided_after_last_growth_s"] >= 0.99
    assert report["stop"]["survivors"] == []
    assert len(report["stop"]["terminated"]) == 1
    assert len(report["stop"]["killed"]) == 1
    assert 0.3 <= report["stop"]["gone_after_s"] < PATIENCE_S
    assert report["listing"]["entries"][0]["flags"] == ["suspect_partial", "grew_in_window"]
    assert report["growth"]["suspected"][0]["cleared_at_s"] is None


def test_a_generator_that_never_writes_has_its_own_window_and_sentence(cache):
    ran = run_exec(cache, "--first-write-within", "1s", "--no-bundle", command=["sleep", str(HANG_S)])
    assert ran.status == 124
    assert re.match(r"cache stalled: .+; it never wrote a byte\. Nothing was written for [\d.]+ s\. ", ran.last_line)
    assert (
        f"Tensor cache generation never started: no byte written within 1 s in {cache} (0 B in 0 files)."
        in ran.last_line
    )
    assert ran.report["stall"]["kind"] == "never_started"
    assert ran.report["growth"]["first_write_s"] is None


@pytest.mark.campaign
def test_a_generator_that_makes_and_deletes_temporary_files_is_churning(cache):
    source = f"""
        import os, time
        end = time.monotonic() + {HANG_S}
        n = 0
        while time.monotonic() < end:
            n += 1  # under one name it would be no growth at all: the path has been as large before
            open(f"{cache}/{{n}}.tmp", "wb").write(b"x" * 20_000)
            time.sleep(0.03)
            os.unlink(f"{cache}/{{n}}.tmp")
            time.sleep(0.15)
    """
    ran = run_exec(cache, "--stall-after", "5s", "--poll", "0.1s", "--grace", "0", "--no-bundle",
                   command=program(source, new_tag()))  # fmt: skip
    assert ran.status == 124
    assert re.match(r"cache stalled: files are written and deleted again.*\. It ran for [\d.]+ s\. ", ran.last_line)
    fact = f"Tensor cache generation stalled: files are written and deleted, but nothing is kept in {cache} ("
    assert fact in ran.last_line
    assert (ran.report["outcome"], ran.report["stall"]["kind"]) == ("stalled", "churning")


def test_the_time_limit_ends_a_generator_that_writes_on(cache):
    ran = run_exec(
        cache, *WELL, "--max-duration", "1.5s", "--grace", "0", "--no-bundle",
        command=sh(f"for n in $(seq 10000); do head -c 9000 /dev/zero > {cache}/$n; sleep 0.1; done"),
    )  # fmt: skip
    assert ran.status == 124
    assert ran.last_line.startswith("cache exceeded its time limit")
    assert f" Tensor cache generation exceeded its time limit and was stopped in {cache} (" in ran.last_line
    assert (ran.report["outcome"], ran.report["stall"]["kind"]) == ("deadline_exceeded", None)


def test_a_directory_that_is_removed_is_missing_and_not_silent(cache):
    ran = run_exec(cache, *SHORT, "--first-write-within", "60s", command=sh(f"rmdir {cache}; sleep {HANG_S}"))
    assert ran.status == 124
    assert re.match(rf"cache stalled: {re.escape(str(cache))} is gone: .+\. Missing for ", ran.last_line)
    assert re.search(r"Tensor cache generation stalled: cache directory missing for [\d.]+ s: ", ran.last_line)
    assert ran.report["stall"]["kind"] == "cache_directory_missing"


def test_a_directory_that_is_made_anew_is_measured_on_and_noted(cache):
    ran = run_exec(
        cache, *WELL, command=sh(f"sleep 1; rm -r {cache}; mkdir {cache}; head -c 9000 /dev/zero > {cache}/a; sleep 1")
    )
    assert ran.status == 0
    assert ran.report["growth"]["bytes_written"] == 9000
    assert ran.report["notes"] == [f"cache directory {cache} was replaced by another directory during the run"]


def test_a_background_process_that_is_left_alone_is_named(cache):
    tag = new_tag()
    source = f"import os, time\nif os.fork() == 0:\n    time.sleep({HANG_S})\n    os._exit(0)"
    ran = run_exec(cache, *SHORT, "--first-write-within", "1s", command=program(source, tag))
    assert ran.status == 124
    assert (
        " The command itself had ended with exit code 0; processes it left behind were still running." in ran.last_line
    )
    assert tagged(tag) == []


def test_with_wait_for_leader_what_is_left_is_stopped_and_the_run_is_complete(cache):
    tag = new_tag()
    source = f"import os, time\nif os.fork() == 0:\n    time.sleep({HANG_S})\n    os._exit(0)"
    ran = run_exec(cache, *WELL, "--allow-empty", "--grace", "0", "--wait-for", "leader", command=program(source, tag))
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    assert tagged(tag) == []


def test_chatter_is_no_progress(cache):
    script = (
        f"head -c 9000 /dev/zero > {cache}/a; while :; do echo still here; echo x >> {cache}/run.log; sleep 0.1; done"
    )
    ran = run_exec(cache, *SHORT, command=sh(script))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert "still here" in ran.stdout
    assert ran.report["growth"]["bytes_written"] == 9000
    assert ran.report["log_tail"][-1] == "still here"


@pytest.mark.campaign
def test_writing_over_a_part_of_a_preallocated_file_is_progress_only_if_asked_for(cache):
    source = f"""
        import os, sys, time
        fd = os.open({str(cache / "table")!r}, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 1 << 22)
        end = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < end:
            os.pwrite(fd, os.urandom(4096), 0)
            time.sleep(0.05)
    """
    ran = run_exec(cache, *SHORT, command=[*program(source, new_tag()), str(HANG_S)])
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert "Files change in place without growing: consider progress=any." in ran.last_line
    (cache / "table").unlink()
    ran = run_exec(
        cache,
        "--stall-after",
        "3s",
        "--poll",
        "0.2s",
        "--progress-by",
        "any",
        command=[*program(source, new_tag()), "4"],
    )
    assert ran.status == 0


def test_a_pause_within_the_window_is_suspected_and_forgiven(cache):
    ran = run_exec(
        cache, "--stall-after", "3s", "--poll", "0.2s",
        command=sh(f"head -c 9000 /dev/zero > {cache}/a; sleep 2.2; head -c 9000 /dev/zero > {cache}/b; sleep 0.6"),
    )  # fmt: skip
    assert ran.status == 0
    (suspicion,) = ran.report["growth"]["suspected"]
    assert 1.7 <= suspicion["pause_s"] <= suspicion["cleared_at_s"]
    assert re.fullmatch(r"no growth for [\d.]+ s; a stall after 3 s", suspicion["message"])
    assert "cachewatch: " in ran.stderr  # one plain line for the suspicion, though the 30 s were not over
    assert "no growth for " in ran.stderr.splitlines()[0]


# What cannot be started


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stall-after", "soon"], "Invalid value for '--stall-after': 'soon' is not a duration: write it like 90s, 5m or 1h30m"),
        (["--stall-after", "0"], "--stall-after 0 s is out of range: give at least 0.2 s"),
        (["--stall-after", "900d"], "--stall-after 900 days is out of range: give at most 7 days"),
        (["--stall-after", "9" * 400 + "d"], "is not a duration: write it like 90s, 5m or 1h30m"),
        (["--expect", "lots"], "Invalid value for '--expect': 'lots' is not a size: write it like 4096, 4KiB or 10MB"),
        (["--progress-by", "hope"], "Invalid value for '--progress-by': 'hope' is not one of 'bytes', 'any'."),
        (["--env", "NOVALUE"], "--env 'NOVALUE' is not NAME=VALUE: write it like --env TT_CACHE_PATH=/mnt/cache"),
        (["--cache-dir", ""], "--cache-dir is empty: name the directory that must grow"),
        (["--report", "/nowhere/r.json"], "report file /nowhere/r.json cannot be written: directory /nowhere does not exist; create it first"),
        (["--log", "/nowhere/log"], "log file /nowhere/log cannot be written: No such file or directory"),
        (["--dance"], "No such option"),
        (["--attempts", "3"], "No such option '--attempts' of exec: cachewatch generate has it (see cachewatch generate --help-all)"),
    ],
)  # fmt: skip
def test_bad_options_are_one_sentence_and_nothing_runs(tmp_path, options, sentence, capsys):
    argv = exec_argv(tmp_path / "cache", *options, command=["touch", str(tmp_path / "ran")])
    try:
        with pytest.raises(SystemExit) as ended:  # in this process, since none other is started
            main(argv[len(CACHEWATCH) :])
    finally:
        undo_ignored_signals()  # after its last word the command is deaf, and this process goes on
    out, error = capsys.readouterr()
    assert (ended.value.code, out) == (125, "")
    assert error.startswith("cachewatch: ")
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_a_missing_cache_directory_option_or_command_is_said(tmp_path):
    ran = run([*CACHEWATCH, "exec", "--image", "busybox", "--", "true"])
    assert (ran.status, ran.stderr) == (
        125,
        "cachewatch: no cache directory given: say which directory must grow with --cache-dir DIR, or name the generator's "
        "--profile (cachewatch profiles lists them)\n",
    )  # fmt: skip
    ran = run([*CACHEWATCH, "exec", "--cache-dir", str(tmp_path)])
    assert (ran.status, ran.stderr) == (
        125, "cachewatch: no command given: write it after --, as in cachewatch exec --cache-dir DIR -- COMMAND\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "what"),
    [("/", "the root directory"), ("HOME", "the home directory"), ("/proc", "the root of a mounted file system")],
)
def test_a_directory_that_belongs_to_everybody_is_refused(path, what, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    path = str(tmp_path / "home") if path == "HOME" else path
    ran = run(exec_argv(path, command=["touch", str(tmp_path / "ran")]))
    assert ran.status == 125
    assert (
        ran.stderr == f"cachewatch: cache directory {path} is {what}: give the cache a directory of its own below it\n"
    )
    assert not (tmp_path / "ran").exists()


def test_a_file_is_no_cache_directory(tmp_path):
    (tmp_path / "file").touch()
    ran = run(exec_argv(tmp_path / "file", command=["true"]))
    assert (ran.status, ran.stderr) == (
        125, f"cachewatch: cache directory {tmp_path}/file is not a directory: name the directory the files go to\n",
    )  # fmt: skip
    ran = run(exec_argv(tmp_path / "file/below", command=["true"]))
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert f"cache directory {tmp_path}/file/below cannot be" in ran.stderr


def test_a_directory_without_write_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    # Root without the capability to override permissions is like anybody else.
    humble = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for path, why in (("closed", "cannot be written to"), ("closed/new", "cannot be created")):
        ran = run([*humble, *exec_argv(tmp_path / path, command=["touch", str(tmp_path / "ran")])])
        assert (ran.status, ran.stderr) == (
            125,
            f"cachewatch: cache directory {tmp_path}/{path} {why}: Permission denied\n",
        )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("mount", "before", "why"),
    [
        ("-o size=4m", "head -c 9m /dev/zero > $M/fill 2>/dev/null;", "is full (0 B free): make room first"),
        ("-o nr_inodes=3", "touch $M/a 2>/dev/null;", "has no free inodes: remove files first"),
        ("-o size=64m", "mount -o remount,ro $M;", "cannot be written to: its file system is read-only"),
    ],
)
def test_a_file_system_that_takes_nothing_is_refused_at_the_start(tmp_path, mount, before, why):
    needs_root("mounting a file system")
    (tmp_path / "mnt").mkdir()
    command = " ".join(exec_argv("$M/cache", command=["touch", str(tmp_path / "ran")]))
    script = f"mount -t tmpfs {mount} none $M || exit 99; mkdir $M/cache; {before} {command}"
    ran = run(["unshare", "-m", "sh", "-c", script], env=os.environ | {"M": str(tmp_path / "mnt")})
    if ran.status == 99:
        unavailable(ran.stderr)
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert why in ran.stderr
    assert not (tmp_path / "ran").exists()


def test_an_expected_size_that_does_not_fit_is_refused(cache):
    ran = run(exec_argv(cache, "--expect", "8000TiB", command=["true"]))
    assert ran.status == 125
    assert "needs 8000 TiB (expected_bytes), and its file system has" in ran.stderr


@pytest.mark.parametrize(
    ("name", "content", "mode", "status", "sentence"),
    [
        ("./missing", None, 0, 127, "command './missing' does not exist: check the path"),
        ("no-such-command-anywhere", None, 0, 127, "command 'no-such-command-anywhere' not found in PATH: check its name, or give its full path"),
        ("python3 gen.py --out /x", None, 0, 127, "command 'python3 gen.py --out /x' is one word, and no program has this name: leave out the quotes around it, as in -- python3 gen.py --out /x"),
        ("./with a blank", "#!/nowhere", 0o644, 126, "command './with a blank' is not executable"),
        ("./plain", "x", 0o644, 126, "command './plain' is not executable: chmod +x it, or name its interpreter first"),
        ("in-path", "x", 0o644, 126, "in-path' is not executable: chmod +x it, or name its interpreter first"),
        ("./", "", 0, 126, "command './' is not executable"),
        ("./script", "echo hello\n", 0o755, 126, "command './script' cannot be executed: Exec format error; a script needs a first line such as #!/bin/sh"),
        ("./script", "#!/nowhere/python\n", 0o755, 127, "command './script' cannot be executed: No such file or directory; the interpreter that its first line names is missing"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_run_is_126_or_127(tmp_path, name, content, mode, status, sentence):
    (tmp_path / "bin").mkdir()
    if content:
        path = tmp_path / ("bin/in-path" if name == "in-path" else name)
        path.write_text(content)
        path.chmod(mode)
    environ = os.environ | {"PATH": f"{os.environ['PATH']}:{tmp_path / 'bin'}"}
    ran = run(exec_argv(tmp_path / "cache", command=[name]), cwd=tmp_path, env=environ)
    assert ran.status == status
    assert ran.stderr.startswith("cachewatch: ")
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_log_inside_a_cache_directory_is_refused_unless_it_is_ignored(cache):
    ran = run(exec_argv(cache, "--log", cache, command=["true"]))
    assert (ran.status, ran.stderr) == (
        125, f"cachewatch: log file {cache} is a cache directory itself: name a file elsewhere\n",
    )  # fmt: skip
    ran = run(exec_argv(cache, "--log", cache / "run.txt", command=["true"]))
    assert ran.status == 125
    assert ran.stderr == (
        f"cachewatch: log file {cache}/run.txt lies in cache directory {cache}, where it would count as growth: "
        "put it elsewhere, or name it *.log\n"
    )
    ran = run_exec(
        cache, *WELL, "--allow-empty", "--log", cache / "run.log", command=["echo", "hello"], report_dir=cache.parent
    )
    assert ran.status == 0 or "No such file" in ran.stderr
    cache.mkdir(exist_ok=True)
    ran = run_exec(cache, *WELL, "--allow-empty", "--log", cache / "run.log", command=["echo", "hello"])
    assert (ran.status, ran.report["growth"]["bytes_written"]) == (0, 0)
    assert (cache / "run.log").read_text() == "hello\n"


def test_a_present_directory_that_was_removed_is_said(tmp_path):
    (tmp_path / "gone").mkdir()
    script = f"cd {tmp_path}/gone && rmdir ../gone && exec {' '.join(exec_argv(tmp_path / 'cache', command=['true']))}"
    ran = run(["sh", "-c", script])
    assert (ran.status, ran.stderr) == (
        125, "cachewatch: the present working directory has been removed: change to another one\n",
    )  # fmt: skip


def test_two_jobs_on_one_directory_the_second_ends_at_once_and_names_the_first(cache):
    with running(exec_argv(cache, *WELL, command=sh(f"touch {cache}/started; sleep {HANG_S}"))) as first:
        assert eventually((cache / "started").exists)
        second = run(exec_argv(cache, "--env", "X=1", command=["touch", str(cache / "second")]))
        assert second.status == 125
        assert second.stderr.startswith(
            f"cachewatch: cache directory {cache} is in use by another job (pid {first.pid}: "
        )
        assert second.stderr.endswith("): wait for it to end, or use another directory\n")
        assert "prefect_cachewatch" in second.stderr
        assert not (cache / "second").exists()
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 143
    third = run_exec(cache, *WELL, command=["true"])
    assert third.status == 0


# Options


def test_environment_working_directory_and_standard_input_reach_the_generator(cache, tmp_path):
    (tmp_path / "work").mkdir()
    ran = run_exec(
        cache, *WELL, "--allow-empty", "--env", "A=b=c", "--env", "EMPTY=",
        command=sh('echo "$A|$EMPTY|$PWD"; cat; echo problem >&2; test -n "$CACHEWATCH_ID"'), input="from outside\n",
        cwd=tmp_path / "work",
    )  # fmt: skip
    assert ran.status == 0
    assert ran.stdout == f"b=c||{tmp_path}/work\nfrom outside\n"
    assert ran.stderr.startswith("problem\n")


def test_relative_directories_are_meant_from_where_the_command_was_called(tmp_path):
    ran = run_exec(
        "some/cache", *WELL, command=sh("head -c 5000 /dev/zero > some/cache/a"), cwd=tmp_path, report_dir=tmp_path
    )
    assert ran.status == 0
    assert ran.report["cache_dirs"] == [str(tmp_path / "some/cache")]
    assert ran.report["growth"]["bytes_written"] == 5000


def test_growth_in_any_of_several_directories_counts_and_a_nested_one_counts_once(tmp_path):
    ran = run_exec(
        tmp_path / "a", *WELL, "--cache-dir", tmp_path / "a/b", "--cache-dir", tmp_path / "c",
        command=sh(f"head -c 5000 /dev/zero > {tmp_path}/a/b/x; head -c 300 /dev/zero > {tmp_path}/c/y"),
    )  # fmt: skip
    assert ran.status == 0
    assert ran.report["cache_dirs"] == [str(tmp_path / name) for name in ("a", "a/b", "c")]
    assert (ran.report["growth"]["bytes_written"], ran.report["growth"]["files_present"]) == (5300, 2)
    assert ran.report["listing"]["total_bytes"] == 5300


def test_ignored_files_are_neither_growth_nor_listed(cache):
    # A removed file that NFS keeps while somebody has it open is never the cache's.
    script = f"cd {cache}; for name in a.log b.lock .nfs1 c.skip d; do head -c 5000 /dev/zero > $name; done"
    ran = run_exec(cache, *WELL, "--ignore", "*.skip", command=sh(script))
    assert ran.report["growth"]["bytes_written"] == 5000
    assert [Path(e["path"]).name for e in ran.report["listing"]["entries"]] == ["d"]


def test_growth_below_the_least_is_a_stall(cache):
    script = f"head -c 200000 /dev/zero > {cache}/a; while :; do printf x >> {cache}/a; sleep 0.1; done"
    ran = run_exec(cache, *SHORT, command=sh(script))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")


def test_quiet_says_nothing_after_a_success_and_the_reason_after_a_stall(cache):
    ran = run_exec(cache, *WELL, "--allow-empty", "--quiet", command=sh("echo out; echo problem >&2"))
    assert (ran.status, ran.stdout, ran.stderr) == (0, "out\n", "problem\n")
    ran = run_exec(cache, *SHORT, "--first-write-within", "1s", "--quiet", command=["sleep", str(HANG_S)])
    assert ran.status == 124
    assert ran.stderr.count("\n") == 1
    assert ran.last_line.startswith("cache stalled: ")


def test_a_poll_that_does_not_fit_is_shortened_and_that_is_said(cache):
    ran = run_exec(cache, "--stall-after", "10s", "--poll", "15s", command=["true"])
    assert ran.stderr.splitlines()[0] == (
        "cachewatch: the poll of 15 s does not fit twice into the shortest window; measuring every 5 s instead"
    )
    assert run_exec(cache, "--stall-after", "10s", command=["true"]).stderr.count("\n") == 1


def test_the_log_file_gets_both_streams(cache, tmp_path):
    ran = run_exec(cache, *WELL, "--log", tmp_path / "log", command=sh("echo out; sleep 0.2; echo problem >&2"))
    assert (ran.stdout, (tmp_path / "log").read_text()) == ("out\n", "out\nproblem\n")
    assert ran.report["log_tail"] == ["out", "problem"]


def test_secrets_of_the_command_line_and_the_log_are_not_in_the_report(cache):
    ran = run_exec(cache, *WELL, command=["echo", "--token", "s3cr3tvalue", "https://me:s3cr3tpass@host/x", "done"])
    assert "s3cr3tvalue" in ran.stdout  # what passes through is the user's own
    assert ran.report["command"] == ["echo", "--token", "***", "https://***@host/x", "done"]
    assert "s3cr3tpass" not in json.dumps(ran.report)


def test_a_hostile_directory_name_does_not_reach_the_terminal(tmp_path):
    ran = run_exec(tmp_path / "a\x1b[31m\nb", *WELL, "--allow-empty", command=["true"])
    assert ran.status == 0
    assert "\x1b" not in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert "a\\x1b[31m\\nb" in ran.last_line


def test_names_that_are_no_utf8_are_watched_and_reported(tmp_path):
    directory = os.fsencode(tmp_path) + b"/c\xff"
    argv = exec_argv(os.fsdecode(directory), *WELL, "--report", tmp_path / "r.json",
                     command=["sh", "-c", 'echo 12345 > "$1/f\xff"', "sh"])  # fmt: skip
    script = os.fsdecode(b'printf 12345 > "' + directory + b'/f\xfe"')
    argv[-4:] = ["sh", "-c", script, "sh"]
    ran = run(argv)
    assert ran.status == 0
    assert ran.last_line.isascii()
    report = json.loads((tmp_path / "r.json").read_text())
    assert os.fsencode(report["listing"]["entries"][0]["path"]) == directory + b"/f\xfe"
    assert (report["name"], report["growth"]["bytes_written"]) == ("c\\xff", 5)


def test_a_large_directory_is_listed_in_part_with_totals_for_the_rest(cache):
    source = f"""
        import os, time
        for n in range(1200):
            if n == 1100:
                time.sleep(1.5)
            os.makedirs(f"{cache}/d{{n % 3}}", exist_ok=True)
            open(f"{cache}/d{{n % 3}}/{{n}}", "wb").write(b"x" * 10)
    """
    ran = run_exec(cache, *WELL, command=program(source, new_tag()))
    listing = ran.report["listing"]
    assert (listing["total_files"], listing["total_bytes"], listing["truncated"]) == (1200, 12000, True)
    assert len(listing["entries"]) == 1000
    assert sum(row["files"] for row in listing["rest"]) == 200
    assert sum(row["bytes"] for row in listing["rest"]) == 2000
    # The newest stand first; files of one moment in any order.
    assert {int(Path(entry["path"]).name) for entry in listing["entries"][:100]} == set(range(1100, 1200))


# Signals


@pytest.mark.parametrize(
    ("number", "first"),
    [
        (signal.SIGTERM, ""),
        (signal.SIGINT, "signal.signal(signal.SIGINT, lambda *_: os._exit(0))"),  # gone before any SIGTERM
    ],
)
def test_a_signal_stops_the_tree_and_is_the_status(cache, number, first):
    tag = new_tag()
    source = f"""
        import os, signal, sys, time
        {first}
        if os.fork() == 0:
            os.setsid()
            time.sleep({HANG_S})
        open({str(cache / "started")!r}, "w").close()
        time.sleep({HANG_S})
    """
    report = cache.parent / "r.json"
    argv = exec_argv(cache, *WELL, "--grace", "20s", "--report", report, command=program(source, tag))
    with running(argv, start_new_session=True) as process:
        assert eventually((cache / "started").exists)
        process.send_signal(number)
        error = process.stderr.read()
        assert process.wait(PATIENCE_S) == 128 + number
    assert tagged(tag) == []
    assert error.splitlines()[-1].startswith(f"Tensor cache generation was cancelled ({number.name}); ")
    told = json.loads(report.read_text())
    assert (told["outcome"], told["stall"]["kind"]) == ("cancelled", None)
    assert len(told["stop"]["terminated"]) == 2


def test_a_second_signal_ends_the_grace_period(cache):
    tag = new_tag()
    source = f"""
        import signal, time
        signal.signal(15, signal.SIG_IGN)
        open({str(cache / "started")!r}, "w").close()
        time.sleep({HANG_S})
    """
    with running(exec_argv(cache, *WELL, "--grace", "1h", command=program(source, tag))) as process:
        assert eventually((cache / "started").exists)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert tagged(tag) == []


def test_a_signal_that_the_caller_ignores_stays_ignored(cache):
    argv = exec_argv(cache, *WELL, command=sh(f"touch {cache}/started; sleep 2; exit 5"))
    with running(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *argv]) as process:
        assert eventually((cache / "started").exists)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_S) == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_command_that_is_killed_itself_leaves_nobody_and_frees_the_directory(cache, number):
    tag = new_tag()
    source = f"import time; open({str(cache / 'started')!r}, 'w').close(); time.sleep({HANG_S})"
    with running(exec_argv(cache, *WELL, "--grace", "0.3s", command=program(source, tag))) as process:
        assert eventually((cache / "started").exists)
        process.send_signal(number)
        process.wait(PATIENCE_S)
    assert_none_left(tag)
    assert eventually(lambda: run_exec(cache, *WELL, command=["true"]).status == 0)


def test_a_guard_that_is_killed_is_cachewatchs_own_failure(cache):
    tag = new_tag()
    source = f"import time; open({str(cache / 'started')!r}, 'w').close(); time.sleep({HANG_S})"
    with running(exec_argv(cache, *WELL, "-v", "--grace", "0.3s", command=program(source, tag))) as process:
        assert "the command was started as pid" in process.stderr.readline()  # its guard has said so
        assert eventually((cache / "started").exists)
        (pid,) = tagged(tag)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        error = process.stderr.read()
        assert process.wait(PATIENCE_S) == 125
    assert "Tensor cache generation failed: it was stopped because its guard process died; " in error
    assert tagged(tag) == []


# Streams


def test_a_reader_that_leaves_does_not_stop_the_generator(cache):
    script = f"i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; head -c 9000 /dev/zero > {cache}/end"
    command = " ".join(f"'{word}'" for word in exec_argv(cache, *WELL, command=sh(script)))
    ran = run(["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"])
    assert (ran.status, ran.stdout) == (0, "line 0\n")
    assert (cache / "end").stat().st_size == 9000


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_harm_nothing(cache, closed):
    report = cache.parent / "r.json"
    argv = exec_argv(
        cache,
        *WELL,
        "--report",
        report,
        command=sh(f'"echo out; echo problem >&2; cat; head -c 9000 /dev/zero > {cache}/a"'),
    )
    ran = run(["sh", "-c", " ".join(argv) + " " + closed], stdin=subprocess.DEVNULL)
    assert ran.status == 0
    told = json.loads(report.read_text())
    assert told["log_tail"] == ["out", "problem"]
    assert told["growth"]["bytes_written"] == 9000
    assert ("out" in ran.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_report_that_cannot_be_written_at_the_end_is_said_and_the_status_stands(cache, tmp_path):
    (tmp_path / "reports").mkdir()
    argv = exec_argv(cache, *WELL, "--no-bundle", "--report", tmp_path / "reports/r.json",
                     command=sh(f"rmdir {tmp_path}/reports; touch {tmp_path}/reports; exit 3"))  # fmt: skip
    (tmp_path / "tmp").mkdir()
    ran = run(argv, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")})
    assert ran.status == 3
    first, last = ran.stderr.splitlines()
    (elsewhere,) = (tmp_path / "tmp").glob("*.json")
    assert first == (
        f"cachewatch: report file {tmp_path}/reports/r.json cannot be written: Not a directory; it is in {elsewhere} instead"
    )
    assert json.loads(elsewhere.read_text())["exit_code"] == 3
    assert last.startswith("cache failed: it printed nothing. Exit code 3. ")


def test_output_of_any_size_passes_through_unharmed(cache):
    ran = subprocess.run(
        exec_argv(cache, *WELL, "--allow-empty", command=sh("head -c 30000000 /dev/zero | tr '\\0' x; printf '\\377\\376end' >&2")),
        capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ran.returncode == 0
    assert ran.stdout == b"x" * 30_000_000
    assert ran.stderr.startswith(b"\xff\xfeend")


def _in_terminal(argv: list[str], columns: int = 80, **environ: str) -> tuple[int, bytes]:
    """Run a command with a terminal on all three streams; returns its status and all that was shown."""
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"} | environ
    )
    os.close(theirs)
    shown = b""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            shown += chunk
        elif process.poll() is not None:
            break
    os.close(ours)
    return process.wait(PATIENCE_S), shown


WRITES = "for n in 1 2 3; do head -c 2000000 /dev/zero > {0}/layer.$n; sleep 0.5; done; echo generator says done"


def test_a_terminal_gets_a_live_view_with_the_numbers_and_a_clean_end(cache):
    status, shown = _in_terminal(exec_argv(cache, *WELL, command=sh(WRITES.format(cache))))
    assert status == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"MiB", text)
    assert re.search(r"\d files?", text)
    assert "5 minutes" in text
    assert "generator says done" in text
    after_the_view = re.split(r"\x1b\[[0-9;?]*[A-Za-z]", shown.decode())[-1]
    assert after_the_view.startswith("Tensor cache generation completed in ") and after_the_view.count("\n") == 1
    for line in re.split(r"[\r\n]", text):
        if "MiB" in line and not line.startswith("Tensor"):
            assert len(line) <= 80


@pytest.mark.parametrize(("options", "environ"), [([], {"TERM": "dumb"}), (["--quiet"], {}), ([], {"NO_COLOR": "1"})])
def test_a_terminal_gets_no_more_than_it_can_or_wants_to_show(cache, options, environ):
    _, shown = _in_terminal(exec_argv(cache, *WELL, *options, command=sh(WRITES.format(cache))), **environ)
    if environ.get("NO_COLOR"):
        assert not re.search(rb"\x1b\[[0-9;]*m", shown.replace(b"\x1b[0m", b""))
    else:
        assert b"\x1b" not in shown
    if options:
        assert shown == b"generator says done\r\n"


# The command itself


def test_the_command_without_arguments_shows_its_help():
    ran = run(CACHEWATCH)
    assert ran.status == 125
    assert "Usage: cachewatch" in ran.stderr + ran.stdout
    assert len((ran.stderr + ran.stdout).splitlines()) > 5


def test_an_unknown_command_and_the_version():
    ran = run([*CACHEWATCH, "dance"])
    assert (ran.status, ran.stderr) == (125, "cachewatch: No such command 'dance'. (see cachewatch --help)\n")
    ran = run([*CACHEWATCH, "--version"])
    assert re.fullmatch(r"cachewatch, version \d+\.\d+\.\d+\n", ran.stdout)


def test_an_error_of_our_own_is_125_and_asks_for_a_report(tmp_path):
    code = (
        "from prefect_cachewatch.cli import exec as e\n"
        "def broken(*_, **__): raise ZeroDivisionError('x')\n"
        "e.place_job = broken\n"
        "from prefect_cachewatch.cli.main import main\n"
        f"main(['exec', '--cache-dir', {str(tmp_path / 'c')!r}, '--', 'true'])"
    )
    ran = run([sys.executable, "-c", code])
    assert ran.status == 125
    assert ran.last_line == "cachewatch: internal error, please report it with the lines above: ZeroDivisionError: x"
    assert "Traceback" in ran.stderr


def test_json_prints_the_report_as_the_last_line_of_standard_output(cache):
    ran = run_exec(cache, "--json", "--quiet", command=sh("printf 'no end of line'; exit 3"))
    assert ran.status == 3
    said, line = ran.stdout.rstrip("\n").split("\n")
    assert said == "no end of line" and json.loads(line) == ran.report
