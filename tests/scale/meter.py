"""Reads /proc once a second: processor time, memory and number of the test's processes, by what they are."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_EVERY_S = 1.0
_MEMORY_EVERY = 20  # samples: the proportional set size is costly to read
_SETTLED_S = 3.0  # of a watch: the start's own work is not what watching costs
WATCH_ROLES = ("flow", "guard", "scanner")
_TREE = (*WATCH_ROLES, "generator")


@dataclass
class Seen:
    """One process, as long as it was there."""

    role: str
    run: str | None
    parent: tuple[int, int] | None
    cpu: list[tuple[float, float]] = field(default_factory=list)  # (monotonic time, processor seconds so far)
    pss: list[tuple[float, float]] = field(default_factory=list)  # (monotonic time, bytes)


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
        self._samples = 0
        self.loads: list[float] = []
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._machine_s = (0.0, 0.0)
        self.began_s = 0.0
        self.ended_s = 0.0

    def register(self, pid: int, role: str) -> None:
        """Name a service's process; its descendants without a name of their own are counted with it."""
        with self._lock:
            self._roots[pid] = role

    def start(self) -> None:
        """Begin."""
        self.began_s, self._machine_s = time.monotonic(), (_busy_s(), 0.0)
        self._sample()
        self._thread.start()

    def stop(self) -> None:
        """End; the figures can be read. Does nothing where it was never started, or has ended."""
        if self._stop.is_set() or not self.began_s:
            return
        self._stop.set()
        self._thread.join()
        self._sample()
        self.ended_s, self._machine_s = time.monotonic(), (self._machine_s[0], _busy_s())

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        now_s, alive = time.monotonic(), dict[int, tuple[int, int]]()
        with self._lock:
            # In ascending order, so that a parent is mostly seen before its children.
            for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
                text = _read(pid, "stat")
                if not text:
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
                    if self._samples % _MEMORY_EVERY == 0 and (pss := _pss(pid)) is not None:
                        seen.pss.append((now_s, pss))
            self._alive = alive
            self._samples += 1
            self.loads.append(os.getloadavg()[0])

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
        environ, argv = _read(pid, "environ"), _read(pid, "cmdline").rstrip(b"\0")
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

    def machine_busy_s(self) -> float:
        """Processor seconds of the whole machine meanwhile, others' work included."""
        return self._machine_s[1] - self._machine_s[0]

    def watch_shares(self) -> dict[str, list[float]]:
        """Share of a core that each watch took, by role, while its generator was at work."""
        by_run: dict[tuple[int, int], list[Seen]] = defaultdict(list)
        for key, seen in self._seen.items():
            if seen is not None and seen.cpu and seen.role in _TREE:
                by_run[self._top(key)].append(seen)
        shares: dict[str, list[float]] = {role: [] for role in WATCH_ROLES}
        for members in by_run.values():
            work = [seen for seen in members if seen.role == "generator"]
            if not work:
                continue
            begin_s = min(seen.cpu[0][0] for seen in work) + _SETTLED_S
            end_s = max(seen.cpu[-1][0] for seen in work)
            for role in WATCH_ROLES:
                spent_s, took_s = 0.0, 0.0
                for seen in members:
                    within = [one for one in seen.cpu if begin_s <= one[0] <= end_s]
                    if seen.role == role and len(within) > 1:
                        spent_s += within[-1][1] - within[0][1]
                        took_s = max(took_s, within[-1][0] - within[0][0])
                if took_s > 5:
                    shares[role].append(spent_s / took_s)
        return shares

    def watched_s(self) -> float:
        """Seconds that generators were at work, summed over the runs; the daemons that some leave are not counted twice."""
        spans: dict[tuple[int, int], list[float]] = defaultdict(list)
        for key, seen in self._seen.items():
            if seen is not None and seen.role == "generator":
                spans[self._top(key)] += [seen.cpu[0][0], seen.cpu[-1][0]]
        return sum(max(span) - min(span) for span in spans.values())

    def memory(self, role: str) -> dict[str, float]:
        """Proportional set sizes of a role's processes, in bytes: the median of all readings and the largest."""
        values = [pss for seen in self._seen.values() if seen is not None and seen.role == role for _, pss in seen.pss]
        return _spread(values)

    def memory_of_runs(self) -> dict[str, float]:
        """The same of all processes of a run together, the generator's not, while the generator is there."""
        totals: dict[tuple[tuple[int, int], float], float] = defaultdict(float)
        at_work = set()
        for key, seen in self._seen.items():
            if seen is not None and seen.role in _TREE:
                for now_s, pss in seen.pss:
                    place = (self._top(key), now_s)
                    if seen.role == "generator":
                        at_work.add(place)
                    else:
                        totals[place] += pss
        return _spread([total for place, total in totals.items() if place in at_work])

    def most_at_once(self, role: str) -> int:
        """How many processes of a role there were at once, at most."""
        at: dict[float, int] = defaultdict(int)
        for seen in self._seen.values():
            if seen is not None and seen.role == role:
                for now_s, _ in seen.cpu:
                    at[now_s] += 1
        return max(at.values(), default=0)


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "most": max(values)} if values else {}


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def spent_s(pid: int) -> tuple[float, float]:
    """Processor seconds of a process, and of those of its children that it has waited for; zeros if it is gone."""
    words = _read(pid, "stat").rpartition(b") ")[2].split()
    ticks = [int(word) for word in words[11:15]] or [0] * 4
    return sum(ticks[:2]) * _TICK_S, sum(ticks[2:]) * _TICK_S


def tree_of(pid: int) -> list[int]:
    """List a process and its living descendants."""
    children = _read(pid, f"task/{pid}/children").split()
    return [pid, *(one for child in children for one in tree_of(int(child)))]


def _pss(pid: int) -> float | None:
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024.0
    return None


def _busy_s() -> float:
    with open("/proc/stat") as file:
        words = [int(word) for word in file.readline().split()[1:]]
    user, nice, system, _idle, _wait, interrupts, soft = words[:7]
    return (user + nice + system + interrupts + soft) * _TICK_S
