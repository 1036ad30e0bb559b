"""The output pump with real writers: always drained, bounded, nothing lost on the way through."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from prefect_cachewatch.supervise.output import OutputPump
from support import PATIENCE_S, eventually

MIB = 1 << 20


@contextlib.contextmanager
def writer(pump: OutputPump, source: str):
    """Run a Python program whose standard output and error go into the pump."""
    out, error = pump.open_pipes()
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", textwrap.dedent(source)], stdout=out, stderr=error)
    os.close(out)
    os.close(error)
    pump.start()
    try:
        yield process
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        process.kill()
        process.wait()
        pump.finish()


def pumped(source: str, **options) -> OutputPump:
    pump = OutputPump(**options)
    with writer(pump, source) as process:
        assert process.wait(PATIENCE_S) == 0
    return pump


def test_a_hundred_megabytes_without_a_newline_are_drained_in_bounded_memory():
    pump = OutputPump(tail_bytes=64 << 10)
    before = len(os.listdir("/proc/self/fd"))
    with writer(pump, f"import os\nfor _ in range(100): os.write(1, b'x' * {MIB})") as process:
        assert process.wait(PATIENCE_S) == 0
    assert pump.total_bytes == 100 * MIB
    assert pump.tail() == b"x" * (64 << 10)
    assert len(pump._tail) <= 5 * (64 << 10) + MIB
    assert [len(line) for line in pump.tail_lines(50)] == [2000]
    assert len(os.listdir("/proc/self/fd")) == before


def test_undecodable_output_and_carriage_returns_make_lines():
    pump = pumped(r"import os; os.write(1, b'10%\r20%\r\xff\n\n\nlast')")
    assert pump.tail_lines(10) == ["10%", "20%", "\udcff", "last"]


@pytest.mark.parametrize("size", [80_001, 100_000, 100_001])
def test_a_log_around_its_cap_loses_nothing_that_fits(tmp_path, size):
    data = bytes(n % 251 for n in range(size))
    pumped(f"import os; d = bytes(n % 251 for n in range({size})); os.write(1, d)",
           log_path=tmp_path / "log", log_max_bytes=100_000, tail_bytes=20_000)  # fmt: skip
    log = (tmp_path / "log").read_bytes()
    if size <= 100_000:
        assert log == data
    else:
        assert log.startswith(data[:80_000])
        assert log.endswith(data[-20_000:])


def test_a_fifo_whose_reader_leaves_does_not_stop_the_draining(tmp_path):
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    pump = OutputPump(tmp_path / "log")
    os.close(reader)
    with writer(pump, f"import os\nfor _ in range(10): os.write(1, b'x' * {MIB})") as process:
        assert process.wait(PATIENCE_S) == 0
    assert pump.total_bytes == 10 * MIB
    assert pump.log_error == f"{tmp_path}/log: Broken pipe"


def test_a_stranger_that_holds_the_pipe_is_not_waited_for():
    pump = OutputPump()
    out, error = pump.open_pipes()
    pump.start()
    os.write(out, b"so far\n")
    assert eventually(lambda: pump.tail() == b"so far\n")
    pump.finish(0.2)
    assert pump.tail_lines(5) == ["so far"]
    os.close(out)
    os.close(error)
    assert not [thread for thread in threading.enumerate() if thread.name == "cachewatch-output"]


def test_half_a_line_is_shown_in_neither_half():
    pump = OutputPump(tail_bytes=64)
    try:
        pump._take(memoryview(b"first\nusing ghp_0123"), 1)
        assert pump.tail_lines(5) == ["first", "using ghp_0123"]  # all there is
        lines, seen, _ = pump.lines_since(0)
        assert lines == ["first"]
        pump._take(memoryview(b"456789abcdef\nsecond\nthi"), 1)
        lines, seen, _ = pump.lines_since(seen)
        assert lines == ["using ghp_0123456789abcdef", "second"]
        assert pump.lines_since(seen) == ([], seen, 0)
        pump._take(memoryview(b"rd\n" + b"x" * 10 + b"\n"), 1)
        assert pump.lines_since(seen)[0] == ["third", "x" * 10]
        pump._take(memoryview(b"token=" + b"s" * 60 + b"\nlast\n"), 1)
        assert pump.tail_lines(5) == ["last"]
        assert pump.tail_lines(5, 5) == ["last"]
    finally:
        pump.finish()


def test_a_long_line_is_cut_between_two_words():
    pump = OutputPump()
    pump._take(memoryview(b"word " * 398 + b"ghp_0123456789abcdefghijklmnop and more\n"), 1)
    (line,) = pump.tail_lines(1)
    assert line.endswith("word…")
    pump._take(memoryview(b"y" * 3000 + b"\n"), 1)
    assert len(pump.tail_lines(1)[0]) == 2000
    pump.finish()


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
