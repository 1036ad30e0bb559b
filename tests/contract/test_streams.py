"""The streams of `cachewatch exec`: the generator's bytes pass as they are, and readers who do not read hold up nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest

from tests.contract.harness import COMMAND, QUICK, WELL, Place, assert_refused, eventually
from tests.contract.terminal import fill, full_pipe, stopped_terminal, terminal

CALM = (*WELL, "--allow-empty", "--no-bundle")
HANGS = (*QUICK, "--poll", "0.2s", "--stall-after", "1s", "--first-write-within", "1s", "--no-bundle")
RAW = {"text": False, "errors": None}
MIB = 1 << 20
# Writes what lies in a file to both streams.
COPIES = """
data = (PLACE / "bytes").read_bytes()
for fd in (1, 2):
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left):]
"""
WRITTEN = {
    "no end of line": b"50 %",
    "every byte": bytes(range(256)) * 10,
    "no UTF-8": b"\xff\xfe\n\xc3",
    "carriage returns": b"10 %\r20 %\r\n30 %\r",
    "commands of a terminal": b"\x1b[2J\x1b[31mred\x1b[0m\n",
    "one line of 8 MiB": b"x" * (8 * MIB),
    "a million lines": b"".join(b"%07d\n" % n for n in range(1_000_000)),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_the_generator_writes_passes_byte_for_byte(place: Place, case: str) -> None:
    (place.root / "bytes").write_bytes(WRITTEN[case])
    argv = ["exec", "--cache-dir", place.cache, *CALM, "--progress", "none", "--", *place.program(COPIES)]
    with place.started(*argv, **RAW) as process:
        out, error = process.communicate(timeout=180)
    assert process.returncode == 0
    assert out == WRITTEN[case]
    said = error.removeprefix(WRITTEN[case])
    assert len(error) - len(said) == len(WRITTEN[case])
    assert said.count(b"\n") <= 2 and b"completed" in said


@pytest.mark.parametrize(
    ("stdin", "data", "got"),
    [
        (subprocess.DEVNULL, None, b""),
        (subprocess.PIPE, b"", b""),
        (subprocess.PIPE, b"from outside\xff", b"from outside\xff"),
        (subprocess.PIPE, b"x" * (4 * MIB), b"x" * (4 * MIB)),
    ],
    ids=["nothing", "an end at once", "a pipe", "4 MiB"],
)
def test_standard_input_is_the_generators(place: Place, stdin: int, data: bytes | None, got: bytes) -> None:
    with place.started("exec", "--cache-dir", place.cache, *CALM, "--", "cat", stdin=stdin, **RAW) as process:
        assert process.communicate(data, timeout=120)[0] == got
    assert process.returncode == 0


def test_a_terminal_as_standard_input_is_the_generators(place: Place) -> None:
    argv = [
        COMMAND,
        "exec",
        "--cache-dir",
        place.cache,
        *CALM,
        "--quiet",
        "--",
        "sh",
        "-c",
        "read line; echo got $line",
    ]
    with terminal(place, *argv) as shell:
        shell.type("a word\n")
        assert eventually(shell.ended)
        assert (shell.status, "got a word" in shell.lines()) == (0, True)


def test_environment_and_working_directory_are_the_generators(place: Place) -> None:
    (place.root / "work").mkdir()
    # Its guard, which is its parent, holds on to no directory.
    script = 'echo "$A|$EMPTY|$PWD"; readlink /proc/$PPID/cwd; test -n "$CACHEWATCH_ID"'
    ran = place.exec(*CALM, "--env", "A=b=c", "--env", "EMPTY=", command=["sh", "-c", script], cwd=place.root / "work")
    assert (ran.status, ran.stdout) == (0, f"b=c||{place.root}/work\n/\n"), ran.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_harm_nothing(place: Place, closed: str) -> None:
    place.before = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    ran = place.exec(*WELL, command=["sh", "-c", "echo out; echo problem >&2; cat; head -c 9000 /dev/zero > $C/a"])
    assert (ran.status, ran.report["growth"]["bytes_written"]) == (0, 9000)
    assert set(ran.report["log_tail"]) >= {"out", "problem"}
    assert ("out" in ran.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert ("problem" in ran.stderr) == ("2>&-" not in closed)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("sleep 100", 124)])
def test_readers_that_have_left_change_no_exit_status(place: Place, script: str, status: int) -> None:
    place.cache.mkdir()
    (place.cache / "old").write_bytes(b"x")
    script = f"i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; {script}"
    read, write = os.pipe()
    os.close(read)
    options = HANGS if status == 124 else CALM
    argv = ["exec", "--cache-dir", place.cache, *options, "--", "sh", "-c", script]
    with place.started(*argv, stdout=write, stderr=write) as process:
        os.close(write)
        assert process.wait(120) == status


WRITES = "head -c 9000 /dev/zero > $C/a; echo said; "
# Scripts of a generator, options, the exit status and the outcome.
UNREAD = {
    "a stall": (WRITES + "sleep 100", HANGS, 124, "stalled"),
    "a flood and a stall": (WRITES + "head -c 9000000 /dev/zero & sleep 100", HANGS, 124, "stalled"),
    "an end": (WRITES + "exit 3", CALM, 3, "failed"),
}


@pytest.mark.parametrize("where", [full_pipe, stopped_terminal], ids=lambda where: where.__name__)
@pytest.mark.parametrize("streams", ["error", "both"])
@pytest.mark.parametrize("case", UNREAD)
def test_nobody_who_reads_holds_up_verdict_stop_or_report(place: Place, where, streams: str, case: str) -> None:
    script, options, status, outcome = UNREAD[case]
    file = place.root / "r.json"
    argv = ["exec", "--cache-dir", place.cache, *options, "--report", file, "--", "sh", "-c", script]
    place.env["TERM"] = "xterm"
    with where() as unread:
        output = unread if streams == "both" else subprocess.DEVNULL
        with place.started(*argv, stdout=output, stderr=unread) as process:
            assert process.wait(240) == status
    assert json.loads(file.read_text())["outcome"] == outcome


@pytest.mark.parametrize("on_stall", ["stop", "report"])
@pytest.mark.parametrize("where", [full_pipe, stopped_terminal], ids=lambda where: where.__name__)
def test_a_watch_decides_and_ends_though_nobody_reads_what_it_says(place: Place, where, on_stall: str) -> None:
    place.cache.mkdir()
    file = place.root / "r.json"
    with where() as unread, subprocess.Popen(["sleep", "900"], start_new_session=True, env=place.env) as generator:
        options = ("--pid", generator.pid, "--cache-dir", place.cache, *HANGS, "--on-stall", on_stall)
        with place.started("watch", *options, "--report", file, stdout=unread, stderr=unread) as process:
            if on_stall == "report":
                assert eventually(file.exists)
                assert generator.poll() is None
                generator.kill()
            status = process.wait(240)
            generator.kill()
    assert status == 124
    assert json.loads(file.read_text())["outcome"] == ("stalled" if on_stall == "stop" else "failed")


def test_a_note_that_nobody_reads_does_not_hold_up_output_that_is_read(place: Place) -> None:
    source = """
        for n in range(40):
            os.write(1, b"x" * 65536)
            (PLACE / "cache" / str(n)).write_bytes(b"x" * 9000)
    """
    argv = ["exec", "--cache-dir", place.cache, *CALM, "-v", "--", *place.program(source)]
    with full_pipe() as unread, place.started(*argv, stderr=unread, **RAW) as process:
        assert len(process.stdout.read()) == 40 * 65536
        assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("command", "status", "said"), [("true", 0, b"completed"), ("/no/such", 127, b"does not exist")]
)
def test_what_is_said_at_the_end_reaches_a_reader_who_is_late(
    place: Place, command: str, status: int, said: bytes
) -> None:
    place.cache.mkdir()
    read, write = os.pipe()
    fill(write)
    with place.started("exec", "--cache-dir", place.cache, *CALM, "--", command, stderr=write) as process:
        os.close(write)
        # Nothing but its last word is left: only the main process is there, and waits.
        assert eventually(lambda: place.everybody() in ([process.pid], []))
        with open(read, "rb") as reader:
            assert said in reader.read()
        assert process.wait(60) == status


# What is said, and what is not


def test_quiet_says_nothing_after_a_success_and_the_reason_after_a_stall(place: Place) -> None:
    ran = place.exec(*CALM, "--quiet", command=["sh", "-c", "echo out; echo problem >&2"])
    assert (ran.status, ran.stdout, ran.stderr) == (0, "out\n", "problem\n")
    ran = place.exec(*HANGS, "-q", command=["sleep", "100"])
    assert (ran.status, ran.stderr) == (124, ran.report["message"] + "\n")


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_tells_each_step(place: Place, option: str) -> None:
    script = "sh -c 'sleep 0.1 &'; sleep 0.5; head -c 9000 /dev/zero > $C/a; sleep 100"
    ran = place.exec(*HANGS, "--first-write-within", "60s", option, command=["sh", "-c", script])
    for words in (r"as pid \d+", r"pid \d+ ended with exit code 0 and was reaped", r"SIGTERM \(stop\), SIGKILL after"):
        assert re.search(rf"^cachewatch: .*{words}", ran.stderr, re.M), ran.stderr


def test_without_a_terminal_there_are_plain_lines_and_no_command_of_one(place: Place) -> None:
    place.env["TERM"] = "xterm"
    ran = place.exec(*HANGS, command=["sleep", "100"])
    assert "\x1b" not in ran.stderr and "\r" not in ran.stderr
    suspicion, last = ran.stderr.splitlines()
    assert (suspicion.startswith("cachewatch: "), last) == (True, ran.report["message"])


def test_each_event_is_a_json_object_for_other_tools(place: Place) -> None:
    source = """
        for n in range(5):
            (PLACE / f"cache/{n}.bin").write_bytes(bytes(50_000))
        while not (PLACE / "end").exists():
            time.sleep(0.02)
    """
    argv = ["exec", "--cache-dir", place.cache, *CALM, "--progress", "json", "--", *place.program(source)]
    with place.started(*argv) as process:
        assert eventually(lambda: json.loads(process.stderr.readline()).get("bytes_present") == 250_000)
        (place.root / "end").touch()
        lines = process.communicate(timeout=60)[1].splitlines()
    *events, end, report, bye = [json.loads(line) for line in lines if line.startswith("{")]
    for sample in events:
        assert (sample["event"], sample["files_present"], sample["window_s"]) == ("progress", 5, 300)
    assert [(one["event"], one["protocol"]) for one in (end, report, bye)] == [("gone", 1), ("report", 1), ("bye", 1)]
    assert (end["exit_code"], report["report"]["outcome"], bye["outcome"]) == (0, "completed", "completed")


def test_a_poll_that_does_not_fit_is_shortened_and_that_is_said(place: Place) -> None:
    place.cache.mkdir()
    (place.cache / "old").touch()
    ran = place.exec("--stall-after", "10s", "--poll", "15s", command=["true"])
    assert (ran.status, ran.stderr.count("\n"), "every 5 s instead" in ran.stderr) == (0, 2, True)
    assert place.exec("--stall-after", "10s", command=["true"]).stderr.count("\n") == 1


# --log


def test_the_log_file_gets_both_streams_and_may_lie_in_the_cache_if_it_is_ignored_there(place: Place) -> None:
    place.cache.mkdir()
    script = "echo out; until grep -q out $C/run.log; do sleep 0.05; done; echo problem >&2"
    ran = place.exec(*CALM, "--log", "cache/run.log", command=["sh", "-c", script])
    assert (ran.status, ran.stdout, (place.cache / "run.log").read_text()) == (0, "out\n", "out\nproblem\n")
    assert (ran.report["log_tail"], ran.report["growth"]["bytes_written"]) == (["out", "problem"], 0)


def test_a_long_log_keeps_its_beginning_and_its_end_and_says_what_it_cut(place: Place) -> None:
    source = "import sys\nfor n in range(700_000): sys.stdout.write('line %06d %s\\n' % (n, 'x' * 88))"
    argv = ["exec", "--cache-dir", place.cache, *CALM, "--log", "log", "--", *place.program(source)]
    with place.started(*argv, stdout=subprocess.DEVNULL, env=place.env | {"PYTHONUNBUFFERED": ""}) as process:
        assert process.wait(180) == 0
    log = (place.root / "log").read_bytes()
    assert log.startswith(b"line 000000 ") and log.endswith(b"x\n") and b"line 699999 " in log[-200:]
    assert len(log) <= 64 * MIB + 200
    head, _, tail = log.partition(b"\n[... ")
    cut, _, tail = tail.partition(b" bytes cut here by the log's cap ...]\n")
    assert len(head) + int(cut) + len(tail) == 700_000 * 101


def test_a_log_that_is_full_or_whose_reader_stops_hides_no_end(place: Place) -> None:
    script = "head -c 9000 /dev/zero > $C/a; head -c 9000000 /dev/zero; exit 3"
    ran = place.exec(*WELL, "--log", "/dev/full", command=["sh", "-c", script])
    assert (ran.status, "Traceback" in ran.stderr) == (3, False)
    os.mkfifo(place.root / "fifo")
    reader = os.open(place.root / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ran = place.exec(*WELL, "--log", "fifo", command=["sh", "-c", script])
    finally:
        os.close(reader)
    assert (ran.status, len(ran.stdout)) == (3, 9_000_000)
    assert [note for note in ran.report["notes"] if "fifo" in note]
    assert_refused(
        place.run("exec", "--cache-dir", place.cache, "--log", "fifo", "--", "true"), 125, "fifo", "nobody reads"
    )


def test_a_log_with_a_reader_gets_all_of_it(place: Place) -> None:
    os.mkfifo(place.root / "fifo")
    reader = subprocess.Popen(["cat", place.root / "fifo"], stdout=subprocess.PIPE)
    script = "head -c 9000000 /dev/zero"
    argv = ["exec", "--cache-dir", place.cache, *CALM, "--log", "fifo", "--", "sh", "-c", script]
    assert eventually(lambda: "pipe" in os.readlink(f"/proc/{reader.pid}/fd/1") and reader.poll() is None)
    with reader, place.started(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert reader.stdout is not None
        assert len(reader.stdout.read()) == 9_000_000
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("verb", "report"), [("exec", "f"), ("exec", "d/../f"), ("exec", "hard"), ("exec", "link"), ("generate", "hard")]
)
def test_a_log_that_is_the_report_is_refused_before_anything_runs(place: Place, verb: str, report: str) -> None:
    (place.root / "d").mkdir()
    (place.root / "f").write_text("kept")
    os.link(place.root / "f", place.root / "hard")
    (place.root / "link").symlink_to("f")
    argv = (verb, "--cache-dir", place.cache, "--log", "f", "--report", report, "--", "touch", place.root / "ran")
    assert_refused(place.run(*argv), 125, "one and the same file", "name another one")
    assert ((place.root / "f").read_text(), (place.root / "ran").exists()) == ("kept", False)


# On a terminal

LINES = """
n = 0
while not (PLACE / "end").exists():
    print(f"layer {n} done", flush=True)
    (PLACE / "cache" / str(n)).write_bytes(b"x" * 90_000)
    n += 1
    time.sleep(0.3)
print("generator says done")
"""


def shown(place: Place, source: str, *options: object) -> list[object]:
    return [
        COMMAND,
        "exec",
        "--cache-dir",
        place.cache,
        *CALM,
        "--poll",
        "0.1s",
        *options,
        "--",
        *place.program(source),
    ]


@pytest.mark.parametrize("columns", [80, 60])
def test_a_terminal_gets_a_live_view_that_fits_and_a_clean_end(place: Place, columns: int) -> None:
    with terminal(place, *shown(place, LINES), columns=columns) as one:
        assert eventually(lambda: one.shows("pause") and one.shows("layer"))
        assert eventually(lambda: any("KiB" in line and "files" in line for line in one.lines()))
        (place.root / "end").touch()
        assert eventually(one.ended)
        assert one.status == 0
        assert eventually(lambda: "generator says done" in one.lines())
        assert not one.shows("pause")
        last = b"".join(re.split(rb"\x1b\[[0-9;?]*[A-Za-z]", one.shown)[-1:]).decode()
        # The generator's last line stands before it where no view came between.
        assert last.splitlines()[-1].startswith("Tensor cache generation completed in ") and last.endswith("\n")
        for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", one.shown.decode())):
            assert len(line) <= columns or line.startswith("Tensor")


def test_no_output_is_lost_to_the_view(place: Place) -> None:
    source = """
        for n in range(60):
            out = sys.stderr  # two streams are two pipes, without an order between them
            out.write(f"line {n} " + "x" * (n % 7)); out.flush()
            time.sleep(0.01 * (n % 4))
            out.write(f" end {n}\\n"); out.flush()
            time.sleep(0.05)
    """
    with terminal(place, *shown(place, source)) as one:
        assert eventually(one.ended)
        assert eventually(lambda: any("completed" in line for line in one.lines()))
        told = [line for line in one.lines() if line.startswith("line")]
    assert told == [f"line {n} {'x' * (n % 7)} end {n}" for n in range(60)]


def test_an_unfinished_line_stays_and_goes_on_where_it_stopped(place: Place) -> None:
    source = """
        print("first line", flush=True)
        print("loading... ", end="", flush=True)
        while not (PLACE / "end").exists():
            time.sleep(0.02)
        print("done", flush=True)
    """
    with terminal(place, *shown(place, source)) as one:
        assert eventually(lambda: "loading..." in one.lines())
        (place.root / "end").touch()
        assert eventually(one.ended)
        assert eventually(lambda: one.lines()[:2] == ["first line", "loading... done"])


def test_a_generator_that_moves_the_cursor_keeps_its_screen(place: Place) -> None:
    source = """
        for n in range(30):
            sys.stdout.write(f"outer {n}\\ninner {n}\\x1b[1A\\r")
            sys.stdout.flush()
            time.sleep(0.05)
        print("\\n\\nover", flush=True)
    """
    with terminal(place, *shown(place, source)) as one:
        assert eventually(one.ended)
        assert eventually(lambda: one.lines()[:3] == ["outer 29", "inner 29", "over"])


# Options, variables, and what may not be on the screen.
PLAIN = {
    "a terminal that can do nothing": ([], {"TERM": "dumb"}, rb"\x1b"),
    "no colours": ([], {"NO_COLOR": "1"}, rb"\x1b\[[1-9][0-9;]*m"),
    "quiet": (["--quiet"], {}, rb"\x1b|cachewatch|Tensor"),
    "verbose": (["-v"], {}, rb"\x1b"),
    "plain": (["--progress", "plain"], {}, rb"\x1b"),
    "none": (["--progress", "none"], {}, rb"\x1b"),
}


@pytest.mark.parametrize("case", PLAIN)
def test_a_terminal_gets_no_more_than_it_can_or_wants_to_show(place: Place, case: str) -> None:
    options, environ, never = PLAIN[case]
    place.cache.mkdir()
    with terminal(place, *shown(place, LINES, *options), **environ) as one:
        assert eventually(lambda: one.shows("layer 5"))
        (place.root / "end").touch()
        assert eventually(one.ended)
        assert one.status == 0
        assert eventually(lambda: b"generator says done\r\n" in one.shown)
        assert not re.search(never, one.shown)


def test_a_terminal_that_is_no_longer_read_harms_nothing(place: Place) -> None:
    main, side = pty.openpty()
    place.env["TERM"] = "xterm"
    place.cache.mkdir()
    try:
        with place.started(
            *map(str, shown(place, LINES)[1:]), stdin=side, stdout=side, stderr=side, start_new_session=True
        ) as process:
            assert eventually(lambda: b"pause" in os.read(main, 65536))
            assert eventually(lambda: len(list(place.cache.iterdir())) > 20)
            (place.root / "end").touch()
            assert process.wait(60) == 0
    finally:
        os.close(main)
        os.close(side)
