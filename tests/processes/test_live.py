"""The live view on a real pseudo-terminal, read by a terminal emulator: it is seen, and hides no output."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from support import PATIENCE_S, WELL, eventually, exec_argv, program

OFTEN = (*WELL, "--poll", "0.1s")


class Shown:
    """A command on a terminal of 80 by 24, and what stands there."""

    def __init__(self, argv: list[str], columns: int = 80) -> None:
        self.screen = pyte.HistoryScreen(columns, 24, history=5000)
        self.lock = threading.Lock()
        self._stream = pyte.ByteStream(self.screen)
        self.fd, side = pty.openpty()
        termios.tcsetwinsize(side, (24, columns))
        self.process = subprocess.Popen(
            argv, stdin=side, stdout=side, stderr=side, start_new_session=True,
            env=os.environ | {"TERM": "xterm", "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(side)
        self.reading = threading.Event()
        self.reading.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self.reading.wait(PATIENCE_S) and (chunk := os.read(self.fd, 65536)):
                with self.lock:
                    self._stream.feed(chunk)

    def lines(self) -> list[str]:
        """What has left the screen at its top, and what is on it."""
        with self.lock:
            above = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
            return [line.rstrip() for line in [*above, *self.screen.display]]

    def has_view(self) -> bool:
        return any(line.startswith("pause") for line in self.lines())

    def shows_view(self) -> bool:
        """Whether it is on the screen, and not above it."""
        with self.lock:
            return any(line.startswith("pause") for line in self.screen.display)

    def end(self) -> int:
        status = self.process.wait(PATIENCE_S)
        self._reader.join(1)
        return status


@contextlib.contextmanager
def shown(cache: Path, code: str, *options: str, columns: int = 80) -> Iterator[Shown]:
    one = Shown(exec_argv(cache, *OFTEN, *options, command=program(code, str(cache))), columns)
    try:
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(signal.SIGTERM)
        one.reading.set()
        one.process.wait(PATIENCE_S)
        os.close(one.fd)


def frames(one: Shown, count: int) -> int:
    """In how many of so many looks the view is there, from when it is there first."""
    assert eventually(one.has_view)
    seen = 0
    for _ in range(count):
        time.sleep(0.05)
        seen += one.shows_view()
    return seen


LINES = """
    import time
    for n in range(1000):
        print(f"layer {n} done", flush=True)
        time.sleep(0.33)
"""
WORDS = """
    import time
    print("first line", flush=True)
    print("loading... ", end="", flush=True)
    time.sleep(LAST)
    print("done", flush=True)
    time.sleep(LAST)
"""


def test_the_view_is_seen_below_the_lines_of_the_generator(tmp_path):
    with shown(tmp_path / "cache", LINES) as one:
        assert frames(one, 40) >= 20


@pytest.mark.campaign
def test_an_unfinished_line_stays_and_goes_on_where_it_stopped(tmp_path):
    with shown(tmp_path / "cache", WORDS.replace("LAST", "2")) as one:
        assert eventually(lambda: "loading... done" in one.lines())
        assert eventually(one.has_view)
        assert one.end() == 0
    assert one.lines()[:2] == ["first line", "loading... done"]
    assert not one.has_view()


@pytest.mark.campaign
@pytest.mark.parametrize("columns", [80, 40])
def test_no_output_is_lost_to_the_view(tmp_path, columns):
    code = """
        import sys, time
        for n in range(60):
            out = sys.stderr  # two streams are two pipes, without an order between them
            out.write(f"line {n} " + "x" * (n % 7))
            out.flush()
            time.sleep(0.01 * (n % 4))
            out.write(f" end {n}\\n")
            out.flush()
            time.sleep(0.05)
    """
    with shown(tmp_path / "cache", code, columns=columns) as one:
        assert one.end() == 0
    told = [line for line in one.lines() if line.startswith("line")]
    assert told == [f"line {n} {'x' * (n % 7)} end {n}" for n in range(60)]


def test_a_generator_that_moves_the_cursor_keeps_its_screen(tmp_path):
    code = """
        import sys, time
        for n in range(30):
            sys.stdout.write(f"outer {n}\\ninner {n}\\x1b[1A\\r")
            sys.stdout.flush()
            time.sleep(0.05)
        sys.stdout.write("\\n\\nover\\n")
        sys.stdout.flush()
    """
    with shown(tmp_path / "cache", code) as one:
        assert one.end() == 0
    assert [line for line in one.lines() if line][:3] == ["outer 29", "inner 29", "over"]


@pytest.mark.campaign
def test_a_terminal_that_is_not_read_harms_nothing(tmp_path):
    report, code = tmp_path / "r.json", "import time; time.sleep(2)"
    with shown(tmp_path / "cache", code, "--report", str(report)) as one:
        assert eventually(one.has_view)
        one.reading.clear()
        assert one.process.wait(PATIENCE_S) == 0
    assert json.loads(report.read_text())["outcome"] == "completed"


def test_each_sample_is_a_json_object_for_other_tools(tmp_path):
    code = """
        import os, sys, time
        for n in range(5):
            open(os.path.join(sys.argv[1], f"{n}.bin"), "wb").write(bytes(50_000))
            time.sleep(0.2)
    """
    cache = tmp_path / "cache"
    argv = exec_argv(cache, *OFTEN, "--progress", "json", command=program(code, str(cache)))
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    samples = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    assert len(samples) >= 3
    assert {each["cachewatch"] for each in samples} == {"sample"}
    assert samples[-1]["bytes_present"] == 250_000 and samples[-1]["files_present"] == 5
    assert samples[-1]["window_s"] == 300


@pytest.mark.parametrize(("verbose", "steps"), [("-v", True), ("--quiet", False)])
def test_more_is_said_of_each_step(tmp_path, verbose, steps):
    argv = exec_argv(tmp_path / "cache", *OFTEN, "--no-bundle", verbose, command=["sleep", "1"])
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ("the command was started as pid" in ran.stderr) is steps


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--progress", "any"), "'any' says what counts as progress: that is --progress-by any"),
        (("--progress", "loud"), "'loud' is not one of 'live', 'plain', 'json', 'none'"),
    ],
)
def test_another_way_to_show_it_is_refused_in_one_sentence(tmp_path, options, said):
    ran = subprocess.run(
        exec_argv(tmp_path / "cache", *options, command=["true"]), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 125 and said in ran.stderr and "Traceback" not in ran.stderr
