"""`cachewatch exec` without `--cache-dir`: known commands, and where an unknown one writes; on real processes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.postmortem.standstill_look import look_for_standstill
from prefect_cachewatch.run.learning import Learning, run_learned
from prefect_cachewatch.run.placement import place_job
from prefect_cachewatch.run.runner import Runner
from prefect_cachewatch.watching import finding, learned
from prefect_cachewatch.watching.attempt import Outcome, run_watch
from prefect_cachewatch.watching.finding import FindingWatch
from prefect_cachewatch.watching.site import CacheDirectories
from support import CACHEWATCH, Ran, assert_none_left, needs_root, new_tag, run_exec, running

QUICK = ("--poll", "0.3s", "--no-bundle", "--grace", "0.5s")
# Writes a layer after the other, each into a directory of its own; then hangs.
WRITES = """
import os, sys, time
top = sys.argv[2]
for layer in range(int(sys.argv[3])):
    os.makedirs(f"{top}/layer{layer}", exist_ok=True)
    with open(f"{top}/layer{layer}/w.bin", "wb") as file:
        for _ in range(4):
            file.write(os.urandom(150_000)); file.flush(); time.sleep(0.1)
time.sleep(600 if sys.argv[4] == "hang" else 0)
"""


LOCKS = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"


def run_bare(tmp_path: Path, *options: str, command: list[str], env: dict[str, str] | None = None) -> Ran:
    """Run `exec` with no directory named."""
    env = {**os.environ, **(env or {})}
    return run_exec(None, *QUICK, *options, command=command, report_dir=tmp_path, env=env)


@pytest.mark.campaign
def test_a_command_without_a_directory_is_watched_where_it_writes_and_a_stall_is_seen(tmp_path):
    tag, top = new_tag(), tmp_path / "data" / "out"
    command = [sys.executable, "-c", WRITES, tag, str(top), "30", "hang"]
    ran = run_bare(tmp_path, "--stall-after", "2s", "--first-write-within", "5m", command=command)
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth"), ran.stderr
    assert ran.report["cache_dirs"] == [str(top)]
    assert f"cachewatch: watching {top}, where it wrote " in ran.stderr
    assert f"`--cache-dir {top}` says so at once" in ran.stderr
    assert [note for note in ran.report["notes"] if note.startswith("no directory was given: watching")]
    assert_none_left(tag)


def bare_watch(tmp_path: Path, site: CacheDirectories, script: str, told: list[str], **policy: object) -> FindingWatch:
    command = ["sh", "-c", script, new_tag()]
    job = CacheJob(name="x", command=command, allow_empty=True, cwd=tmp_path)
    given = {"poll_s": 0.2, "stall_after_s": 1, "first_write_within_s": 60} | policy
    return FindingWatch(
        site, job, StallPolicy(**given), StopPolicy(grace_s=0.5), found=told.append, look_for_s=1.5,
        prove=look_for_standstill,
    )  # fmt: skip


def test_a_generator_that_writes_nothing_runs_on_under_guard_and_that_is_said(tmp_path):
    told: list[str] = []
    with CacheDirectories([]) as site:
        outcome = run_watch(bare_watch(tmp_path, site, "sleep 4; exit 3", told))
    assert (outcome.name, outcome.exit_code) == ("failed", 3)
    assert told == [
        "no cache directory was found: in its first 1 s it was seen to write nothing that may be a cache; it runs on under "
        "guard, but no stall will be seen: name the directory that grows with --cache-dir DIR"
    ]
    assert outcome.message.endswith("ended with exit code 3; no directory was watched.")


def test_an_unwatched_generator_has_its_time_limit(tmp_path):
    told: list[str] = []
    with CacheDirectories([]) as site:
        watch = bare_watch(tmp_path, site, "sleep 100", told, max_duration_s=2.5)
        outcome = run_watch(watch)
    assert (outcome.name, len(told)) == ("deadline_exceeded", 1)
    assert outcome.duration_s < 20
    assert outcome.stop.why == "stop"


def test_files_that_are_open_for_a_moment_only_are_found_at_the_places_that_the_command_names(tmp_path):
    told: list[str] = []
    script = f"mkdir {tmp_path}/made; head -c 9000 /dev/zero > {tmp_path}/made/a; sleep 6"
    with CacheDirectories([]) as site:
        watch = bare_watch(tmp_path, site, script, told)
        watch.job.command.append(f"{tmp_path}/made")
        outcome = run_watch(watch)
        assert (outcome.paths, outcome.name) == ((f"{tmp_path}/made",), "stalled")
    assert told[0].startswith(f"watching {tmp_path}/made, where it wrote files in its first ")


def test_a_directory_that_another_job_holds_is_not_watched_and_the_generator_runs_on(tmp_path):
    told: list[str] = []
    held = tmp_path / "held"
    script = f"exec 5> {held}/w; for i in 1 2 3 4 5 6 7 8; do head -c 300000 /dev/zero >&5; sleep 0.4; done"
    with CacheDirectories([held]), CacheDirectories([]) as site:
        outcome = run_watch(bare_watch(tmp_path, site, script, told))
        assert (outcome.name, site.lock_fds) == ("completed", [])
    assert "which cannot be watched (cache directory" in told[0]
    assert "is in use by another job" in told[0]


@pytest.mark.campaign
def test_a_file_of_ours_in_a_directory_that_was_found_is_no_growth(tmp_path):
    told: list[str] = []
    cache = tmp_path / "cache"
    cache.mkdir()
    script = f"exec 5> {cache}/w; for i in $(seq 15); do head -c 300000 /dev/zero >&5; sleep 0.4; done; exec sleep 60"
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.1):
            log.write(bytes(30_000))

    with open(cache / "our [log]?.txt", "wb", buffering=0) as log, CacheDirectories([]) as site:
        writer = threading.Thread(target=go_on)
        writer.start()
        watch = bare_watch(tmp_path, site, script, told)
        watch._look_for_s = 5
        try:
            outcome = run_watch(watch)
        finally:
            over.set()
            writer.join()
    assert (outcome.name, outcome.paths) == ("stalled", (str(cache),)), told
    assert outcome.growth.files_present <= 1  # none, if it stalled before the first sample


def test_a_cancelled_search_ends_the_tree(tmp_path):
    told: list[str] = []
    with CacheDirectories([]) as site:
        watch = bare_watch(tmp_path, site, "sleep 100", told)
        watch._look_for_s = 60
        threading.Timer(1.0, lambda: watch.cancel("test")).start()
        began_s = time.monotonic()
        outcome = run_watch(watch)
    assert (outcome.name, told) == ("cancelled", [])
    assert time.monotonic() - began_s < 30


# Keeps a small file open, then writes a large one elsewhere for longer than the window, and ends.
MOVES = """
import os, sys, time
top = sys.argv[2]
for name in ("small", "large"):
    os.makedirs(f"{top}/{name}")
small = open(f"{top}/small/state", "wb", buffering=0)
for _ in range(8):
    small.write(b"x" * 100)
    time.sleep(0.25)
with open(f"{top}/large/w.bin", "wb", buffering=0) as large:
    for _ in range(40):
        large.write(os.urandom(200_000))
        time.sleep(0.1)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("on_stall", ["stop", "report"])
def test_a_guess_that_was_wrong_is_mended_before_it_harms(tmp_path, on_stall):
    told: list[str] = []
    with CacheDirectories([]) as site:
        watch = bare_watch(tmp_path, site, "", told, stall_after_s=2)
        command = [sys.executable, "-c", MOVES, new_tag(), "data"]
        watch.job = watch.job.model_copy(update={"command": command, "on_stall": on_stall})
        outcome = run_watch(watch)
    assert (outcome.name, outcome.would_be_stops) == ("completed", ()), outcome.message
    assert outcome.paths == (f"{tmp_path}/data/small", f"{tmp_path}/data/large")
    assert len(told) == 2 and told[1].startswith(f"watching {tmp_path}/data/large, where it wrote "), told
    assert f"--cache-dir {tmp_path}/data/small --cache-dir {tmp_path}/data/large`" in told[1]


def test_a_tree_that_can_never_run_again_is_proven_to_in_directories_that_were_found_too(tmp_path):
    told: list[str] = []
    script = (
        f"mkdir a; exec 3>a/f; for i in 1 2 3 4; do echo x >&3; sleep 0.2; done; exec {sys.executable} -S -c '{LOCKS}'"
    )
    with CacheDirectories([]) as site:
        outcome = run_watch(bare_watch(tmp_path, site, script, told, stall_after_s=300, prove_after_s=0.5))
    assert (outcome.name, outcome.kind, outcome.paths) == ("stalled", "deadlocked", (f"{tmp_path}/a",)), told
    assert [wait.call for wait in outcome.waits] == ["futex"]


def test_a_tree_that_writes_only_a_little_elsewhere_is_silent(tmp_path):
    told: list[str] = []
    writes = "mkdir a b; exec 3>a/f; for i in 1 2 3 4 5 6 7 8; do echo x >&3; sleep 0.3; done"
    script = f"{writes}; exec 4>b/beat; while :; do echo >&4; sleep 0.2; done"
    with CacheDirectories([]) as site:
        watch = bare_watch(tmp_path, site, script, told)
        outcome = run_watch(watch)
    assert (outcome.name, outcome.kind, outcome.paths) == ("stalled", "no_growth", (f"{tmp_path}/a",)), told


@pytest.mark.campaign
def test_a_tree_with_mounts_of_its_own_is_not_looked_for_in_ours(tmp_path):
    needs_root("a mount namespace")
    for name in ("data", "data/out"):
        (tmp_path / name).mkdir()
    told: list[str] = []
    inside = f"mount -t tmpfs none {tmp_path}/data; mkdir {tmp_path}/data/out; exec 3>{tmp_path}/data/out/w; for i in 1 2 3 4 5 6; do head -c 99999 /dev/zero >&3; sleep 0.4; done; sleep 2"
    with CacheDirectories([]) as site:
        outcome = run_watch(bare_watch(tmp_path, site, f"exec unshare -m sh -c '{inside}'", told))
    assert (outcome.name, outcome.paths) == ("completed", ())
    assert told[0].startswith("no cache directory was found"), told


# Writes for a second, and then hangs if a file says so.
PAUSES = """
import os, sys, time
top = sys.argv[2]
os.makedirs(top, exist_ok=True)
with open(f"{top}/w.bin", "ab", buffering=0) as file:
    for _ in range(10):
        file.write(os.urandom(300_000))
        time.sleep(0.1)
if os.path.exists(sys.argv[3]):
    os.unlink(sys.argv[3])
    time.sleep(100)
"""


@pytest.mark.campaign
def test_windows_are_learned_of_directories_that_were_found_and_a_stop_in_vain_is_made_good(tmp_path, monkeypatch):
    monkeypatch.setattr(learned, "_FLOOR_S", 1.0)
    monkeypatch.setattr(finding, "_SETTLED_S", 0.2)
    monkeypatch.setattr(finding, "_LOOK_EVERY_S", 0.1)
    top, hangs, said = tmp_path / "data" / "out", tmp_path / "hangs", list[str]()
    job = CacheJob(name="x", command=[sys.executable, "-c", PAUSES, new_tag(), f"{top}", f"{hangs}"], allow_empty=True)
    stall = StallPolicy(poll_s=0.2, stall_after_s="learned:8s")

    def generate() -> list[Outcome]:
        shutil.rmtree(top, ignore_errors=True)
        outcomes: list[Outcome] = []
        with CacheDirectories([]) as site:
            learning = Learning(job, stall, site, InPlace(), said.append)

            def attempt(number: int) -> tuple[Outcome, None]:
                watch = Runner(InPlace(), (), attempt=number, bundles=False).watch(
                    place_job(job, {}, InPlace()), site, stall, StopPolicy(grace_s=0.5), dict(os.environ),
                    learning=learning, find=said.append,
                )  # fmt: skip
                outcomes.append(run_watch(watch))
                return outcomes[-1], None

            run_learned(learning, attempt)
        return outcomes

    for number in range(5):
        (outcome,) = generate()
        assert (outcome.name, outcome.paths) == ("completed", (str(top),))
        assert (
            f"{number} of 5 completed runs of this command are known that began with an empty cache"
            in outcome.learned.note
        )
    hangs.touch()
    first, second = generate()
    assert [window.phase for window in first.learned.windows] == ["writing"]
    assert (first.name, first.kind, first.window_s < 8) == ("stalled", "no_growth", True)
    assert (second.name, second.paths) == ("completed", (str(top),))


@pytest.fixture
def builder(tmp_path) -> dict[str, str]:
    """A trtllm-build of our own, first in PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "trtllm-build").write_text('#!/bin/sh\nmkdir -p "$2"; head -c 9000 /dev/zero > "$2/rank0.engine"\n')
    (tools / "trtllm-build").chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def test_a_known_command_is_watched_from_its_start_by_its_profile(tmp_path, builder):
    command = ["trtllm-build", "--output_dir", str(tmp_path / "engine")]
    ran = run_bare(tmp_path, command=command, env=builder)
    assert (ran.status, ran.report["cache_dirs"], ran.report["name"]) == (0, [f"{tmp_path}/engine"], "engine"), (
        ran.stderr
    )
    assert ran.report["growth"]["bytes_written"] == 9000
    said = (
        f"cachewatch: profile trtllm-build, by the command: watching {tmp_path}/engine; --profile none turns this off\n"
    )
    assert said in ran.stderr


@pytest.mark.parametrize(
    "options", [("--profile", "none"), ("--profile", "none", "--cache-dir", "{}"), ("--cache-dir", "{}")]
)
def test_a_profile_is_not_looked_for_where_something_else_is_said(tmp_path, builder, options):
    own = tmp_path / "own"
    given = [each.format(own) for each in options]
    ran = run_bare(
        tmp_path, "--allow-empty", *given, command=["trtllm-build", "--output_dir", f"{tmp_path}/e"], env=builder
    )
    assert ran.status == 0, ran.stderr
    assert "by the command" not in ran.stderr
    assert ran.report["cache_dirs"] == ([str(own)] if "{}" in options else [])


def test_a_signal_ends_a_search_as_any_run():
    tag = new_tag()
    script = "import time; print('runs', flush=True); time.sleep(100)"
    with running([*CACHEWATCH, "exec", *QUICK, "--", sys.executable, "-c", script, tag]) as process:
        assert process.stdout.readline() == "runs\n"
        process.terminate()
        assert process.wait(60) == 143
    assert_none_left(tag)
