"""The parsers below the evidence: literals of kernel text in, values out."""

from __future__ import annotations

import struct

import pytest

from prefect_cachewatch.common.mounts import mount_of, parse_mountinfo
from prefect_cachewatch.common.proc_locks import lock_waits
from prefect_cachewatch.evidence.model import ThreadFacts
from prefect_cachewatch.evidence.proctree import decode_syscall
from prefect_cachewatch.evidence.stacks import parse_py_spy
from prefect_cachewatch.supervise.proc import stat_fields

THREAD = ThreadFacts(7)


def call_of(name: str = "", fds: tuple[int, ...] = (), timed: bool | None = None, path: str = "") -> ThreadFacts:
    return ThreadFacts(7, syscall=name, waits_on=fds, timed=timed, path=path)


ZEROS = "0x0 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7fdc"


@pytest.mark.parametrize(
    ("line", "machine", "call"),
    [
        (f"0 0x5 {ZEROS[4:]}", "x86_64", call_of("read", (5,), False)),
        (f"63 0x5 {ZEROS[4:]}", "aarch64", call_of("read", (5,), False)),
        ("202 0x7f 0x80 0x2 0x7ffe 0x0 0x0 0x7ffe 0x7fdc", "x86_64", call_of("futex", (), True)),
        (f"61 {ZEROS}", "x86_64", call_of("wait4", (), False)),
        (f"58 {ZEROS}", "x86_64", call_of("vfork", (), False)),
        (f"220 {ZEROS}", "aarch64", call_of("clone", (), False)),
        (f"230 {ZEROS}", "x86_64", call_of("clock_nanosleep", (), True)),
        ("-1 0x7ffe 0x7fdc", "x86_64", call_of("fault")),
        ("running", "x86_64", call_of()),
        ("", "x86_64", call_of()),
        (f"9999 {ZEROS}", "x86_64", call_of()),
        (f"0 {ZEROS}", "sparc", call_of()),
        ("72 0x3 0x1 0x0 0x0 0x0 0x0 0x7ffe 0x7fdc", "x86_64", call_of("fcntl", (3,), None)),
        ("72 0x3 0x7 0x0 0x0 0x0 0x0 0x7ffe 0x7fdc", "x86_64", call_of("fcntl", (3,), False)),
    ],
)
def test_a_line_of_proc_syscall_is_decoded(line, machine, call):
    assert decode_syscall(THREAD, line, machine=machine) == call


def test_the_descriptors_of_a_poll_are_read_from_the_threads_memory():
    raw = struct.pack("=ihh", 4, 1, 0) + struct.pack("=ihh", -1, 1, 0) + struct.pack("=ihh", 9, 1, 0)
    memory = {(0x1000, 24): raw}
    line = "7 0x1000 0x3 0xffffffffffffffff 0x0 0x0 0x0 0x7ffe 0x7fdc"
    call = decode_syscall(THREAD, line, lambda at, size: memory[(at, size)], machine="x86_64")
    assert call == call_of("poll", (4, 9), False)


def test_the_descriptors_of_a_select_are_the_bits_of_its_sets():
    sets = {0x1000: (1 << 3).to_bytes(8, "little"), 0x2000: (1 << 5).to_bytes(8, "little")}
    line = "23 0x6 0x1000 0x2000 0x0 0x0 0x0 0x7ffe 0x7fdc"
    assert decode_syscall(THREAD, line, lambda at, size: sets[at], machine="x86_64") == call_of("select", (3, 5), False)


def test_the_path_of_an_open_ends_at_its_nul():
    line = "257 0xffffff9c 0x1000 0x0 0x0 0x0 0x0 0x7ffe 0x7fdc"
    call = decode_syscall(THREAD, line, lambda at, size: b"/dev/tt/0\0rest", machine="x86_64")
    assert call == call_of("openat", (), False, "/dev/tt/0")


def test_a_process_name_with_parentheses_does_not_shift_the_fields(tmp_path):
    (tmp_path / "stat").write_bytes(b"7 (sd) R (x) S 1 7")
    assert stat_fields(str(tmp_path / "stat")) == [b"S", b"1", b"7"]
    assert stat_fields(str(tmp_path / "gone")) == []


def test_a_lock_that_is_only_held_is_no_wait():
    assert list(lock_waits("1: POSIX  ADVISORY  WRITE 10 08:02:77 0 EOF\n2: FLOCK broken\n")) == []


def test_a_mount_over_a_mount_hides_it():
    text = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /c rw - tmpfs x rw\n3 2 0:10 / /c ro - nfs4 s:/e ro,vers=4.2\n"
    mounts = parse_mountinfo(text)
    assert mount_of("/c/d", mounts).type == "nfs4"
    assert mount_of("/c/d", mounts).read_only
    assert mount_of("/cd", mounts).type == "ext4"


def test_a_read_only_super_block_below_a_writable_mount_is_read_only():
    assert parse_mountinfo("1 0 8:1 / / rw,relatime - ext4 /dev/a ro,errors=remount-ro")[0].read_only


@pytest.mark.parametrize("text", ["", "Error: no such process", "{}", "[1]", '[{"frames": 3}]'])
def test_what_py_spy_does_not_write_gives_no_stack(text):
    assert parse_py_spy(text) == ()
