"""Reads /proc once a second: processor time of the test's processes, by what they are, and which are there."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from prefect_cachewatch.supervise.turns import read_each

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_EVERY_S = 1.0
_TREE = ("flow", "guard", "scanner", "generator")


@dataclass
class Seen:
    """One process, as long as it was there."""

    role: str
    run: str | None
    parent: tuple[int, int] | None
    cpu: list[tuple[float, float]] = field(default_factory=list)  # (monotonic time, processor seconds so far)


class Meter:
    """Samples until it is stopped.

    Args:
        mark: what the test's processes have in their environment.
        generator: the generator script's path, by which its processes are known.
    """

    def __init__(self, mark: bytes, generator: str) -> None:
        self._mark, self._generator = mark, generator.encode()
        self._roots: dict[int, str] = {}
        self._seen: dict[tuple[int, int], Seen | None] = {}
        self._looks: dict[tuple[int, int], int] = {}
        self._alive: dict[int, tuple[int, int]] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self.began_s = 0.0

    def register(self, pid: int, role: str) -> None:
        """Name a service's process; its descendants without a name of their own are counted with it."""
        with self._lock:
            self._roots[pid] = role

    def start(self) -> None:
        """Begin."""
        self.began_s = time.monotonic()
        self._sample()
        self._thread.start()

    def stop(self) -> None:
        """End; the figures can be read. Does nothing where it was never started, or has ended."""
        if self._stop.is_set() or not self.began_s:
            return
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        now_s, alive = time.monotonic(), dict[int, tuple[int, int]]()
        # In ascending order, so that a parent is mostly seen before its children. A process of another test may hang.
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        stats = read_each(pids, lambda pid: _read(pid, "stat"))
        with self._lock:
            for pid in pids:
                if not (text := stats.get(pid)):
                    continue
                words = text[text.rindex(b")") + 2 :].split()
                if words[0] in b"ZX":
                    continue
                key = alive[pid] = (pid, int(words[19]))
                # Looked at three times: it may have been seen between fork and exec, or before its parent.
                self._looks[key] = self._looks.get(key, 0) + 1
                if self._looks[key] <= 3:
                    self._note(key, self._classify(pid, int(words[1]), alive))
                seen = self._seen.get(key)
                if seen is not None:
                    seen.cpu.append((now_s, (int(words[11]) + int(words[12])) * _TICK_S))
            self._alive = alive

    def _note(self, key: tuple[int, int], fresh: Seen | None) -> None:
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = fresh
        elif fresh is not None:
            seen.role, seen.run, seen.parent = fresh.role, fresh.run, seen.parent or fresh.parent

    def _classify(self, pid: int, parent: int, alive: dict[int, tuple[int, int]]) -> Seen | None:
        if pid in self._roots:
            return Seen(self._roots[pid], None, None)
        link = alive.get(parent)
        above = self._seen.get(link) if link else None
        told = read_each([pid], lambda pid: (_read(pid, "environ"), _read(pid, "cmdline").rstrip(b"\0")))
        environ, argv = told.get(pid, (b"", b""))
        if self._mark not in environ and above is None:
            return None
        run = None
        for entry in environ.split(b"\0"):
            if entry.startswith(b"PREFECT__FLOW_RUN_ID="):
                run = entry.partition(b"=")[2].decode()
        if argv.endswith(b"cachewatch-guard"):
            role = "guard"
        elif argv.endswith(b"cachewatch-scanner"):
            role = "scanner"
        elif self._generator in argv:
            role = "generator"
        elif above is not None and above.role in ("postgres", "redis", "server"):
            role = above.role
        else:
            role = "flow"
        return Seen(role, run, link)

    def _top(self, key: tuple[int, int]) -> tuple[int, int]:
        """The process at the head of a run's tree, as it was when each was first seen: the flow's."""
        while (seen := self._seen.get(key)) is not None and seen.parent is not None:
            above = self._seen.get(seen.parent)
            if above is None or above.role not in _TREE:
                break
            key = seen.parent
        return key

    def running(self) -> dict[str, tuple[int, int]]:
        """List the runs whose generators are alive: pid of the flow process, and of the worker that started it.

        A tree whose head is not known to be a worker's flow process is left out: it may be seen wholly next time.
        """
        found = {}
        with self._lock:
            for key in self._alive.values():
                seen = self._seen.get(key)
                if seen is None or seen.role != "generator" or not seen.run:
                    continue
                top = self._top(key)
                head = self._seen.get(top)
                above = self._seen.get(head.parent) if head is not None and head.parent is not None else None
                if head is not None and head.parent and head.role == "flow" and above and above.role == "worker":
                    found[seen.run] = (top[0], head.parent[0])
        return found

    def helpers(self) -> list[int]:
        """List the guards and scanners that are alive; they carry no mark, and are known by who started them."""
        with self._lock:
            found = {pid: self._seen.get(key) for pid, key in self._alive.items()}
        return [pid for pid, seen in found.items() if seen is not None and seen.role in ("guard", "scanner")]

    def processor_s(self) -> dict[str, float]:
        """Sum the processor seconds by role, from when the meter was started; the last second of a process is missed."""
        total: dict[str, float] = defaultdict(float)
        for seen in filter(None, self._seen.values()):
            if seen.cpu:
                old = seen.cpu[0][0] <= self.began_s + _EVERY_S / 2
                total[seen.role] += seen.cpu[-1][1] - (seen.cpu[0][1] if old else 0.0)
        return dict(total)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
