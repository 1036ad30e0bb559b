"""The checks of coreutils' tests/timeout, as cases of `cachewatch exec --max-duration`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.processes.peers.checks import QUIET, each, guarded, lacking, peer, refuse

from support import PATIENCE_S, Ran, eventually, exec_argv, running, unavailable

COREUTILS = "coreutils timeout"
LONGEST = "a limit beyond 28 days is refused: it is a slip, and no limit is said by leaving --max-duration out"


def timeout(tmp_path: Path, duration: str, *command: str, options: tuple[str, ...] = ()) -> Ran:
    return guarded(tmp_path, *command, options=("--max-duration", duration, *options))


def shell_line(tmp_path: Path, *options: str, command: list[str]) -> str:
    return shlex.join(exec_argv(tmp_path / "cache", *QUIET, *options, command=command))


@each(
    COREUTILS,
    {
        "timeout.sh: a command that ends in time": ("10", ("true",), 0),
        "timeout.sh: a limit with a suffix": ("1d", ("true",), 0),
        "timeout.sh: the command's exit status": ("10", ("sh", "-c", "exit 2"), 2),
        "timeout.sh: 124 after the limit": (".3", ("sleep", "10"), 124),
        "timeout-parameters.sh: a limit that is no duration is 125": ("invalid", ("sleep", "0"), 125),
        "timeout-parameters.sh: a negative limit is 125": (" -0.1", ("sleep", "0"), 125),
        "timeout-parameters.sh: a negative limit that rounds to 0 is 125": (" -1e-10000", ("sleep", "0"), 125),
        "timeout-parameters.sh: an unknown suffix is 125": ("42w", ("sleep", "0"), 125),
        "timeout-parameters.sh: a fraction": ("10.34", ("sleep", "0"), 0),
        "timeout-parameters.sh: nanoseconds": ("9.999999999", ("sleep", "0"), 0),
        "timeout-parameters.sh: a directory as command is 126": ("10", (".",), 126),
        "timeout-parameters.sh: no such command is 127": ("10", ("no_such",), 127),
        "timeout-large-parameters.sh: the most negative limit is 125": ("-1.18973e+4932", ("sleep", "0"), 125),
    },
    "case",
)
def test_a_limit_a_command_and_its_status(tmp_path, case):
    duration, command, status = case
    assert timeout(tmp_path, duration, *command).status == status


@each(COREUTILS, {"timeout-parameters.sh: a delay of the kill that is no duration is 125": "invalid"}, "grace")
def test_a_grace_period_that_is_no_duration_is_125(tmp_path, grace):
    assert timeout(tmp_path, "1", "sleep", "0", options=("--grace", grace)).status == 125


@pytest.mark.parametrize(
    "duration",
    [
        pytest.param("0", marks=peer(COREUTILS, "timeout.sh: a limit of 0 is none", "no limit is said by leaving --max-duration out; 0 is refused")),
        pytest.param("1e-10000", marks=peer(COREUTILS, "timeout-parameters.sh: a limit that rounds to 0 is the shortest", "limits below 0.2 s are refused: nothing is measured in that time")),
        pytest.param("2.34e+5d", marks=peer(COREUTILS, "timeout-large-parameters.sh: an exponent", LONGEST)),
        pytest.param("4294967296", marks=peer(COREUTILS, "timeout-large-parameters.sh: beyond an unsigned int", LONGEST)),
        pytest.param("9223372036854775808", marks=peer(COREUTILS, "timeout-large-parameters.sh: beyond a time_t", LONGEST)),
        pytest.param("9223372036854775808d", marks=peer(COREUTILS, "timeout-large-parameters.sh: days beyond a time_t", LONGEST)),
        pytest.param("1.18973e+4932", marks=peer(COREUTILS, "timeout-large-parameters.sh: the largest floating point number", LONGEST)),
    ],
)  # fmt: skip
def test_a_limit_out_of_range_is_refused_and_nothing_runs(tmp_path, duration):
    ran = timeout(tmp_path, duration, "touch", str(tmp_path / "ran"))
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "option",
    [
        pytest.param("--verbose", marks=peer(COREUTILS, "timeout.sh: --verbose")),
        pytest.param("-v", marks=peer(COREUTILS, "timeout.sh: -v")),
    ],
)
def test_the_signals_that_are_sent_are_said(tmp_path, option):
    script = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    ran = timeout(tmp_path, "2", "sh", "-c", script, options=(option,))
    assert ran.status == 124
    assert "cachewatch: the tree gets SIGTERM (stop), SIGKILL after 0.5 s\n" in ran.stderr


KILLED = "the status after a limit is 124 whatever ended the tree; the report says what needed SIGKILL"


@lacking(
    COREUTILS,
    {
        "timeout.sh: --preserve-status": (KILLED, "--preserve-status"),
        "timeout.sh: 137 after -k": (KILLED, "-s0", "-k1"),
        "timeout-parameters.sh: an invalid signal": ("the signal is SIGTERM, and SIGKILL after the grace period", "--signal=invalid"),
    },
)  # fmt: skip
def test_there_is_no_such_option(tmp_path, option):
    refuse(option, tmp_path)


@peer(COREUTILS, "timeout.sh: a caller that ignores SIGCHLD")
def test_a_caller_that_ignores_sigchld_changes_nothing(tmp_path):
    line = shell_line(tmp_path, "--max-duration", "30", command=["true"])
    assert subprocess.run(["sh", "-c", f"trap '' CHLD; exec {line}"], check=False, timeout=PATIENCE_S).returncode == 0


@peer(COREUTILS, "timeout.sh: a child that was there before")
def test_a_child_that_was_there_before_is_not_taken_for_the_command(tmp_path):
    line = shell_line(tmp_path, "--max-duration", "1", command=["sh", "-c", "sleep 3; echo foo"])
    script = f"setsid sleep .1 & exec {line}"
    done = subprocess.run(["sh", "-c", script], check=False, timeout=PATIENCE_S, stdout=subprocess.PIPE)
    assert (done.stdout, done.returncode) == (b"", 124)


@peer(COREUTILS, "timeout.sh: nobody reads what is said")
def test_nobody_who_reads_what_is_said_leaves_the_status_alone(tmp_path):
    argv = exec_argv(
        tmp_path / "cache", "--no-bundle", "--grace", "0.5s", "--max-duration", "1", command=["sleep", "10"]
    )
    script = f"{{ {shlex.join(argv)} 2>&1; echo $? > {tmp_path / 'status'}; }} | :"
    subprocess.run(["bash", "-c", script], check=False, timeout=PATIENCE_S)
    assert (tmp_path / "status").read_text() == "124\n"


@peer(
    COREUTILS,
    "timeout.sh: an ignored SIGPIPE makes `yes` say: Broken pipe",
    "the command writes to a pipe of ours, which is read to its end whoever leaves; what it inherits is ignored all the same",
)
def test_a_reader_that_leaves_breaks_no_pipe_of_the_command(tmp_path):
    line = shell_line(
        tmp_path, "--max-duration", "1", command=["sh", "-c", "grep SigIgn /proc/self/status >&2; exec yes"]
    )
    done = subprocess.run(
        ["bash", "-c", f"trap '' PIPE; {line} | :"], check=False, timeout=PATIENCE_S, stderr=subprocess.PIPE, text=True
    )
    assert "Broken pipe" not in done.stderr
    assert int(done.stderr.split()[1], 16) >> (signal.SIGPIPE - 1) & 1


@peer(COREUTILS, "timeout-blocked.pl: a caller that blocks SIGALRM")
def test_a_caller_that_blocks_sigalrm_changes_nothing(tmp_path):
    argv = exec_argv(tmp_path / "cache", *QUIET, "--max-duration", ".5", command=["sleep", "10"])
    assert subprocess.run(["env", "--block-signal=ALRM", *argv], check=False, timeout=PATIENCE_S).returncode == 124


@peer(COREUTILS, "init-parent.sh: the parent is the init process")
def test_the_init_process_of_a_pid_namespace_as_parent(tmp_path):
    new = ["unshare", "--pid", "--fork", "--mount-proc", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*new, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        unavailable("needs pid namespaces")
    argv = exec_argv(tmp_path / "cache", *QUIET, "--max-duration", ".5", command=["sleep", "10"])
    assert subprocess.run([*new, *argv], check=False, timeout=PATIENCE_S).returncode == 124


WAITS = "trap 'touch received; exit' {0}; touch running; while :; do sleep .1; done"


@peer(COREUTILS, "timeout-group.sh: the command is told when timeout is killed")
def test_the_command_is_told_when_we_are_killed(tmp_path):
    # Silent: its output goes through us, and a word to nobody would end it by SIGPIPE.
    argv = exec_argv(tmp_path / "cache", *QUIET, command=["sh", "-c", f"exec 2>/dev/null; {WAITS.format('TERM')}"])
    with running(argv, cwd=tmp_path) as process:
        assert eventually((tmp_path / "running").exists)
        process.kill()
        process.wait(PATIENCE_S)
        assert eventually((tmp_path / "received").exists)


@peer(COREUTILS, "timeout-group.sh: one in another")
def test_one_in_another_stops_the_command_in_both(tmp_path):
    inner = exec_argv(tmp_path / "inner", *QUIET, "--max-duration", "60", command=["sh", "-c", WAITS.format("TERM")])
    argv = exec_argv(tmp_path / "outer", *QUIET, "--grace", "20s", "--max-duration", "4", command=inner)
    with running(argv, cwd=tmp_path) as process:
        assert eventually((tmp_path / "running").exists)
        assert process.wait(PATIENCE_S) == 124
    assert (tmp_path / "received").exists()
