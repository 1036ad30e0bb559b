"""Readers of our own streams who do not read, or have left: nothing that decides, stops or reports waits for them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from support import PATIENCE_S, exec_argv, new_tag, program, tagged

WINDOW_S = 2
SHORT = ("--stall-after", f"{WINDOW_S}s", "--poll", "0.2s", "--grace", "0.3s")
HANG_S = 900
# Far more than the window, the pump's last 3 s and the console's 2 s together, for a busy machine; far less than a hang takes.
SOON_S = 240


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def hanging(cache: Path, tag: str, before: str = "") -> list[str]:
    return program(
        f"import time\nopen({str(cache / 'a')!r}, 'wb').write(b'x' * 9000)\n{before}\ntime.sleep({HANG_S})", tag
    )


@contextlib.contextmanager
def full_pipe():
    """The write end of a pipe that nobody reads and that holds all it can."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, b"." * 4096):
            continue
    os.set_blocking(write, True)
    try:
        yield write
    finally:
        os.close(write)
        os.close(read)


@contextlib.contextmanager
def stopped_terminal():
    """A terminal whose output was stopped, as by Ctrl-S."""
    main, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    try:
        yield terminal
    finally:
        os.close(main)
        os.close(terminal)


def ended(cache: Path, command: list[str], stdout: int, stderr: int) -> tuple[int, dict[str, object]]:
    report = cache.parent / "r.json"
    argv = exec_argv(cache, *SHORT, "--report", report, command=command)
    environ = os.environ | {"TERM": "xterm", "XDG_STATE_HOME": str(cache.parent / "state")}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ)
    try:
        status = process.wait(SOON_S)
    finally:
        process.kill()
        process.wait()
    return status, json.loads(report.read_text())


@pytest.mark.campaign
@pytest.mark.parametrize("where", [full_pipe, stopped_terminal])
@pytest.mark.parametrize("streams", ["error", "both"])
def test_a_stall_is_decided_ended_and_reported_though_nobody_reads_what_is_said(cache, where, streams):
    tag = new_tag()
    with where() as unread:
        output = unread if streams == "both" else subprocess.DEVNULL
        status, report = ended(cache, hanging(cache, tag), output, unread)
    assert (status, report["outcome"]) == (124, "stalled")
    assert report["stop"]["decided_after_last_growth_s"] < WINDOW_S + 5
    assert tagged(tag) == []


@pytest.mark.campaign
def test_a_generator_whose_output_nobody_reads_is_stopped_in_time_all_the_same(cache):
    tag = new_tag()
    flood = "import os, threading\nthreading.Thread(target=lambda: os.write(1, b'x' * (8 << 20)), daemon=True).start()"
    with full_pipe() as unread:
        status, report = ended(cache, hanging(cache, tag, flood), unread, unread)
    assert (status, report["outcome"]) == (124, "stalled")
    assert report["stop"]["decided_after_last_growth_s"] < WINDOW_S + 5
    assert tagged(tag) == []


@pytest.mark.campaign
def test_a_note_that_nobody_reads_does_not_hold_up_output_that_is_read(cache):
    tag = new_tag()
    source = f"""
        import os, time
        for n in range(40):
            os.write(1, b"x" * 65536)
            open(f"{cache}/{{n}}", "wb").write(b"x" * 9000)
            time.sleep(.1)
    """
    argv = exec_argv(cache, *SHORT, command=program(source, tag))
    with full_pipe() as unread, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=unread) as process:
        assert process.stdout is not None
        assert len(process.stdout.read()) == 40 * 65536
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 7", 7), (f"sleep {HANG_S}", 124)])
def test_readers_that_have_left_change_no_exit_status(cache, command, status):
    read, write = os.pipe()
    os.close(read)
    cache.mkdir()
    (cache / "old").write_bytes(b"x")
    argv = exec_argv(cache, *SHORT, "--first-write-within", "2s", command=["sh", "-c", command])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=write, stderr=write)
    os.close(write)
    try:
        assert process.wait(SOON_S) == status
    finally:
        process.kill()
        process.wait()


def test_what_is_said_at_the_end_reaches_a_reader_who_is_late(cache):
    read, write = os.pipe()
    argv = exec_argv(cache, *SHORT, command=["sh", "-c", f"head -c 9000 /dev/zero > {cache}/a"])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=write, stderr=write)
    os.close(write)
    time.sleep(1)
    with open(read, "rb") as reader:
        assert reader.read().startswith(b"Tensor cache generation completed")
    assert process.wait(PATIENCE_S) == 0


def test_an_error_reaches_a_reader_who_is_late(cache):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, b"." * 4096):
            continue
    os.set_blocking(write, True)
    process = subprocess.Popen(exec_argv(cache, command=["/no/such/program"]), stderr=write)
    os.close(write)
    time.sleep(1.2)  # it is said by then, or soon
    with open(read, "rb") as stream:
        assert b"does not exist" in stream.read()
    assert process.wait(PATIENCE_S) == 127


def test_an_end_while_the_writing_thread_holds_its_lock_is_an_end():
    source = """
        import sys, threading, time
        from prefect_cachewatch.common.console import install_console, standard_error
        install_console()
        held = threading.Event()
        def hold():
            with standard_error()._changed:
                held.set()
                time.sleep(1000)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        sys.exit(3)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(source)], timeout=PATIENCE_S).returncode == 3
