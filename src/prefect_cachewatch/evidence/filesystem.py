"""Facts about file systems, read in a way that cannot hang the caller.

The mount table is read here, since /proc/self/mountinfo never blocks; everything else is
asked in a child process that is given up, never waited for, when it does not answer in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_cachewatch.common.mounts import Mount, mount_of, read_mounts
from prefect_cachewatch.evidence.fsprobe import BEGUN, answer_questions
from prefect_cachewatch.evidence.model import FilesystemFacts
from prefect_cachewatch.supervise.helper_client import IMPORT_FROM
from prefect_cachewatch.supervise.proc import read_stat

_OTHERS_MAX = 6
_HELPER_LATE = "not known: the helper that asks was late"
# Children that hang in a file system, by mount point: they cannot be killed, only remembered.
_STUCK: dict[str, _Child] = {}


@dataclass
class _Child:
    """A process that asks, its pipes, and its answers so far."""

    pid: int
    asking: int
    answering: int
    process: subprocess.Popen[bytes] | None = None
    said: bytearray = field(default_factory=bytearray)


@dataclass
class FilesystemProbe:
    """Asks about cache directories and open files, one child for each mount, all at the same time.

    Args:
        cache_dirs: absolute directories, not resolved: resolving would touch them.
    """

    cache_dirs: Sequence[str]
    _children: dict[str, _Child] = field(default_factory=dict)
    _facts: dict[str, FilesystemFacts] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        mounts = read_mounts()
        self._facts = {path: _facts_of(path, mount_of(path, mounts)) for path in self.cache_dirs}

    def prepare(self) -> None:
        """Make the children, which do not touch a file system before they are asked; best while there is one thread."""
        for point in dict.fromkeys([*(facts.mount_point for facts in self._facts.values()), ""]):
            if not _is_stuck(point):  # never a second child while one hangs: the missing answer is the result
                with contextlib.suppress(OSError):
                    self._children[point] = _make_child()

    def start(self, files: Mapping[str, str]) -> None:
        """Start to ask; `files` are key -> path, and have a child of their own."""
        for point, child in self._children.items():
            dirs = [facts.path for facts in self._facts.values() if point and facts.mount_point == point]
            _ask(child, {"dirs": dirs, "files": [] if point else list(files.items())})

    def wait(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for the answers.

        Args:
            deadline: on `clock`; a child that is late is given up.
            clock: monotonic seconds.
        """
        with selectors.DefaultSelector() as selector:
            for child in self._children.values():
                os.set_blocking(child.answering, False)
                selector.register(child.answering, selectors.EVENT_READ, child.said)
            while selector.get_map() and (left := deadline - clock()) > 0:
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data.extend(chunk)
                    else:
                        selector.unregister(key.fileobj)

    def finish(self) -> dict[str, dict[str, Any]]:
        """Take the answers, and leave the children behind.

        Returns:
            Directory or file key -> answer; a key without an answer is missing.
        """
        answers: dict[str, dict[str, Any]] = {}
        for point, child in self._children.items():
            os.set_blocking(child.answering, False)
            with contextlib.suppress(OSError):
                while chunk := os.read(child.answering, 1 << 16):
                    child.said.extend(chunk)
            said = [json.loads(line) for line in bytes(child.said).split(b"\n")[:-1]]
            if all(key != BEGUN for key, _ in said) or _state_of(child) == "R":
                self._late.add(point)
            answers.update((key, answer) for key, answer in said if key != BEGUN)
            _give_up_or_reap(point, child)
        self._children.clear()
        return answers

    def facts(self, answers: Mapping[str, Mapping[str, Any]]) -> tuple[FilesystemFacts, ...]:
        """Join mount table and answers; a directory without one did not respond, unless its child itself was late."""
        joined = []
        for path, facts in self._facts.items():
            answer = answers.get(path)
            if answer is None and facts.mount_point in self._late:
                joined.append(replace(facts, error=_HELPER_LATE))
            elif answer is None:
                joined.append(replace(facts, responded=False, error="no answer in time"))
            else:
                known = {key: value for key, value in answer.items() if key != "errno"}
                joined.append(replace(facts, **known))
        return tuple(joined)


def find_other_mounts(places: Sequence[str], cache_dirs: Sequence[str]) -> list[str]:
    """Find the mount points of some places that are on other file systems than the cache directories; none is touched.

    Args:
        places: absolute paths.
        cache_dirs: likewise.

    Returns:
        Mount points, a few at most; of file systems that can be written to.

    Example:
        >>> find_other_mounts(["/", "/proc/self"], ["/"])
        ['/proc']
    """
    mounts = read_mounts()
    own = {mount.mount_point for path in cache_dirs if (mount := mount_of(path, mounts)) is not None}
    found = (mount_of(path, mounts) for path in places if path.startswith("/"))
    others = dict.fromkeys(mount.mount_point for mount in found if mount is not None and not mount.read_only)
    return [point for point in others if point not in own][:_OTHERS_MAX]


def _make_child() -> _Child:
    if threading.active_count() > 1:  # a fork would copy the other threads' locks, and no thread to release them
        code = (
            f"import sys;sys.path.append({IMPORT_FROM!r});from {answer_questions.__module__} import answer_questions;"
            "answer_questions(sys.stdin.buffer.readline(),1)"
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        assert process.stdin is not None and process.stdout is not None
        return _Child(process.pid, os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()), process)
    # A new interpreter may be on the very file system that hangs.
    asked, asking = os.pipe2(os.O_CLOEXEC)
    answering, answered = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            low, high = sorted((asked, answered))
            # All other descriptors are closed: another child's pipe must show its end even while this child hangs.
            for first, last in ((3, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(first, last)
            os.chdir("/")
            with open(asked, "rb") as questions:
                answer_questions(questions.readline(), answered)
        finally:
            os._exit(0)
    os.close(asked)
    os.close(answered)
    return _Child(pid, asking, answering)


def _ask(child: _Child, question: dict[str, Any]) -> None:
    # Written without a wait: a question that does not fit the pipe is cut rather than waited for.
    os.set_blocking(child.asking, False)
    payload = json.dumps(question).encode()
    while len(payload) > 60_000 and question["files"]:
        question = {**question, "files": question["files"][: len(question["files"]) // 2]}
        payload = json.dumps(question).encode()
    with contextlib.suppress(OSError):
        os.write(child.asking, payload + b"\n")
    _hang_up(child)


def _hang_up(child: _Child) -> None:
    if child.asking >= 0:
        os.close(child.asking)
        child.asking = -1
        if child.process is not None and child.process.stdin is not None:
            child.process.stdin.close()


def _give_up_or_reap(point: str, child: _Child) -> None:
    _hang_up(child)
    os.close(child.answering)
    if child.process is not None and child.process.stdout is not None:
        child.process.stdout.close()
    end_s = time.monotonic() + 0.02
    if not _has_ended(child):
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)
    while not (ended := _has_ended(child)) and time.monotonic() < end_s:
        time.sleep(0.002)
    if not ended:
        _STUCK[point] = child


def _has_ended(child: _Child) -> bool:
    if child.process is not None:
        return child.process.poll() is not None
    try:
        return os.waitpid(child.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _state_of(child: _Child) -> str:
    """Whether a child runs or waits for a processor, and so does not wait for a file system."""
    found = read_stat(child.pid)
    return found.state if found is not None else ""


def _is_stuck(point: str) -> bool:
    if point in _STUCK and _has_ended(_STUCK[point]):
        del _STUCK[point]
    return point in _STUCK


def _facts_of(path: str, mount: Mount | None) -> FilesystemFacts:
    if mount is None:
        return FilesystemFacts(path)
    return FilesystemFacts(path, mount.type, mount.source, mount.mount_point, mount.options)
