"""The whole way through `cachewatch exec`: stall, evidence before the stop, cause in message and report, bundle."""

from __future__ import annotations

import errno
import gzip
import html
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyte
import pytest
from tests.support import unavailable

from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.common.secrets import secret_values
from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.postmortem.bundle import BUNDLE_FILES
from prefect_cachewatch.postmortem.diagnosis import diagnose
from prefect_cachewatch.postmortem.examination import PostMortem
from prefect_cachewatch.postmortem.filesystem import FilesystemProbe
from prefect_cachewatch.postmortem.model import Evidence, GrowthFacts
from prefect_cachewatch.watching.attempt import Watch, run_watch
from prefect_cachewatch.watching.site import CacheDirectories

COMMAND = [sys.executable, "-m", "prefect_cachewatch.cli.main", "exec"]
WRITE = "import os, sys, threading, time\nfor i in range(3): open(f'{sys.argv[1]}/layers.{i}.bin', 'wb').write(os.urandom(50_000))\n"
DEADLOCK = WRITE + "a = threading.Lock(); a.acquire(); threading.Thread(target=a.acquire).start(); a.acquire()\n"


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "CACHEWATCH_STATE": str(tmp_path / "state"), "PYTHONPATH": ""}


def guard(env, cache, code, *options, argv=(), stall="1.2s"):
    """Run `cachewatch exec` with a short window."""
    return subprocess.run(
        [*COMMAND, "--cache-dir", str(cache), "--stall-after", stall, "--first-write-within", "2s", "--poll", "0.3s",
         "--grace", "0.5s", *options, "--", sys.executable, "-c", code, str(cache), *argv],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_stall_ends_with_its_cause_a_report_and_a_bundle(env, tmp_path):
    done = guard(env, tmp_path / "cache", DEADLOCK, "--report", str(tmp_path / "r.json"))
    assert done.returncode == 124
    last = done.stderr.splitlines()[-1]
    assert re.match(
        r"cache stalled: all 2 threads of pid \d+ \(python\S*\) wait for one another and use no CPU: a deadlock\. "
        r"No growth for 1\.\d s\. Tensor cache generation stalled: no disk write activity detected for 1\.2 s in /",
        last,
    )
    report = json.loads((tmp_path / "r.json").read_text())
    assert sorted(report["diagnosis"]) == ["category", "confidence", "evidence", "resolution", "summary"]
    assert (report["diagnosis"]["category"], report["diagnosis"]["confidence"]) == ("deadlocked", "high")
    assert report["message"] == last
    bundle = Path(report["bundle"])
    assert bundle.parent == tmp_path / "state" / "bundles"
    assert json.loads((bundle / "report.json").read_text())["diagnosis"] == report["diagnosis"]
    assert f"cachewatch report {bundle}" in done.stderr
    lines = [json.loads(line) for line in gzip.open(bundle / "listing.jsonl.gz")]
    assert lines[-1]["files"] == 3
    assert len((bundle / "growth.csv").read_text().splitlines()) > 3


@pytest.mark.campaign
def test_no_bundle_is_written_if_none_is_wanted(env, tmp_path):
    guard(env, tmp_path / "cache", DEADLOCK, "--no-bundle", "--report", str(tmp_path / "r.json"))
    assert json.loads((tmp_path / "r.json").read_text())["bundle"] is None
    assert not (tmp_path / "state" / "bundles").exists()


def test_a_completed_run_has_no_diagnosis_and_no_bundle(env, tmp_path):
    done = guard(env, tmp_path / "cache", WRITE, "--report", str(tmp_path / "r.json"))
    assert done.returncode == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["diagnosis"], report["bundle"]) == (None, None)
    assert not (tmp_path / "state" / "bundles").exists()


def test_a_failure_keeps_its_exit_code_and_gets_a_diagnosis_and_a_bundle(env, tmp_path):
    code = WRITE + "raise OSError(28, 'No space left on device', sys.argv[1] + '/w.bin')"
    done = guard(env, tmp_path / "cache", code, "--report", str(tmp_path / "r.json"))
    assert done.returncode == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["diagnosis"]["category"] == "disk_full"
    assert done.stderr.splitlines()[-1].startswith(
        "cache failed: the generator ran out of space on its cache's file system. Exit code 1. Tensor cache generation "
    )
    assert f"cachewatch: post-mortem: cachewatch report {report['bundle']}\n" in done.stderr
    bundle = Path(report["bundle"])
    assert sorted(path.name for path in bundle.iterdir()) == sorted(BUNDLE_FILES)
    page = html.unescape((bundle / "report.html").read_text())
    for shown in (report["diagnosis"]["summary"][1:], report["diagnosis"]["resolution"], "layers.2.bin"):
        assert shown in page
    assert re.search(r"<h2>What its log says of it</h2><pre>[^<]*No space left on device", page)
    assert "<h2>Stacks</h2>" not in page  # of processes that are gone
    options = ("--no-bundle", "--report", str(tmp_path / "r.json"))
    plain = guard(env, tmp_path / "cache", "raise SystemExit('no such layer')", *options)
    assert (plain.returncode, len(list(bundle.parent.iterdir()))) == (1, 1)
    assert json.loads((tmp_path / "r.json").read_text())["diagnosis"]["category"] == "generator_failed"


CRASHES = {
    "an exception": (
        "def tile(x): raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79 GiB')\ntile(1)",
        1, "gpu_out_of_memory", "cache failed: the device had not enough memory: RuntimeError: CUDA out of memory. ",
    ),
    "a module": ("import ttnn_that_is_not_there", 1, "missing_module", "No module named 'ttnn_that_is_not_there'"),
    "terminal codes": (
        "print('\\x1b[31mTT_FATAL: Device 3 does not answer\\x1b[0m\\x1b]0;owned\\x07', flush=True); sys.exit(7)",
        7, "device_fault", "TT_FATAL: Device 3 does not answer [device 3].",
    ),
    "another process": (
        "import subprocess; subprocess.run([sys.executable, '-c', 'open(\"/nowhere/w.bin\")'], check=True)",
        1, "missing_file", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/w.bin'",
    ),
    "a signal": ("print('layer 7', flush=True); os.kill(os.getpid(), 11)", 139, "segmentation_fault", "its last line was: layer 7."),
    "a word": ("sys.exit('no such layer')", 1, "generator_failed", "cache failed: no such layer (its last line). Exit code 1. "),
}  # fmt: skip


@pytest.mark.parametrize("case", CRASHES)
def test_a_crash_is_told_by_what_it_printed_last(env, tmp_path, case):
    code, status, category, said = CRASHES[case]
    done = guard(env, tmp_path / "cache", WRITE + code, "--report", str(tmp_path / "r.json"))
    assert done.returncode == status
    last = done.stderr.splitlines()[-1]
    assert said in last and "\x1b" not in last, last
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["message"], report["diagnosis"]["category"]) == (last, category)
    assert report["diagnosis"]["resolution"] and report["diagnosis"]["evidence"]


def test_an_error_that_a_completed_run_printed_is_no_cause(env, tmp_path):
    code = WRITE + "print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; with half the batch')"
    done = guard(env, tmp_path / "cache", code, "--report", str(tmp_path / "r.json"))
    report = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, report["diagnosis"]) == (0, None)
    assert "Cause" not in report["message"]


def test_no_secret_of_the_last_line_is_in_the_cause(env, tmp_path):
    env |= {"HF_TOKEN": "sesame-env-11111"}
    code = (
        WRITE
        + "raise PermissionError(13, 'Permission denied', '/m/' + os.environ['HF_TOKEN'] + '?token=sesame-url-22222')"
    )
    done = guard(env, tmp_path / "cache", code, "--report", str(tmp_path / "r.json"))
    written = (tmp_path / "r.json").read_text()
    assert json.loads(written)["diagnosis"]["category"] == "permission_denied"
    assert "sesame" not in done.stderr.splitlines()[-1] + written


def test_no_secret_reaches_any_output(env, tmp_path):
    env |= {"HF_TOKEN": "sesame-env-11111", "DB_PASSWORD": "sesame-raw-22222"}
    cache = tmp_path / "of-sesame-raw-22222"
    code = (
        "import os, sys\nprint('Authorization: Bearer sesame-log-3333'); print('value', os.environ['HF_TOKEN'])\n"
        "print(os.environ['HF_TOKEN'][:9]); print(os.environ['HF_TOKEN'][9:])\n"
        "held = open(os.path.join(sys.argv[1], os.environ['HF_TOKEN']), 'wb'); held.write(b'x' * 9000); held.flush()\n"
        "os.mkdir(sys.argv[1] + '/of-' + os.environ['HF_TOKEN'])\n"
        "print('https://me:sesame-url-4@host/x', os.environ['DB_PASSWORD'], flush=True)\n" + DEADLOCK
    )
    done = guard(
        env, cache, code, "--report", str(tmp_path / "r.json"), "--env", "MY_API_KEY=sesame-opt-55555",
        argv=["--api-key", "sesame-argv-6", "--url=https://me:sesame-url-7@host/"],
    )  # fmt: skip
    assert done.returncode == 124
    (bundle,) = (tmp_path / "state" / "bundles").iterdir()
    texts = {"stderr": done.stderr, "report": (tmp_path / "r.json").read_text()}
    for path in bundle.iterdir():
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        texts[path.name] = raw.decode("utf-8", "replace")
    shown = subprocess.run(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", "report"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    texts["terminal"] = shown
    assert [name for name, text in texts.items() if "sesame-" in text or "11111" in text] == []
    report = json.loads(texts["report"])
    assert (report["name"], report["cache_dirs"]) == ("of-***", [f"{tmp_path}/of-***"])
    assert f"{tmp_path}/of-***/***" in [entry["path"] for entry in report["listing"]["entries"]]


@pytest.mark.campaign
def test_the_stop_comes_in_time_though_the_file_system_hangs(hang_with_mounts, fuse, tmp_path):
    # In a mount namespace: the generator's cache hangs once it has written, evidence and stop go on.
    script = tmp_path / "hung.py"
    script.write_text(
        f"""
import json, subprocess, sys, time
from pathlib import Path
from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.postmortem.diagnosis import diagnose
from prefect_cachewatch.postmortem.examination import PostMortem
from prefect_cachewatch.postmortem.filesystem import FilesystemProbe
from prefect_cachewatch.postmortem.model import Evidence, GrowthFacts
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.attempt import Watch, run_watch
cache = Path("/tmp/cw-hung"); cache.mkdir(exist_ok=True)
mount = {fuse("/tmp/cw-hung", "hang")!r}
with CacheDirectories([cache]) as site:
    examiner = PostMortem(bundles=False)
    decided = []
    def before_stop(watch, verdict):
        decided.append(time.monotonic()); examiner.before_stop(watch, verdict)
    command = ["sh", "-c", mount + "; exec sleep 99"]
    stall = StallPolicy(stall_after_s=3, first_write_within_s=3, poll_s=0.5, unresponsive_after_s=3)
    job = CacheJob(name="x", command=command, cache_dirs=[cache])
    watch = Watch(site, job, stall, StopPolicy(grace_s=0.2), on_sample=examiner.sampled, before_stop=before_stop)
    watch.start(); watch.monitor(); watch.supervise()
    late = time.monotonic() - decided[0]
    outcome = examiner.conclude(watch, watch.finish())
    print(json.dumps([late, outcome.kind, examiner.diagnosis.category, outcome.message]), flush=True)
import os; os._exit(0)
"""
    )
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, str(script)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    late, kind, category, message = json.loads(done.stdout.splitlines()[-1])
    assert late <= 2.3 + 0.5, "evidence 2 s, the stop itself 0.3 s; half a second for a busy machine"
    assert category == "filesystem_unresponsive"
    assert kind in ("filesystem_unresponsive", "cache_directory_missing", "never_started")
    assert "does not answer" in message


def test_evidence_that_fails_does_not_keep_the_tree_from_being_stopped(tmp_path, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no evidence today")

    monkeypatch.setattr("prefect_cachewatch.postmortem.examination.collect_evidence", broken)
    examiner = PostMortem()
    with CacheDirectories([tmp_path / "cache"]) as site:
        job = CacheJob(name="x", command=["sleep", "99"], cache_dirs=site.paths)
        stall = StallPolicy(stall_after_s=0.5, first_write_within_s=0.5, poll_s=0.2)
        watch = Watch(
            site, job, stall, StopPolicy(grace_s=1), on_sample=examiner.sampled, before_stop=examiner.before_stop
        )
        outcome = examiner.conclude(watch, run_watch(watch))
    assert outcome.name == "stalled"
    assert examiner.diagnosis is None
    assert examiner.notes == ["no evidence was collected: RuntimeError: no evidence today"]


def test_the_live_view_is_drawn_in_a_terminal_and_leaves_it_clean(env, tmp_path):
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(env, TERM="xterm-256color", COLUMNS="80", LINES="24")
        command = [*COMMAND, "--cache-dir", str(tmp_path / "c"), "--poll", "0.3s", "--stall-after", "2s", "--no-bundle"]
        os.execv(sys.executable, [*command, "--", sys.executable, "-c", DEADLOCK, str(tmp_path / "c")])
    written = b""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if select.select([fd], [], [], 0.5)[0]:
            try:
                chunk = os.read(fd, 65536)
            except OSError:
                break
            written += chunk
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 124
    text = written.decode()
    for words in ("in 3 files", "layers.2.bin", "of 2 s", "suspected: no growth for"):
        assert words in text
    screen = pyte.Screen(80, 200)
    pyte.Stream(screen).feed(text)
    shown = [line.rstrip() for line in screen.display if line.strip()]
    assert " stalled: " in shown[0], "the view is taken off before the message"


def test_ctrl_c_still_ends_it_at_once(env, tmp_path):
    command = [
        *COMMAND,
        "--cache-dir",
        str(tmp_path / "c"),
        "--",
        sys.executable,
        "-c",
        WRITE + "print('up', flush=True); time.sleep(99)",
    ]
    child = subprocess.Popen([*command, str(tmp_path / "c")], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 130
    (bundle,) = (tmp_path / "state" / "bundles").iterdir()
    assert f"cachewatch report {bundle}" in said.decode() and "-cancelled-" in bundle.name
    assert sorted(os.listdir(bundle)) == sorted(BUNDLE_FILES)
    report = json.loads((bundle / "report.json").read_text())
    assert report["outcome"] == report["diagnosis"]["category"] == "cancelled"
    assert re.match(
        r"it was cancelled \(SIGINT\) after \S+ s; it last grew \S+ s before", report["diagnosis"]["summary"]
    )
    assert [missing["part"] for missing in report["missing"]] == ["processes"]
    lines = [json.loads(line) for line in gzip.open(bundle / "listing.jsonl.gz")]
    assert {Path(line["path"]).name for line in lines[:-1]} == {f"layers.{n}.bin" for n in range(3)}
    assert lines[-1]["files"] == report["listing"]["total_files"] == 3
    assert gzip.decompress((bundle / "generator.log.gz").read_bytes()).startswith(b"up")
    page = (bundle / "report.html").read_text()
    assert "its processes were not looked at" in page and "No process of the generator was left" not in page
    shown = subprocess.run([*COMMAND[:-1], "report"], env=env, capture_output=True, text=True, timeout=20, check=True)
    assert shown.stdout.startswith("cancelled\n\ncause   It was cancelled (SIGINT) after")


@pytest.mark.campaign
def test_a_bundle_that_hangs_does_not_hold_up_the_end_of_a_cancelled_run(env, tmp_path):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        unavailable("needs root and /dev/fuse")
    (mount := tmp_path / "mount").mkdir()
    server = Path(__file__).parents[1] / "fuse_cache.py"
    before = f'{sys.executable} {server} {mount} {tmp_path}/flag && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc", "sh", "-c", before, "sh",
         *COMMAND, "--cache-dir", str(tmp_path / "c"), "--report", str(tmp_path / "r.json"),
         "--", "sh", "-c", f"touch {tmp_path}/flag; kill -INT 1; exec sleep 99"],
        env=env | {"CACHEWATCH_STATE": f"{mount}/cache"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["outcome"], report["bundle"], report["diagnosis"]) == ("cancelled", None, None)
    assert any(note.startswith("no bundle was written") for note in report["notes"])


def test_values_of_secret_variables_are_known_by_their_names():
    env = {
        "HF_TOKEN": "abcdefgh",
        "AWS_SECRET_ACCESS_KEY": "x" * 20,
        "PIN_KEY": "1",
        "HOME": "/root",
        "KEYBOARD": "qwertzuiop",
    }
    assert secret_values(env) == ("abcdefgh", "x" * 20)


def test_a_helper_that_is_late_is_no_silence_of_the_file_system(tmp_path):
    probe = FilesystemProbe([str(tmp_path)])
    probe.prepare()
    for child in probe._children.values():
        os.kill(child.pid, signal.SIGSTOP)  # as a machine that does not get round to it
    probe.start({})
    probe.wait(time.monotonic() + 0.2)
    (facts,) = probe.facts(probe.finish())
    assert (facts.responded, facts.error) == (True, "not known: the helper that asks was late")
    assert diagnose(Evidence(filesystems=(facts,))).category != "filesystem_unresponsive"


def test_evidence_that_is_late_blames_nothing_but_the_helper():
    class Late(InPlace):
        def consult(self, *_, **__):
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")

    examiner = PostMortem(files=Late())
    output, site = SimpleNamespace(tail=lambda: "", kept=lambda: b""), SimpleNamespace(paths=["/x"])
    watch = SimpleNamespace(supervisor=None, output=output, site=site, places=())
    examiner._collect(watch, GrowthFacts, [], None)
    assert examiner.evidence is None
    assert examiner.notes == ["no evidence was collected: the helper that collects it was late (2.5 s)"]


def test_a_crash_is_named_even_if_the_helper_that_collects_evidence_is_late(tmp_path):
    class Late(InPlace):
        def consult(self, *_, **__):
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")

    command = [sys.executable, "-c", "raise MemoryError('sesame-raw-22222')"]
    job = CacheJob(name="x", command=command, cache_dirs=[tmp_path / "c"])
    with CacheDirectories(job.cache_dirs) as site:
        watch = Watch(site, job, StallPolicy(poll_s=0.3), StopPolicy())
        examiner = PostMortem(files=Late(), secrets=("sesame-raw-22222",))
        outcome = examiner.conclude(watch, run_watch(watch))
    assert outcome.message.startswith(
        "x failed: memory ran out: MemoryError: *** [<module> (<string>:1)]. Exit code 1. Tensor cache generation failed: "
    )
    assert outcome.diagnosis is not None and outcome.diagnosis.category == "host_out_of_memory"


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_a_bundle_for_a_full_disk_goes_elsewhere(env, tmp_path):
    script = (
        "mkdir -p /tmp/cw-full && mount -t tmpfs -o size=2m none /tmp/cw-full && export CACHEWATCH_STATE=/tmp/cw-full/state "
        'XDG_RUNTIME_DIR=/dev/shm; exec "$@"'
    )
    code = (
        "import sys, time\nf = open(sys.argv[1] + '/x', 'wb', 0)\n"
        "try:\n  while True: f.write(bytes(4096))\nexcept OSError as e: print(e, flush=True)\ntime.sleep(99)"
    )
    report = tmp_path / "r.json"
    for _ in range(10):  # again while this machine is too busy to look within the budget
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "sh", "-ec", script, "sh", *COMMAND, "--cache-dir", "/tmp/cw-full/cache",
             "--stall-after", "1.2s", "--poll", "0.3s", "--report", str(report), "--", sys.executable, "-c", code, "/tmp/cw-full/cache"],
            env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        found = json.loads(report.read_text())
        if not any("was late" in note for note in found["notes"]):
            break
    assert done.returncode == 124, done.stderr
    assert found["diagnosis"]["category"] == "disk_full"
    bundle = Path(found["bundle"])
    try:
        assert not str(bundle).startswith("/tmp/cw-full")
        assert any("in trouble" in note for note in found["notes"])
        assert (bundle / "report.html").exists()
    finally:
        shutil.rmtree(bundle)
