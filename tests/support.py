"""What the tests share: spawn `cachewatch`, tag processes, and wait until none of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

T = TypeVar("T")

CACHEWATCH = [sys.executable, "-m", "prefect_cachewatch.cli.main"]
# Options for a command that nothing may end, whatever it writes.
WELL = ("--allow-empty", "--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.3s", "--grace", "0.5s", "--no-bundle")  # fmt: skip
# Upper bounds for a machine that is slow and busy; nothing is asserted close to them.
PATIENCE_S = 60.0


def undo_ignored_signals() -> None:
    """Give each signal its default again that the caller ignores, since every command under test would ignore it too.

    Such are Ctrl-C and Ctrl-\\ below a script's `make test &`, and the closed terminal under nohup; SIGPIPE and SIGXFSZ
    are Python's own doing.
    """
    for number in set(signal.Signals) - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def new_tag() -> str:
    """Make a word by which a test's processes can be found, whatever they do to their environment."""
    return f"tag-{uuid.uuid4().hex[:16]}"


def program(source: str, tag: str) -> list[str]:
    """Make the argv of a Python program that carries the tag; its children carry it too."""
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(source), tag]


def tagged(tag: str) -> list[int]:
    """List living processes with the tag in their argv; not cachewatch itself, whose command it is."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes()
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
            alive = text[text.rindex(")") + 2] not in "ZX"
        except (OSError, ValueError):  # it ends just now: there is no file, or nothing in it
            continue
        if tag.encode() in argv and b"prefect_cachewatch" not in argv and alive:
            found.append(int(name))
    return found


def eventually(look: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """Look until the answer is true, or the time is over; returns the last answer."""
    end_s = time.monotonic() + timeout_s
    while not (seen := look()) and time.monotonic() < end_s:
        time.sleep(0.02)
    return seen


def signal_each(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to each process; one that has ended meanwhile, as after its parent or child, is what was wanted."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def leave_behind(path: Path, text: str = "") -> Path:
    """Write an old file, as a lock file is that a dead run has left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    return path


def assert_none_left(tag: str, timeout_s: float = PATIENCE_S) -> None:
    """Fail if a process with the tag is still alive after the time; ends it by its id then."""
    eventually(lambda: not tagged(tag), timeout_s)
    left = tagged(tag)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@dataclass
class Ran:
    """What a run of the command left behind."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    report: dict[str, Any] | None = None

    @property
    def last_line(self) -> str:
        return self.stderr.rstrip("\n").rpartition("\n")[2]


def exec_argv(
    cache_dir: Path | str | None, *options: object, command: list[str], cachewatch: Sequence[str] = CACHEWATCH
) -> list[str]:
    """Make the argv of `cachewatch exec`, of the command itself or a changed one."""
    where = [] if cache_dir is None else ["--cache-dir", str(cache_dir)]
    return [*cachewatch, "exec", *where, *map(str, options), "--", *command]


def run(argv: list[str], **options: Any) -> Ran:
    """Run a command to its end; `timeout` is generous unless given."""
    began_s = time.monotonic()
    options = {"timeout": 2 * PATIENCE_S, "errors": "surrogateescape", **options}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - began_s)


def run_exec(cache_dir: Path | str | None, *options: object, command: list[str], **more: Any) -> Ran:
    """Run `cachewatch exec` with a report, to its end."""
    report = Path(more.pop("report_dir", None) or _parent_of(cache_dir)) / f"{new_tag()}.report.json"
    cachewatch = more.pop("cachewatch", CACHEWATCH)
    ran = run(exec_argv(cache_dir, "--report", report, *options, command=command, cachewatch=cachewatch), **more)
    if report.exists():
        ran.report = json.loads(report.read_text())
    return ran


def _parent_of(cache_dir: Path | str | None) -> Path:
    return Path(cache_dir).parent if cache_dir is not None else Path("/tmp")


@contextlib.contextmanager
def running(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command; whatever happens, it has ended and its pipes are closed afterwards."""
    process = subprocess.Popen(
        argv, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace", **options}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait(PATIENCE_S)


def metrics_of(page: str) -> dict[str, float]:
    """Read the values of a page of metrics by series, the label `cache` left out."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
        labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "cache")
        found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def mostly_apart(values: Iterable[T], here: Iterable[T]) -> list[Any]:
    """Make parameters of which `make test` tries only those named here, and `make test-campaigns` the others."""
    kept = [*here]
    return [value if value in kept else pytest.param(value, marks=pytest.mark.campaign) for value in values]


def needs_root(what: str) -> None:
    """Skip a test that needs root, with its reason; in CI, where it must run, fail instead."""
    if os.geteuid() != 0:
        unavailable(f"{what} needs root")


def unavailable(reason: str) -> NoReturn:
    """Skip for a reason; in CI fail, so that a test cannot vanish there unseen."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"must run in CI, but: {reason}")
    pytest.skip(reason)
