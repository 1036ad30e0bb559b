"""Generators in containers, from start to end, on a real engine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from prefect_cachewatch import CacheJob, ContainerSpec, watch
from prefect_cachewatch.errors import InputError
from tests.containers.engine import SHELL_IMAGE, SPEAKING_IMAGE
from tests.support import eventually, exec_argv, run_exec, running

WRITES = "for i in 1 2 3; do dd if=/dev/zero of=$CACHE/f$i bs=1M count=2 2>/dev/null; done; "
STALLS = ("--stall-after", "1.5s", "--first-write-within", "30s")


def test_a_generator_in_a_container_is_measured_and_its_output_is_its_own(contain, cache):
    ran = contain("echo to-out; echo to-err >&2; " + WRITES, "--env", f"CACHE={cache}")
    assert ran.status == 0, ran.stderr
    assert ran.stdout == "to-out\n"
    assert "to-err\n" in ran.stderr
    assert ran.report["growth"]["bytes_written"] == 6 << 20
    assert ran.report["outcome"] == "completed"
    assert f"of image {SHELL_IMAGE}" in ran.report["notes"][0]


def test_the_exit_code_is_the_generators_own(contain):
    ran = contain("exit 3")
    assert ran.status == 3
    assert ran.report["exit_code"] == 3
    assert "ended with exit code 3" in ran.report["message"]


def test_a_program_that_the_image_lacks_is_127_and_one_that_cannot_be_executed_126(cache):
    missing = run_exec(cache, "--image", SHELL_IMAGE, command=["no-such-program"])
    assert missing.status == 127
    assert missing.last_line.startswith(f"cachewatch: command 'no-such-program' not found in image {SHELL_IMAGE}: ")
    refused = run_exec(cache, "--image", SHELL_IMAGE, command=["/bin/not-executable"])
    assert refused.status == 126
    assert f"command '/bin/not-executable' cannot be executed in image {SHELL_IMAGE}: " in refused.last_line


def test_an_image_runs_its_own_command_and_one_without_is_refused(cache):
    ran = run_exec(cache, "--image", SPEAKING_IMAGE, "--allow-empty", command=[])
    assert (ran.status, ran.stdout) == (0, "the image speaks\n")
    refused = run_exec(cache, "--image", SHELL_IMAGE, command=[])
    assert refused.status == 125
    assert refused.last_line.startswith(f"cachewatch: image {SHELL_IMAGE} has no command of its own")


def test_the_container_is_made_as_it_was_asked_for(contain, cache, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w").write_text("weights")
    ran = contain(
        "cat /weights/w; echo; touch /weights/x 2>/dev/null || echo read-only; id -u; id -G; echo $WORD; "
        "df /dev/shm | while read a b c; do echo shm $b; done; ls /dev/fuse; ls /sys/class/net",
        "--volume", f"{tmp_path}/weights:/weights:ro", "--user", "1000:1001",
        "--env", "WORD=said", "--shm-size", "8m", "--device", "/dev/null:/dev/fuse",
        "--network", "none", "--allow-empty",
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:5] == ["weights", "read-only", "1000", "1001", "said"], lines
    assert "shm 8192" in lines
    assert lines[-2:] == ["/dev/fuse", "lo"]


def test_what_only_the_job_says_of_its_container_is_done(cache, tmp_path):
    asked = ContainerSpec(
        image=SHELL_IMAGE, entrypoint=["sh", "-c"], workdir="/tmp", ulimits={"nofile": "99:100", "nproc": 100}, pull="never"
    )  # fmt: skip
    job = CacheJob(name="c", command=["pwd; ulimit -n"], cache_dirs=[cache], allow_empty=True, container=asked)
    assert watch(job, log=tmp_path / "out", bundle=False).outcome == "completed"
    assert (tmp_path / "out").read_text() == "/tmp\n99\n"
    with pytest.raises(InputError, match="is not on the engine at"):
        watch(job.model_copy(update={"container": ContainerSpec(image="localhost:1/none:1", pull="never")}))


def test_a_container_inherits_no_environment_but_what_is_named(contain, monkeypatch):
    monkeypatch.setenv("MINE", "not told")
    monkeypatch.setenv("PASSED_ON", "told")
    ran = contain("env", "--env", "PASSED_ON")
    assert "PASSED_ON=told\n" in ran.stdout
    assert "MINE=" not in ran.stdout


def test_a_stall_in_a_container_names_its_processes_by_host_pid_and_stops_all_of_them(contain, cache):
    # A daemon in a session of its own, and everybody ignores SIGTERM.
    script = "trap '' TERM; " + WRITES + "setsid sh -c 'sleep 7777 & sleep 8888' & sleep 9999; true"
    ran = contain(script, "--env", f"CACHE={cache}", "--grace", "0.5s", *STALLS)
    assert ran.status == 124, ran.stderr
    report = ran.report
    assert report["outcome"] == "stalled"
    stopped = {" ".join(who["argv"]): who for who in report["stop"]["killed"]}
    assert {"sleep 7777", "sleep 8888", "sleep 9999"} <= set(stopped)
    assert report["stop"]["survivors"] == []
    assert "sleep" in report["diagnosis"]["summary"]
    assert any(str(who["pid"]) in report["diagnosis"]["summary"] for who in stopped.values())


def test_a_generator_that_acts_on_sigterm_has_the_grace_period_for_it(contain, cache):
    script = WRITES + "trap 'touch $CACHE/cleaned; exit 0' TERM; while true; do sleep 0.1; done"
    ran = contain(script, "--env", f"CACHE={cache}", "--grace", "30s", *STALLS)
    assert ran.status == 124
    assert (cache / "cleaned").exists()
    assert ran.report["stop"]["gone_after_s"] < 20
    assert any(who["argv"][0] == "sh" for who in ran.report["stop"]["terminated"])


def test_a_flood_of_output_is_drained_and_capped(contain, tmp_path):
    log = tmp_path / "log"
    ran = contain(
        "yes 0123456789abcdef0123456789abcdef | head -n 1000000; echo the end >&2", "--log", log, "--allow-empty"
    )
    assert ran.status == 0, ran.stderr
    assert ran.stdout.count("\n") == 1_000_000
    assert log.stat().st_size == 33_000_000 + len("the end\n")


def test_lines_of_progress_of_a_container_end_pauses(contain, cache):
    tells = "echo > $CACHE/f; for i in 1 2 3 4 5 6 7 8; do echo layer $i of 8; sleep 0.5; done"
    options = ("--env", f"CACHE={cache}", "--stall-after", "1.5s", "--first-write-within", "1.5s", "--poll", "0.3s")
    ran = contain(tells, *options, "--progress-log", r"layer (?P<done>\d+) of (?P<total>\d+)", "--allow-empty")
    assert (ran.status, ran.report["logged"]["percent"]) == (0, 100.0), ran.stderr


def test_ctrl_c_stops_the_container(engine, cache):
    argv = exec_argv(
        cache, "--image", SHELL_IMAGE, "--grace", "0.2s", command=["sh", "-c", "echo up; sleep 1000; true"]
    )
    with running(argv) as process:
        assert process.stdout.readline() == "up\n"
        assert engine.containers()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert eventually(lambda: not engine.containers())


def test_usr1_reaches_the_containers_first_process_and_ctrl_z_suspends_the_watch(cache):
    script = f"trap 'echo got-usr1' USR1; echo up; while [ ! -e {cache}/end ]; do sleep 0.1; done; exit 5"
    with running(exec_argv(cache, "--image", SHELL_IMAGE, "--quiet", command=["sh", "-c", script])) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "got-usr1\n"
        process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: _state(process.pid) == "T")
        (cache / "end").touch()
        assert not eventually(lambda: _state(process.pid) != "T", 1)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 5


def _state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2]
