"""`cachewatch exec --ready`: real servers that write, warm up in silence, get ready and stay."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.ready_bench import Bench, made_bench

from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.supervise.proc import read_stat
from support import (
    Ran,
    assert_none_left,
    eventually,
    exec_argv,
    mostly_apart,
    program,
    run_exec,
    running,
    signal_each,
    tagged,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with made_bench(tmp_path) as made:
        yield made


def phases(ran: Ran) -> list[str]:
    assert ran.report is not None
    return [change["phase"] for change in ran.report["ready"]["phases"]]


def test_a_server_that_writes_warms_up_in_silence_and_gets_ready_is_handed_over(bench: Bench):
    trace = bench.root / "trace.csv"
    ran = bench.exec("--record", trace, warm_s=2.0)
    assert (read_trace(trace).ending, read_trace(trace).torn) == ("ready", False)
    assert read_trace(trace).rows[-1].total_bytes == ran.report["growth"]["bytes_present"]
    assert (ran.status, ran.report["outcome"], ran.report["stop"]) == (0, "completed", None)
    ready = ran.report["ready"]
    assert (ready["kind"], ready["what"], ready["then"]) == ("http", bench.url, "leave_running")
    assert (ready["left_running"], ready["container"]) == (True, None)
    assert phases(ran) == ["writing", "warm_up"]
    assert f"left running as pid {ready['pid']}; stop it with `cachewatch stop --pid {ready['pid']}`" in ran.last_line
    assert tagged(bench.tag) == [ready["pid"]]
    assert bench.healthy()
    assert bench.run_files() == []
    (record,) = bench.records()
    assert (record["pid"], record["cache_dirs"], record["stop_grace_s"]) == (ready["pid"], [str(bench.cache)], 1.0)
    assert Path(ready["record"]).stat().st_mode & 0o777 == 0o600

    stopped = bench.cachewatch("stop", "--pid", str(ready["pid"]))
    assert (stopped.status, stopped.stdout.endswith("1 ended after SIGTERM\n")) == (0, True), stopped
    assert_none_left(bench.tag)
    assert bench.records() == []


def test_what_a_server_prints_goes_to_its_own_log_and_never_blocks_it(bench: Bench):
    ran = bench.exec(print_bytes=300_000)
    for _ in range(4):
        assert bench.healthy()  # a pipe that nobody reads would hold it up at the first of these
    log = Path(ran.report["ready"]["log"])
    assert eventually(lambda: log.stat().st_size >= 4 * 300_000)
    assert log.read_text().startswith("loading the model\n") and ran.stdout.startswith("loading the model\n")
    assert log.stat().st_mode & 0o777 == 0o600
    assert tagged(bench.tag) == [ran.report["ready"]["pid"]]


def test_a_server_that_is_stopped_when_ready_completes(bench: Bench):
    trace = bench.root / "trace.csv"
    ran = bench.exec("--then", "stop", "--record", trace, workers=2)
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    assert (ran.report["ready"]["left_running"], ran.report["ready"]["how_to_stop"]) == (False, None)
    assert "when its server was ready" in ran.last_line
    assert read_trace(trace).ending == "ready"
    assert not (bench.state / "servers").exists()
    assert_none_left(bench.tag, 0)
    assert bench.records() == []


def test_a_503_while_it_warms_up_is_not_yet(bench: Bench):
    ran = bench.exec("--then", "stop", status_warming=503, warm_s=1.5)
    assert ran.status == 0
    assert ran.report["ready"]["last_answer"] == "answered 503"
    assert ran.report["ready"]["at_s"] > 1.5


@pytest.mark.parametrize("kind", ["tcp", "log", "file"])
def test_it_may_be_ready_by_a_port_a_line_or_a_marker(bench: Bench, kind: str):
    ready = {"tcp": f"tcp=127.0.0.1:{bench.port}", "log": "log=startup compl.te", "file": "file=COMPLETED"}[kind]
    ran = bench.exec(ready=ready, marker="COMPLETED" if kind == "file" else None)
    assert (ran.status, ran.report["ready"]["kind"]) == (0, kind)
    assert bench.cachewatch("stop", "cache").status == 0
    assert_none_left(bench.tag)


@pytest.mark.campaign
def test_a_marker_of_an_earlier_run_says_nothing_of_this_one(bench: Bench):
    bench.cache.mkdir()
    (bench.cache / "COMPLETED").write_text("of yesterday")
    ran = bench.exec("--warmup-within", "1.2s", ready="file=COMPLETED", never_ready=True)
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "never_ready")
    assert "marker COMPLETED was never written (it was there before the start" in ran.report["message"]


@pytest.mark.parametrize(("code", "status"), [(3, 3), (0, 1)])
def test_a_server_that_ends_before_it_is_ready_fails_at_once_with_its_code_and_its_last_words(bench, code, status):
    ran = bench.exec("--warmup-within", "10m", exit_in_warmup=code)
    assert (ran.status, ran.report["outcome"], ran.report["exit_code"]) == (status, "failed", code)
    assert f"the generator ended with exit code {code} before it was ready" in ran.report["message"]
    assert ran.report["log_tail"][-1] == "RuntimeError: device 3 does not answer"
    assert list((bench.state / "servers").iterdir()) == []  # its output has been read
    probably = "" if code else ", probably"
    assert ran.report["message"].startswith(
        f"cache failed{probably}: an exception ended it: RuntimeError: device 3 does not answer. Exit code {code}. "
    )
    assert ran.report["ready"]["at_s"] is None


@pytest.mark.campaign
def test_a_server_that_is_never_ready_is_stopped_when_its_warm_up_has_lasted_too_long(bench: Bench):
    ran = bench.exec("--warmup-within", "2s", never_ready=True, workers=1)
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "never_ready")
    assert f"and {bench.url} never answered 200 (last answer: connection refused)" in ran.report["message"]
    assert phases(ran) == ["writing", "warm_up"]
    assert ran.report["stall"]["window_s"] == 2.0
    assert_none_left(bench.tag, 0)


COSTLY = "log=.*a.*a.*a.*a.*b"
PRINTS_AND_HANGS = """
    import os, sys, time
    open(os.path.join(sys.argv[2], "layer0.bin"), "wb").write(bytes(50_000))
    print("a" * 4096, flush=True)
    open(os.path.join(sys.argv[2], "layer1.bin"), "wb").write(bytes(50_000))
    time.sleep(600)
"""


@pytest.mark.campaign
def test_a_stall_is_seen_while_a_pattern_takes_hours_and_the_pattern_is_said(bench: Bench):
    options = ("--ready", COSTLY, "--stall-after", "3s", "--first-write-within", "20s", "--poll", "0.5s", "--no-bundle")
    command = [*program(PRINTS_AND_HANGS, bench.tag), str(bench.cache)]
    ran = run_exec(bench.cache, *options, "--warmup-within", "3s", command=command)
    assert (ran.status, ran.report["outcome"]) == (124, "stalled")
    assert any("'.*a.*a.*a.*a.*b' takes too long to search for" in note for note in ran.report["notes"]), ran.report
    assert_none_left(bench.tag)


def test_a_signal_is_obeyed_while_a_pattern_takes_hours(bench: Bench):
    options = ("--ready", COSTLY, "--stall-after", "5m", "--first-write-within", "5m", "--no-bundle", "--grace", "1s")
    command = [*program(PRINTS_AND_HANGS, bench.tag), str(bench.cache)]
    with running(exec_argv(bench.cache, *options, command=command)) as watching:
        assert eventually((bench.cache / "layer0.bin").exists)
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(20) == 143
    assert_none_left(bench.tag)


@pytest.mark.campaign
def test_an_address_that_takes_the_question_and_never_answers_delays_no_verdict(bench: Bench):
    began_s = time.monotonic()
    ran = bench.exec("--warmup-within", "1.5s", hang_health=True)
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "never_ready")
    assert ran.report["duration_s"] < 30, "its question alone might take a minute"
    assert time.monotonic() - began_s < 60
    assert_none_left(bench.tag, 0)


@pytest.mark.campaign
def test_a_server_that_hangs_far_below_its_expected_size_is_a_stall(bench: Bench):
    ran = bench.exec("--expect", "100MB", hang_in_writing=True)
    assert (ran.status, ran.report["stall"]["kind"], phases(ran)) == (124, "no_growth", ["writing"])


@pytest.mark.campaign
def test_a_server_on_a_full_cache_writes_nothing_and_gets_ready(bench: Bench):
    bench.cache.mkdir()
    (bench.cache / "layer.bin").write_bytes(bytes(100_000))
    ran = bench.exec("--first-write-within", "1s", "--then", "stop", write_s=0, warm_s=2.5)
    assert (ran.status, ran.report["growth"]["bytes_written"], phases(ran)) == (0, 0, ["warm_up"])


def test_a_server_whose_first_process_leaves_is_handed_over_by_its_child(bench: Bench):
    ran = bench.exec(daemonize=True)
    assert ran.status == 0
    assert tagged(bench.tag) == [ran.report["ready"]["pid"]]
    assert bench.cachewatch("stop", "--all").status == 0
    assert_none_left(bench.tag)


def test_where_the_leader_counts_its_leaving_is_the_end_before_it_was_ready(bench: Bench):
    ran = bench.exec("--wait-for", "leader", daemonize=True)
    assert (ran.status, ran.report["exit_code"]) == (1, 0)
    assert "before it was ready" in ran.report["message"]
    assert " Exit code 0; it reported no error. " in ran.report["message"]
    assert ran.report["diagnosis"]["category"] == "generator_failed"
    assert_none_left(bench.tag)


def test_a_line_and_exit_code_0_in_one_moment_is_ready_where_it_would_be_stopped_anyway(bench: Bench):
    ran = bench.exec("--then", "stop", ready="log=startup complete", exit_when_ready=0)
    assert (ran.status, ran.report["outcome"]) == (0, "completed")


def test_a_server_that_answers_before_the_start_is_refused_and_nothing_is_started(bench: Bench):
    first = bench.exec()
    assert first.status == 0
    second = run_exec(bench.root / "other", *bench.options(), command=["touch", str(bench.root / "ran")], env=bench.env)
    assert (second.status, (bench.root / "ran").exists()) == (125, False)
    assert (
        f"{bench.url} is ready before the generator was started, so another server is running there" in second.last_line
    )


def test_a_cache_with_a_running_server_is_refused_with_the_command_that_stops_it(bench: Bench):
    pid = bench.exec().report["ready"]["pid"]
    second = run_exec(bench.cache, command=["true"], env=bench.env)
    assert second.status == 125
    assert f"is in use by server cache (pid {pid}), which was left running: stop it first" in second.last_line
    bench.cachewatch("stop", "cache")
    assert eventually(lambda: run_exec(bench.cache, command=["true"], env=bench.env).status == 0, 10)


def test_a_janitor_and_the_next_run_leave_a_handed_over_server_alone(bench: Bench):
    pid = bench.exec().report["ready"]["pid"]
    assert bench.cachewatch("doctor", "--no-prefect").status == 0
    assert run_exec(bench.root / "other", "--allow-empty", command=["true"], env=bench.env).status == 0
    assert tagged(bench.tag) == [pid]
    assert bench.healthy()


def test_a_flow_process_that_is_killed_while_the_server_warms_up_takes_it_along(bench: Bench):
    with running(exec_argv(bench.cache, *bench.options(), command=bench.command(warm_s=60)), env=bench.env) as process:
        assert eventually(lambda: tagged(bench.tag))
        process.kill()
        process.wait(30)
    assert_none_left(bench.tag)


def test_where_all_three_are_killed_at_once_the_next_run_finds_the_server_and_kills_it(bench: Bench):
    with running(exec_argv(bench.cache, *bench.options(), command=bench.command(warm_s=60)), env=bench.env) as process:
        assert eventually(lambda: tagged(bench.tag) and bench.run_files())
        (server,) = tagged(bench.tag)
        inner = read_stat(server).parent
        signal_each([process.pid, read_stat(inner).parent, inner])
        process.wait(30)
    assert run_exec(bench.root / "other", "--allow-empty", command=["true"], env=bench.env).status == 0
    assert_none_left(bench.tag)
    assert bench.records() == []


@pytest.mark.parametrize("delay_s", mostly_apart([0.0, 0.05, 0.1, 0.2], [0.05]))
def test_whenever_the_flow_process_is_killed_around_the_hand_over_the_server_is_dead_or_on_record(bench, delay_s):
    argv = exec_argv(bench.cache, *bench.options("tcp=127.0.0.1:" + str(bench.port)), command=bench.command(warm_s=0.3))
    with running(argv, env=bench.env) as process:
        assert eventually(lambda: _listens(bench.port))
        time.sleep(delay_s)
        process.kill()
        process.wait(30)
    if not eventually(lambda: not tagged(bench.tag), 4):
        (record,) = bench.records()  # let go of: then its guards have gone, and it can be found and stopped
        assert tagged(bench.tag) == [record["pid"]]
        assert bench.run_files() == []
        assert bench.cachewatch("stop", "--all").status == 0
    assert_none_left(bench.tag)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
