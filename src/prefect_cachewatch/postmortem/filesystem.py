"""Facts about file systems that cannot hang the one who asks.

The mount table is read here, since /proc/self/mountinfo never blocks; everything else is
asked in a child process that is given up, never waited for, when it does not answer in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect_cachewatch.postmortem.model import FilesystemFacts
from prefect_cachewatch.postmortem.proctree import read_proc

__all__ = ["FilesystemProbe", "find_mount", "parse_mountinfo"]

_SCRIPT = Path(__file__).with_name("fsprobe.py")
_QUOTA_OPTIONS = ("quota", "usrquota", "uquota", "usrjquota", "prjquota", "pquota", "grpquota")
# Children stuck in a hung file system, by mount point: they cannot be killed, only remembered.
_STUCK: dict[str, subprocess.Popen[bytes]] = {}


def parse_mountinfo(text: str) -> list[FilesystemFacts]:
    """Read /proc/self/mountinfo (proc_pid_mountinfo(5)) in its order, later mounts hide earlier ones.

    Example:
        >>> parse_mountinfo("22 1 0:20 / /mnt/a\\\\040b ro,nosuid - tmpfs none rw,size=1m")[0].mount_point
        '/mnt/a b'
    """
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 2:
            continue
        own, of_super = left[5].split(","), (right[2].split(",") if len(right) > 2 else [])
        options = [*own, *(option for option in of_super if option not in own)]
        if "ro" in options:  # read-only at either level is read-only
            options = [option for option in options if option != "rw"]
        point = _unescape(left[4])
        mounts.append(FilesystemFacts(point, right[0], _unescape(right[1]), point, tuple(options)))
    return mounts


def find_mount(path: str, mounts: Sequence[FilesystemFacts]) -> FilesystemFacts:
    """Find the mount that a path lies on, by its name alone; facts without a type if there is none.

    Example:
        >>> find_mount("/a/b", parse_mountinfo("1 0 8:1 / / rw - ext4 /dev/vda rw")).type
        'ext4'
    """
    best = FilesystemFacts(path)
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(point) >= len(best.mount_point.rstrip("/")):
            best = mount
    return replace(best, path=path)


@dataclass
class FilesystemProbe:
    """Asks about cache directories and open files, one child for each mount, all at the same time.

    Args:
        cache_dirs: absolute directories, not resolved: resolving would touch them.
        uid: whose quota is asked for.
        spawn: starts the child; a test may give its own.
    """

    cache_dirs: Sequence[str]
    uid: int = 0
    spawn: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    _children: list[tuple[str, subprocess.Popen[bytes], bytearray]] = field(default_factory=list)
    _facts: dict[str, FilesystemFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mounts = parse_mountinfo(os.fsdecode(read_proc("/proc/self/mountinfo", 4 << 20)))
        self._facts = {path: find_mount(path, mounts) for path in self.cache_dirs}

    def start(self, files: Mapping[str, str]) -> None:
        """Start to ask; `files` are key -> path, those on a cache's mount are asked after its directories."""
        points = dict.fromkeys(facts.mount_point for facts in self._facts.values())
        for point in points:
            dirs = [[f.path, _quota_source(f), self.uid] for f in self._facts.values() if f.mount_point == point]
            self._start_child(point, {"dirs": dirs, "files": []})
        if files:
            self._start_child("", {"dirs": [], "files": list(files.items())})

    def finish(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> dict[str, dict[str, Any]]:
        """Wait for the answers until the deadline; a child that is late is given up.

        Args:
            deadline: on `clock`.
            clock: monotonic seconds.

        Returns:
            Directory or file key -> answer; what did not answer is not there.
        """
        with selectors.DefaultSelector() as selector:
            for _, child, buffer in self._children:
                assert child.stdout is not None
                os.set_blocking(child.stdout.fileno(), False)
                selector.register(child.stdout, selectors.EVENT_READ, buffer)
            while selector.get_map() and (left := deadline - clock()) > 0:
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data.extend(chunk)
                    else:
                        selector.unregister(key.fileobj)
        answers: dict[str, dict[str, Any]] = {}
        for point, child, buffer in self._children:
            for line in bytes(buffer).split(b"\n")[:-1]:
                key_, answer = json.loads(line)
                answers[key_] = answer
            _give_up_or_reap(point, child)
        self._children.clear()
        return answers

    def facts(self, answers: Mapping[str, Mapping[str, Any]]) -> tuple[FilesystemFacts, ...]:
        """Join the mount table with the answers; a directory without one did not respond."""
        joined = []
        for path, facts in self._facts.items():
            answer = answers.get(path)
            if answer is None:
                joined.append(replace(facts, responded=False, error="no answer in time"))
            else:
                known = {key: value for key, value in answer.items() if key != "errno"}
                joined.append(replace(facts, **known))
        return tuple(joined)

    def _start_child(self, point: str, question: Mapping[str, Any]) -> None:
        stuck = _STUCK.get(point)
        if stuck is not None:
            if stuck.poll() is None:
                return  # never a second child while one is stuck: no answer is the answer
            del _STUCK[point]
        try:
            child = self.spawn(
                [sys.executable, "-I", "-S", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            return
        assert child.stdin is not None
        # Written without a wait: a question that does not fit the pipe is cut rather than waited for.
        os.set_blocking(child.stdin.fileno(), False)
        payload = json.dumps(question).encode()
        while len(payload) > 60_000 and question["files"]:
            question = {**question, "files": question["files"][: len(question["files"]) // 2]}
            payload = json.dumps(question).encode()
        with contextlib.suppress(OSError):
            os.write(child.stdin.fileno(), payload)
        child.stdin.close()
        self._children.append((point, child, bytearray()))


def _give_up_or_reap(point: str, child: subprocess.Popen[bytes]) -> None:
    if child.stdout is not None:
        child.stdout.close()
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.02)
    if child.returncode is None:
        _STUCK[point] = child


def _quota_source(facts: FilesystemFacts) -> str:
    return facts.source if any(option.split("=")[0] in _QUOTA_OPTIONS for option in facts.options) else ""


def _unescape(field_: str) -> str:
    if "\\" not in field_:
        return field_
    raw = os.fsencode(field_)
    for code in (b"\\040", b"\\011", b"\\012", b"\\134"):
        raw = raw.replace(code, bytes([int(code[1:], 8)]))
    return os.fsdecode(raw)
