"""Jobs that start a server: when it is ready, what becomes of it then, how it is stopped later, and records that are not to be trusted."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import QUICK, WELL, Place, Ran, eventually, state

SERVER = Path(__file__).with_name("ready_server.py")
LOOKS = ("--no-bundle",)
# For what hangs for good: silence is a stall at once.
SHORT = (*QUICK, *LOOKS, "--stall-after", "1s", "--first-write-within", "60s")


class Servers:
    """A place whose generator is the small server beside this file, on a port of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/health"

    def command(self, **plan: object) -> list[object]:
        return [sys.executable, "-I", "-S", SERVER, self.place.cache, self.port, json.dumps(plan), "x"]

    def exec(self, *options: object, ready: str = "http", windows: tuple[str, ...] = WELL, **plan: object) -> Ran:
        when = {"http": f"http={self.url}", "tcp": f"tcp=127.0.0.1:{self.port}"}.get(ready, ready)
        return self.place.exec("--ready", when, *LOOKS, *windows, *options, command=self.command(**plan))

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def records(self) -> list[Path]:
        return sorted((self.place.root / "state/servers").glob("*.json"))


@pytest.fixture
def servers(place: Place) -> Iterator[Servers]:
    yield Servers(place)
    for pid in place.everybody():
        os.kill(pid, signal.SIGKILL)
    place.assert_nobody()


@dataclass(frozen=True)
class Ready:
    """A server that becomes ready and stays, and what is given to `cachewatch stop`."""

    ready: str = "http"
    stop: tuple[str, ...] = ("cache",)
    plan: dict[str, object] = field(default_factory=dict)
    how: str = "ended after SIGTERM"


READY = {
    "an address": Ready(stop=("--pid", "{pid}")),
    "a port": Ready("tcp"),
    "a line": Ready("log=startup compl.te", ("--all",)),
    "a marker": Ready("file=COMPLETED", plan={"marker": "COMPLETED"}),
    "an address, after 503 for a while": Ready(plan={"status_warming": 503, "warm_s": 6.0}),
    "an address, of a daemon's child": Ready(plan={"daemonize": True}, stop=("--all",)),
    "an address, with workers": Ready(plan={"workers": 2}),
    "an address, deaf to SIGTERM": Ready(
        plan={"ignore_term": True}, stop=("cache", "--grace", "0.3s"), how="1 of 1 killed"
    ),
}


@pytest.mark.parametrize("name", READY)
def test_a_server_that_is_ready_is_handed_over_and_can_be_stopped(servers: Servers, name: str) -> None:
    case = READY[name]
    ran = servers.exec(ready=case.ready, **case.plan)
    assert (ran.status, ran.report["outcome"], ran.report["stop"]) == (0, "completed", None), ran.stderr
    ready = ran.report["ready"]
    assert (ready["kind"], ready["then"], ready["left_running"]) == (case.ready.split("=")[0], "leave_running", True)
    assert [change["phase"] for change in ready["phases"]] == ["writing"]
    assert f"left running as pid {ready['pid']}; stop it with `cachewatch stop --pid {ready['pid']}`" in ran.last_line
    assert eventually(servers.healthy) and state(ready["pid"])
    assert [str(path) for path in servers.records()] == [ready["record"]]
    assert {Path(ready[file]).stat().st_mode & 0o777 for file in ("record", "log")} == {0o600}
    listed = json.loads(servers.place.run("stop", "--list", "--json").stdout)
    assert [(one["state"], one["pid"], one["name"]) for one in listed] == [("running", ready["pid"], "cache")]
    stopped = servers.place.run("stop", *(word.format(pid=ready["pid"]) for word in case.stop))
    assert (stopped.status, stopped.stdout.rstrip().endswith(case.how)) == (0, True), stopped.stdout
    servers.place.assert_nobody()
    assert servers.records() == []


def test_a_server_that_is_stopped_when_it_is_ready_completes(servers: Servers) -> None:
    ran = servers.exec("--then", "stop", workers=2)
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    assert (ran.report["ready"]["left_running"], ran.report["ready"]["how_to_stop"]) == (False, None)
    servers.place.assert_nobody()
    assert servers.records() == []


def test_a_line_and_exit_code_0_in_one_moment_is_ready_where_it_would_be_stopped_anyway(servers: Servers) -> None:
    ran = servers.exec("--then", "stop", ready="log=startup complete", exit_when_ready=0)
    assert (ran.status, ran.report["outcome"]) == (0, "completed")


def test_a_server_on_a_full_cache_writes_nothing_and_gets_ready(servers: Servers) -> None:
    servers.place.cache.mkdir()
    (servers.place.cache / "layer.bin").write_bytes(bytes(100_000))
    windows = (*QUICK, "--stall-after", "1s", "--first-write-within", "1s", "--warmup-within", "5m")
    ran = servers.exec("--then", "stop", windows=windows, write_s=0, warm_s=4.0)
    assert (ran.status, ran.report["growth"]["bytes_written"]) == (0, 0), ran.said
    assert [change["phase"] for change in ran.report["ready"]["phases"]] == ["warm_up"]


def test_what_a_server_prints_goes_to_its_own_log_and_never_blocks_it(servers: Servers) -> None:
    ran = servers.exec(print_bytes=300_000)
    for _ in range(4):
        assert servers.healthy()  # a pipe that nobody reads would hold it up at the first of these
    log = Path(ran.report["ready"]["log"])
    assert eventually(lambda: log.stat().st_size >= 4 * 300_000)
    assert log.read_text().startswith("loading the model\n") and ran.stdout.startswith("loading the model\n")


@dataclass(frozen=True)
class Never:
    """A server that is never ready: its plan, the exit status, the kind of stall or its exit code."""

    plan: dict[str, object]
    status: int
    end: str | int
    options: tuple[str, ...] = ()
    ready: str = "http"
    windows: tuple[str, ...] = SHORT


NEVER = {
    "it ends with a code": Never({"exit_in_warmup": 3}, 3, 3, windows=WELL),
    "it ends with exit code 0": Never({"exit_in_warmup": 0}, 1, 0, windows=WELL),
    "its leader goes, which counts": Never({"daemonize": True, "never_ready": True}, 1, 0, ("--wait-for", "leader"), windows=WELL),
    "it binds no port": Never({"never_ready": True}, 124, "never_ready", ("--warmup-within", "2s")),
    "it takes the question and never answers": Never({"hang_health": True}, 124, "never_ready", ("--warmup-within", "2s")),
    "its marker is of yesterday": Never({"never_ready": True}, 124, "never_ready", ("--warmup-within", "2s"), "file=layer0.bin.old"),
    "its line never comes": Never({"never_ready": True}, 124, "never_ready", ("--warmup-within", "2s"), "log=startup complete"),
    "it hangs far below its size": Never({"hang_in_writing": True}, 124, "no_growth", ("--expect", "100MB")),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_a_server_that_is_never_ready_is_told_by_its_end(servers: Servers, name: str) -> None:
    case = NEVER[name]
    servers.place.cache.mkdir()
    (servers.place.cache / "layer0.bin.old").touch()
    ran = servers.exec(*case.options, ready=case.ready, windows=case.windows, **case.plan)
    assert ran.status == case.status, ran.stderr
    if case.status == 124:
        assert (ran.report["outcome"], ran.report["stall"]["kind"]) == ("stalled", case.end)
    else:
        assert (ran.report["outcome"], ran.report["exit_code"]) == ("failed", case.end)
        assert "before it was ready" in ran.report["message"]
    assert (ran.report["ready"]["at_s"], servers.records()) == (None, [])
    servers.place.assert_nobody()


@pytest.mark.parametrize(
    ("end", "status", "in_vain"),
    [("print('up', flush=True); time.sleep(3600)", 0, True), ("sys.exit(3)", 3, False)],
    ids=["ready", "ended"],
)
def test_a_server_that_would_have_been_stopped_is_told_so_however_it_goes_on(
    servers: Servers, end: str, status: int, in_vain: bool
) -> None:
    report = servers.place.root / "r.json"  # is written at the stall, which stops nothing
    waits = f"""
(PLACE / 'cache/x').write_bytes(os.urandom(50_000))
while not (PLACE / 'r.json').exists(): time.sleep(0.05)
{end}
"""
    options = ("--cache-dir", servers.place.cache, *SHORT, "--warmup-within", "1s", "--on-stall", "report")
    argv = ("exec", *options, "--ready", "log=^up$", "--report", report, "--", *servers.place.program(waits))
    ran = servers.place.run(*argv)
    told = json.loads(report.read_text())
    assert (ran.status, told["stop"]) == (status, None), ran.stderr
    assert {stall["in_vain"] for stall in told["would_be_stops"]} == {in_vain}
    assert told["would_be_stops"][0]["kind"] == "never_ready"
    assert told["ready"]["left_running"] is (status == 0)


def test_a_signal_is_obeyed_while_a_pattern_takes_hours(servers: Servers) -> None:
    prints = servers.place.program(
        "print('a' * 4096, flush=True); (PLACE / 'cache/layer0.bin').write_bytes(bytes(50_000)); time.sleep(3600)"
    )
    options = ("--cache-dir", servers.place.cache, "--ready", "log=.*a.*a.*a.*a.*b", *LOOKS, *WELL)
    with servers.place.start("exec", *options, "--", *prints) as watching:
        assert eventually((servers.place.cache / "layer0.bin").exists)
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=120)
    assert watching.returncode == 143
    servers.place.assert_nobody()


def test_a_server_that_answers_before_the_start_is_refused_and_nothing_is_started(servers: Servers) -> None:
    assert servers.exec().status == 0
    options = ("--cache-dir", servers.place.root / "other", "--ready", f"http={servers.url}")
    second = servers.place.run("exec", *options, "--", "touch", servers.place.root / "ran")
    assert (second.status, (servers.place.root / "ran").exists()) == (125, False)
    assert f"{servers.url} is ready before the generator was started" in second.last_line


def test_a_cache_whose_server_runs_is_refused_with_the_command_that_stops_it(servers: Servers) -> None:
    pid = servers.exec().report["ready"]["pid"]
    again = servers.place.exec(*WELL, command=["true"])
    assert again.status == 125 and f"(pid {pid}), which was left running: stop it first" in again.last_line
    # Neither a look at the machine nor a run elsewhere touches it.
    assert servers.place.run("doctor", "--no-prefect").status in (0, 1)
    elsewhere = ("--cache-dir", servers.place.root / "other", "--allow-empty")
    assert servers.place.run("exec", *elsewhere, "--", "true").status == 0
    assert servers.healthy()
    assert servers.place.run("stop", "cache").status == 0
    assert servers.place.exec(*WELL, command=["true"]).status == 0


def test_a_server_that_died_since_is_recognised_and_its_record_removed(servers: Servers) -> None:
    pid = servers.exec().report["ready"]["pid"]
    os.kill(pid, signal.SIGKILL)
    servers.place.assert_nobody()
    (listed,) = json.loads(servers.place.run("stop", "--list", "--json").stdout)
    assert listed["state"] == "ended"
    answer = servers.place.run("stop", "cache")
    assert (answer.status, answer.stdout) == (0, f"cache (pid {pid}) had ended already\n")
    assert servers.records() == []


def test_a_worker_that_lost_its_parent_is_stopped_with_its_server(servers: Servers) -> None:
    pid = servers.exec(workers=1).report["ready"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: len(servers.place.everybody()) == 1)
    assert servers.place.run("stop", "cache").status == 0
    servers.place.assert_nobody()


def test_a_watch_that_is_killed_in_the_warm_up_takes_the_server_along(servers: Servers) -> None:
    options = ("--cache-dir", servers.place.cache, "--ready", f"http={servers.url}", *LOOKS, *WELL)
    with servers.place.start("exec", *options, "--", *servers.command(warm_s=3600)) as watching:
        assert watching.stdout is not None
        while "warming up" not in watching.stdout.readline():
            pass
        watching.kill()
    servers.place.assert_nobody()
    assert servers.records() == []


def test_a_watch_that_is_killed_around_the_hand_over_leaves_the_server_dead_or_on_record(servers: Servers) -> None:
    options = ("--cache-dir", servers.place.cache, "--ready", f"tcp=127.0.0.1:{servers.port}", *LOOKS, *WELL)
    with servers.place.start("exec", *options, "--", *servers.command()) as watching:
        assert watching.stdout is not None
        while "startup complete" not in watching.stdout.readline():
            pass
        watching.kill()
    assert eventually(lambda: not servers.place.everybody() or servers.records())
    if servers.records():  # let go of: it can be found and stopped
        assert servers.place.run("stop", "--all").status == 0
    servers.place.assert_nobody()


def test_where_its_guards_are_killed_too_the_next_run_finds_the_server_and_ends_it(servers: Servers) -> None:
    options = ("--cache-dir", servers.place.cache, "--ready", f"http={servers.url}", *LOOKS, *WELL)
    with servers.place.start("exec", *options, "--", *servers.command(warm_s=3600)) as watching:
        assert watching.stdout is not None
        while "warming up" not in watching.stdout.readline():
            pass
        server = next(pid for pid in servers.place.everybody() if str(SERVER) in _argv(pid)[3:4])
        for pid in set(servers.place.everybody()) - {server}:
            os.kill(pid, signal.SIGSTOP)  # none of them sees another one end
        for pid in set(servers.place.everybody()) - {server}:
            os.kill(pid, signal.SIGKILL)
    elsewhere = ("--cache-dir", servers.place.root / "other", "--allow-empty")
    assert servers.place.run("exec", *elsewhere, "--", "true").status == 0
    servers.place.assert_nobody()


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:  # it ends just now
        return []


# Records of servers that a stranger, or a damage, could have made.


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The record of a real server that runs on."""
    place = Place(tmp_path_factory.mktemp("left"))
    command = ["sh", "-c", f"echo 12345 > {place.cache}/x; echo up; exec sleep 3600"]
    ran = place.exec("--ready", "log=up", *LOOKS, *WELL, command=command)
    record = json.loads(Path(ran.report["ready"]["record"]).read_text())
    yield record
    os.kill(record["pid"], signal.SIGKILL)
    place.assert_nobody()


GREAT = 10**399
DAMAGED: dict[str, dict[str, Any] | str] = {
    "pid 1": {"pid": 1},
    "pid 0": {"pid": 0},
    "pid -1": {"pid": -1},
    "a pid in words": {"pid": "1234"},
    "a pid of 400 digits": {"pid": GREAT},
    "a tree with pid 1": {"tree": [[1, 5]]},
    "a tree with a pid of 400 digits": {"tree": [[GREAT, 5]]},
    "a start of 400 digits": {"start_ticks": GREAT},
    "a tree with a start of 400 digits": {"tree": [[77, GREAT]]},
    "a time of 400 digits": {"ready_at": GREAT},
    "a time that is no number": {"ready_at": float("nan")},
    "an endless time": {"ready_at": float("inf")},
    "an endless grace": {"stop_grace_s": float("inf")},
    "a run id with a path": {"run_id": "../../../etc"},
    "a name in numbers": {"name": 7},
    "a field more": {"more": 1},
    "no JSON": "{",
    "nothing": "",
    "brackets without end": "[" * 100_000,
    "a list": "[1, 2]",
}


def put(place: Place, record: dict[str, Any] | str) -> Path:
    (home := place.root / "state/servers").mkdir(parents=True, mode=0o700)
    (place.root / "state").chmod(0o700)
    file = home / "cache-0123456789ab.json"
    file.write_text(record if isinstance(record, str) else json.dumps(record))
    file.chmod(0o600)
    return file


def assert_left_alone(place: Place, file: Path, left: dict[str, Any]) -> Ran:
    before = os.lstat(file)
    for words in (["stop", "--list"], ["stop", "--all"]):
        ran = place.run(*words)
        assert (ran.status, ran.stderr) == (0, "")
        assert [line for line in ran.stdout.splitlines() if str(file) in line], ran.stdout
    assert os.lstat(file).st_ino == before.st_ino
    assert state(left["pid"]) not in ("", "Z", "T")
    return ran


@pytest.mark.parametrize("name", DAMAGED)
def test_a_record_that_is_none_is_left_alone_in_one_sentence(place: Place, left: dict[str, Any], name: str) -> None:
    changed = DAMAGED[name]
    file = put(place, changed if isinstance(changed, str) else left | changed)
    ran = assert_left_alone(place, file, left)
    assert ran.stdout.splitlines()[0] == f"record {file} was left alone: it is not the record of a server"


@pytest.mark.parametrize(
    "kind", ["pipe", "link", "directory", "open to others", "hard link", "great", "another user's"]
)
def test_a_file_that_is_no_private_one_is_left_alone_in_one_sentence(
    place: Place, left: dict[str, Any], kind: str
) -> None:
    file = put(place, left)
    whole = file.rename(place.root / "whole.json")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(whole)
    elif kind == "directory":
        file.mkdir()
    elif kind == "hard link":
        file.hardlink_to(whole)
    else:
        file.write_text(whole.read_text() + " " * (2 << 20) * (kind == "great"))
        file.chmod(0o666 if kind == "open to others" else 0o600)
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(file, 65534, 65534)
    assert_left_alone(place, file, left)


@pytest.mark.parametrize(
    ("changed", "removed", "status"),
    [
        ({"boot_id": "00000000-0000-0000-0000-000000000000"}, True, 0),
        ({"machine": "elsewhere"}, False, 125),
        ({"pid_namespace": "pid:[1]"}, False, 125),
        ({"tree": [[2, 1]], "pid": 2, "run_id": "0" * 32}, True, 0),
    ],
    ids=["of another boot", "of another machine", "of another container", "of a pid that another has now"],
)
def test_a_server_that_is_not_of_here_and_now_is_never_signalled(
    place: Place, left: dict[str, Any], changed: dict[str, Any], removed: bool, status: int
) -> None:
    file = put(place, left | changed)
    ran = place.run("stop", "cache")
    assert (ran.status, file.exists()) == (status, not removed), ran.stdout + ran.stderr
    assert ran.stdout.count("\n") + ran.stderr.count("\n") == 1
    assert state(left["pid"]) not in ("", "Z", "T")


@pytest.mark.parametrize("argv", [[], ["nobody"], ["--pid", "7"], ["a", "--all"], ["--list", "--all"]], ids=" ".join)
def test_whom_to_stop_must_be_said_and_known(place: Place, argv: list[str]) -> None:
    ran = place.run("stop", *argv)
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1)


def test_without_a_server_there_is_none_to_list_or_stop(place: Place) -> None:
    assert json.loads(place.run("stop", "--list", "--json").stdout) == []
    assert place.run("stop", "--all").status == 0
