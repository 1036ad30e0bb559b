"""The rules as pure functions: literals in, one category out; and properties over arbitrary evidence."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.evidence.causes import CAUSES
from prefect_cachewatch.evidence.filesystem import probe_directory, probe_file
from prefect_cachewatch.evidence.model import (
    CgroupFacts,
    Evidence,
    FilesystemFacts,
    GrowthFacts,
    IoCounters,
    LockWait,
    PressureFacts,
    ProcessFacts,
    PythonThread,
    SocketFacts,
    ThreadFacts,
)
from prefect_cachewatch.evidence.rules import RULES, find_cause
from prefect_cachewatch.supervise.lockfiles import LockFile
from prefect_cachewatch.supervise.open_files import OpenFile

GROWN = GrowthFacts(window_s=300, bytes_written=10**9, first_write_s=2.0)
WELL = FilesystemFacts(
    "/c", "ext4", "/dev/vda", "/", ("rw",), free_bytes=10**10, total_bytes=10**11, free_inodes=10**6, total_inodes=10**7
)


def process(pid=7, state="S", call="clock_nanosleep", *, cpu_s=0.0, waits_on=(), channel="", **more):
    """A process with one thread that waits in `call`."""
    thread = ThreadFacts(pid, "t", state, channel, call, waits_on, False)
    defaults = {"threads": (thread,), "cpu_in_window_s": cpu_s, "io_in_window": IoCounters()}
    return ProcessFacts(pid, more.pop("parent_pid", 1), more.pop("name", "gen"), state=state, **(defaults | more))


def evidence(*processes, **more):
    defaults = {"window_s": 100.0, "growth": GROWN, "filesystems": (WELL,), "process_count": len(processes)}
    return Evidence(processes=processes, **(defaults | more))


PIPE = OpenFile(1, "pipe:[5]", "pipe", "w", inode=5)
SOCKET = OpenFile(4, "socket:[9]", "socket", "rw", inode=9)
DEVICE = OpenFile(6, "/dev/tenstorrent/0", "device", "rw")
CASES = {
    "oom_killed": evidence(exit_signal=9, oom_kills_in_window=1),
    "filesystem_unresponsive": evidence(process(), filesystems=(replace(WELL, responded=False),)),
    "cache_directory_missing": evidence(
        process(), filesystems=(replace(WELL, error="No such file or directory", free_bytes=None),)
    ),
    "stopped_by_signal": evidence(process(state="T", call="read")),
    "read_only_filesystem": evidence(process(), filesystems=(replace(WELL, options=("ro",)),)),
    "inodes_exhausted": evidence(process(), filesystems=(replace(WELL, free_inodes=0),)),
    "quota_exceeded": evidence(process(), log_tail="OSError: [Errno 122] Disk quota exceeded"),
    "disk_full": evidence(process(), filesystems=(replace(WELL, free_bytes=0),)),
    "permission_denied": evidence(
        process(uid=1000, may_override_permissions=False),
        filesystems=(replace(WELL, owner_uid=0, mode=0o755),),
        log_tail="PermissionError: [Errno 13] Permission denied: '/c/x'\n",
    ),
    "stale_lock": evidence(process(), lock_files=(LockFile("/c/.locks/a.lock", 1, 2, 9000.0, in_log=True),)),
    "waiting_for_lock": evidence(
        process(call="flock"), locks=(LockWait(7, 99, "FLOCK", "/c/.lock", "pid 99 (other)"),)
    ),
    "memory_pressure": evidence(
        process(major_faults_in_window=10_000),
        pressure=(PressureFacts("memory", 60.0, 40.0),),
        cgroups=(CgroupFacts("/g", 100, 99, 0),),
    ),
    "waiting_for_device": evidence(process(call="ioctl", waits_on=(6,), files=(DEVICE,))),
    "waiting_for_input": evidence(process(call="read", waits_on=(0,), files=(OpenFile(0, "/dev/pts/3", "tty", "rw"),))),
    "blocked_on_output_pipe": evidence(process(call="write", waits_on=(1,), files=(PIPE,))),
    "churning": evidence(process(), growth=replace(GROWN, kind="churning")),
    "in_place_writes": evidence(
        process(io_in_window=IoCounters(write_bytes=10**9)), growth=replace(GROWN, touched=("/c/a.npy",))
    ),
    "writing_elsewhere": evidence(
        process(
            io_in_window=IoCounters(write_chars=10**9),
            files=(OpenFile(5, "/tmp/x.bin", "file", "w", size_bytes=10**9, changed_age_s=1.0),),
        )
    ),
    "reading_checkpoint": evidence(
        process(
            io_in_window=IoCounters(read_chars=10**10),
            files=(OpenFile(5, "/m/model.safetensors", "file", "r", 10, size_bytes=100),),
        ),
        growth=replace(GROWN, first_write_s=None, bytes_written=0),
    ),
    "compute_bound": evidence(
        process(state="R", call="", cpu_s=99.0, python_threads=(PythonThread(7, "MainThread", ("tile (ttnn.py:9)",)),))
    ),
    "blocked_on_io": evidence(process(state="D", call="fsync", waits_on=(5,))),
    "waiting_for_network": evidence(
        process(
            call="recvfrom",
            waits_on=(4,),
            files=(SOCKET,),
            sockets=(SocketFacts(4, "tcp", "10.0.0.1:5", "10.0.0.2:443", "ESTABLISHED"),),
        )
    ),
    "deadlocked": evidence(process(call="futex")),
    "waiting_for_child": evidence(process(call="wait4"), process(8, name="g++", parent_pid=7)),
    "still_writing": evidence(
        process(), growth=replace(GROWN, kind="deadline_exceeded", pause_s=1.0, last_growth_s=200.0)
    ),
    "generator_failed": evidence(exit_code=1, log_tail="layer 6\nlayer 7\n"),
    "never_started": evidence(process(), growth=GrowthFacts(kind="never_started", window_s=1200)),
    "never_ready": evidence(
        process(), growth=replace(GROWN, kind="never_ready", unready="http://x/health never answered")
    ),
    "unknown": evidence(process()),
}


@pytest.mark.parametrize("call", ["vfork", "clone", "clone3"])
def test_who_waits_in_state_d_for_the_program_of_its_child_is_not_taken_for_one_whose_storage_hangs(call):
    child = process(8, name="vf", parent_pid=7, call="pause")
    assert find_cause(evidence(process(state="D", call=call), child)).category == "waiting_for_child"


@pytest.mark.parametrize("category", CASES)
def test_a_plain_case_of_each_category_is_named(category):
    found = find_cause(CASES[category])
    assert found.category == category
    assert found.summary and found.resolution and found.evidence
    assert "\n" not in found.summary


def test_there_is_a_plain_case_of_each_category_that_a_rule_names_in_order_of_precedence():
    named = [rule.__name__ for rule in RULES]
    assert list(CAUSES)[: len(named) + 1] == [*named, "unknown"]
    assert set(CASES) == {*named, "unknown"}


@pytest.mark.parametrize(
    ("ended", "summary", "confidence"),
    [
        ({"exit_signal": 9}, "the kernel killed the generator because memory ran out", "high"),
        ({"exit_code": 1}, "the kernel killed a process of the generator because memory ran out", "medium"),
    ],
)
def test_what_an_engine_says_of_memory_is_believed_without_a_count_of_this_machine(ended, summary, confidence):
    found = find_cause(evidence(out_of_memory="its limit of 64.0 MiB", oom_kills_in_window=0, **ended))
    assert (found.category, found.summary, found.confidence) == ("oom_killed", summary, confidence)
    assert found.evidence[0] == "the container went beyond its limit of 64.0 MiB"


NEAR_MISSES = {
    "no inode count (btrfs) is not exhausted": (
        "inodes_exhausted",
        evidence(process(), filesystems=(replace(WELL, free_inodes=None, total_inodes=None),)),
    ),
    "an OOM kill in somebody else's control group": (
        "oom_killed",
        evidence(process(), oom_kills_in_window=3, cgroups=(CgroupFacts("/g", None, None, 0),)),
    ),
    "a futex with CPU used": ("deadlocked", evidence(process(call="futex", cpu_s=5.0))),
    "a futex with CPU used in a short window": ("deadlocked", evidence(process(call="futex", cpu_s=0.1), window_s=0.4)),
    "a futex beside a thread that sleeps in the network": (
        "deadlocked",
        evidence(
            process(
                threads=(ThreadFacts(7, syscall="futex"), ThreadFacts(8, syscall="recvfrom", waits_on=(4,))),
                files=(SOCKET,),
            )
        ),
    ),
    "state D while the disk is busy": (
        "blocked_on_io",
        evidence(
            process(
                state="D", call="read", io_in_window=IoCounters(read_bytes=10**10), cpu_s=1.0,
                files=(OpenFile(5, "/m/model", "file", "r", size_bytes=10**11),),
            ),
            growth=replace(GROWN, first_write_s=None),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_a_near_miss_is_not_named(case):
    category, facts = NEAR_MISSES[case]
    assert find_cause(facts).category != category


def test_a_tick_of_the_clock_in_a_short_window_is_not_work():
    assert find_cause(evidence(process(call="futex", cpu_s=0.02), window_s=0.4)).category == "deadlocked"


def test_a_surer_cause_goes_before_an_earlier_rule():
    facts = evidence(process(call="flock"), log_tail="OSError: [Errno 28] No space left on device: '/tmp/y'\n")
    found = find_cause(facts)
    assert found.category == "waiting_for_lock"
    assert any(line.startswith("also seen: disk_full") for line in found.evidence)


SLOW = replace(WELL, responded=False, error="no answer in time")
TRACE = 'Traceback (most recent call last):\n  File "gen.py", line 7, in <module>\n'
# exit code or minus a signal, the last lines, category, a part of the summary
OWN_ENDS = {
    "no CUDA device": (1, TRACE + "RuntimeError: No CUDA GPUs are available\n", "device_fault", "the device failed"),
    "a Tenstorrent device": (134, "TT_FATAL: Device 3 init: failed to initialize FW! Try resetting the board.\n", "device_fault", "board. [device 3]"),
    "permission in the cache": (1, TRACE + "PermissionError: [Errno 13] Permission denied: '/c/x'\n", "permission_denied", "refused access to a file of its cache"),
    "a storage error": (1, TRACE + "OSError: [Errno 5] Input/output error: '/c/x'\n", "io_error", "a read or write failed"),
    "an interpreter that crashed": (-11, "Fatal Python error: Segmentation fault\n", "segmentation_fault", "crashed in native code: Fatal"),
    "killed after an exception that it said": (-9, TRACE + "KeyError: 'w2'\nlayer 7\n", "killed", "its last line was: layer 7"),
    "a bar said": (3, "\r10%\r20%", "generator_failed", "20% (its last line)"),
}  # fmt: skip


@pytest.mark.parametrize("filesystem", [WELL, SLOW], ids=["well", "one-slow-statvfs"])
@pytest.mark.parametrize("case", OWN_ENDS)
def test_who_ended_by_itself_is_explained_by_its_own_last_lines(case, filesystem):
    code, log, category, summary = OWN_ENDS[case]
    ended = {"exit_signal": -code} if code < 0 else {"exit_code": code}
    found = find_cause(evidence(filesystems=(filesystem,), log_tail="layer 1\nlayer 2\n" + log if log else "", **ended))
    assert (found.category, summary in found.summary) == (category, True), found
    assert found.confidence == ("medium" if "said" in case or "killed" in case else "high")


@pytest.mark.parametrize(
    "odd",
    [SLOW, replace(WELL, free_bytes=0), replace(WELL, free_inodes=0), replace(WELL, options=("ro",)),
     replace(WELL, error="No such file or directory")],
)  # fmt: skip
def test_what_is_odd_on_the_machine_does_not_speak_for_a_generator_that_said_why_it_ended(odd):
    log = "python3: can't open file '/x/gen.py': [Errno 2] No such file or directory\n"
    found = find_cause(evidence(filesystems=(odd,), exit_code=2, log_tail=log))
    assert (found.category, found.confidence) == ("missing_file", "high")
    assert found.evidence[-1].startswith("also seen: ")


def test_a_warning_of_long_ago_does_not_speak_for_the_end():
    log = "warning: Permission denied: '/c/.tune'\n" + "layer\n" * 10 + TRACE + "ImportError: no backend\n"
    found = find_cause(evidence(exit_code=1, log_tail=log))
    assert (found.category, found.confidence) == ("missing_module", "high")


@pytest.mark.parametrize(
    ("odd", "category"),
    [(replace(WELL, free_bytes=0), "disk_full"), (replace(WELL, options=("ro",)), "read_only_filesystem"), (SLOW, "generator_failed")],
)  # fmt: skip
def test_for_an_end_without_a_word_a_full_disk_is_the_best_guess_and_a_slow_answer_is_none(odd, category):
    found = find_cause(evidence(filesystems=(odd,), exit_code=1, log_tail="layer 7\n"))
    assert (found.category, found.confidence) == (category, "medium")


def test_one_slow_statvfs_is_never_sure():
    found = find_cause(evidence(process(), filesystems=(SLOW,)))
    assert (found.category, found.confidence) == ("filesystem_unresponsive", "medium")


@pytest.mark.parametrize(
    "facts",
    [evidence(process(state="D", call="fsync"), filesystems=(SLOW,)),
     evidence(process(), filesystems=(SLOW,), growth=replace(GROWN, kind="filesystem_unresponsive"))],
)  # fmt: skip
def test_a_statvfs_that_hangs_beside_something_else_that_does_is_sure(facts):
    found = find_cause(facts)
    assert (found.category, found.confidence) == ("filesystem_unresponsive", "high")


def test_the_reader_of_a_full_pipe_is_named():
    reader = process(
        8, call="clock_nanosleep", name="sort", parent_pid=7, files=(OpenFile(0, "pipe:[5]", "pipe", "r", inode=5),)
    )
    found = find_cause(evidence(process(call="write", waits_on=(1,), files=(PIPE,)), reader))
    assert found.category == "blocked_on_output_pipe"
    assert "pid 8 (sort)" in found.summary


def test_a_hostile_process_name_cannot_break_the_line():
    found = find_cause(evidence(process(state="T", name="a\nb\x1b[2J")))
    assert found.summary == "pid 7 (a\\nb\\x1b[2J) was stopped by a signal (state T) and never continued"


names = st.text(max_size=8)
numbers = st.integers(0, 10**12)
threads = st.builds(
    ThreadFacts,
    tid=st.integers(1, 99),
    state=st.sampled_from("RSDTZXtI?"),
    syscall=st.sampled_from(
        ["", "futex", "wait4", "read", "write", "poll", "openat", "ioctl", "flock", "fault", "fsync"]
    ),
    wait_channel=st.sampled_from(["", "futex_do_wait", "do_wait", "pipe_read", "request_wait_answer", "fifo_open"]),
    waits_on=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    timed=st.sampled_from([None, True, False]),
    path=st.sampled_from(["", "/dev/x", "/c/f"]),
)
files = st.builds(
    OpenFile,
    fd=st.integers(0, 9),
    target=names,
    kind=st.sampled_from(["file", "directory", "pipe", "socket", "tty", "device", "anon"]),
    access=st.sampled_from(["r", "w", "rw", ""]),
    position_bytes=st.none() | numbers,
    in_cache=st.booleans(),
    inode=st.none() | st.integers(0, 9),
    size_bytes=st.none() | numbers,
    changed_age_s=st.none() | st.floats(0, 1e6),
)
counters = st.builds(IoCounters, numbers, numbers, numbers, numbers)
processes = st.builds(
    ProcessFacts,
    pid=st.integers(1, 20),
    parent_pid=st.integers(0, 20),
    name=names,
    state=st.sampled_from("RSDTZX?"),
    cpu_in_window_s=st.none() | st.floats(0, 1e5),
    swap_bytes=st.none() | numbers,
    uid=st.none() | st.integers(0, 3),
    may_override_permissions=st.sampled_from([None, True, False]),
    major_faults_in_window=st.none() | numbers,
    threads=st.lists(threads, max_size=4).map(tuple),
    io_in_window=st.none() | counters,
    files=st.lists(files, max_size=5).map(tuple),
)
filesystems = st.builds(
    FilesystemFacts,
    path=names,
    options=st.lists(st.sampled_from(["ro", "rw"]), max_size=2).map(tuple),
    responded=st.booleans(),
    error=st.sampled_from(["", "No such file or directory", "Permission denied"]),
    free_bytes=st.none() | numbers,
    total_bytes=st.none() | numbers,
    free_inodes=st.none() | numbers,
    total_inodes=st.none() | numbers,
    mode=st.none() | st.integers(0, 0o777),
    owner_uid=st.none() | st.integers(0, 3),
)
everything = st.builds(
    Evidence,
    window_s=st.floats(0, 1e4),
    processes=st.lists(processes, max_size=4).map(tuple),
    filesystems=st.lists(filesystems, max_size=2).map(tuple),
    oom_kills_in_window=st.none() | st.integers(0, 3),
    exit_signal=st.none() | st.integers(1, 15),
    log_tail=st.text(max_size=60),
)


@given(everything)
@settings(max_examples=100, deadline=None)
def test_any_evidence_gets_one_known_category_always_the_same(facts):
    found = find_cause(facts)
    assert found.category in CAUSES
    assert found == find_cause(facts)
    assert found.confidence in ("high", "medium", "low")
    assert len(found.evidence) <= 20
    assert found.summary == for_terminal(found.summary, 10_000)


@pytest.mark.parametrize("date", [0, 13_000_000_000])
def test_when_a_file_was_written_goes_by_no_date_that_it_was_given(tmp_path, date):
    file = tmp_path / "layer0.bin"
    file.write_bytes(b"x")
    os.utime(file, (date, date))
    os.utime(tmp_path, (date, date))
    assert probe_file(str(file))["changed_age_s"] < 600
    assert probe_directory(str(tmp_path))["changed_age_s"] < 600
