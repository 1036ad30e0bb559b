"""Unattended soak: `python -m tests.faults.soak --minutes 10 [--seed N] [--case N]`.

Random faults against random trees, all from one seed, so that a seed (and, with --case, one case of it) can be replayed.
Prints the seed, what was run, and the broken promises, which must be 0.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass

from tests.faults.harness import SHAPES, SLACK_S, Sandbox, helpers_of, living, slack_s
from tests.support import undo_ignored_signals

# With the directory gone the trees' own writer may fail first: its exit code 1 is as true.
FAULTS = ("none", "stall", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "guard", "engine", "engine and guard", "watcher stopped",
          "directory removed", "generator killed", "helpers stopped, SIGTERM", "helpers stopped, SIGKILL")  # fmt: skip
STATUS = {
    "none": (0,), "stall": (124,), "SIGINT": (130,), "SIGTERM": (143,), "SIGHUP": (129,), "SIGKILL": (-9,),
    "guard": (125,), "engine": (125,), "engine and guard": (125,), "watcher stopped": (143,),
    "directory removed": (1, 124), "generator killed": (137,), "helpers stopped, SIGTERM": (143,),
    "helpers stopped, SIGKILL": (-9,),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One random case, wholly said by seed and number."""

    number: int
    fault: str
    shape: str
    grace_s: float
    delay_s: float


def make_case(seed: int, number: int) -> Case:
    """Draw a case; the same for the same seed and number."""
    r = random.Random(f"{seed}/{number}")
    fault, shape = r.choice(FAULTS), r.choice(list(SHAPES))
    if fault == "none":
        shape = "plain"
    return Case(number, fault, shape, r.choice([0.0, 0.2, 0.5]), r.uniform(0, 1.5))


def run_case(case: Case) -> list[str]:
    """Run one case; returns the promises that were broken."""
    box = Sandbox.make(None)
    try:
        return _run(case, box)
    except BaseException as error:  # pytest.fail raises one of its own
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return [f"{type(error).__name__}: {str(error)[:300]}"]
    finally:
        box.close()


def _run(case: Case, box: Sandbox) -> list[str]:
    box.cache_name = "out/cache"
    writes = {"none": 12, "stall": 5}.get(case.fault, -1)
    tag, command = box.tree(case.shape, writes=writes, life_s=3 if case.fault == "none" else 90)
    window = "2s" if case.fault in ("stall", "directory removed") else "20s"
    process = box.guarded(command, window=window, grace=f"{round(case.grace_s * 1000)}ms")
    deadline = time.monotonic() + 40
    while len(living(tag)) < SHAPES[case.shape] and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(case.delay_s if case.fault not in ("none", "stall") else 0)
    _inject(case, box, process.pid, tag)
    broken = []
    if case.fault not in ("none", "stall", "directory removed"):
        # Who looks after stopped helpers looks once a second, and then each after the next.
        limit = time.monotonic() + case.grace_s + slack_s() + 2 * case.fault.startswith("helpers stopped")
        while living(tag) and time.monotonic() < limit:
            time.sleep(0.02)
        if left := living(tag):
            broken.append(f"{len(left)} left after grace + {SLACK_S:g} s")
    code = process.wait(60)
    if left := living(tag):
        broken.append(f"{len(left)} left when the command had ended")
    if code not in STATUS[case.fault]:
        broken.append(f"exit {code}, promised {STATUS[case.fault]}: {box.stderr()[-200:]!r}")
    if "engine" not in case.fault and not box.report_path.exists():
        broken.append("no report")
    runs = box.root / "home" / "state" / "cachewatch" / "runs"
    limit = time.monotonic() + 5
    while runs.is_dir() and os.listdir(runs) and time.monotonic() < limit:
        time.sleep(0.02)
    if runs.is_dir() and os.listdir(runs):
        broken.append("a state file stayed")
    return broken


def _inject(case: Case, box: Sandbox, pid: int, tag: str) -> None:
    if case.fault in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"):
        os.kill(pid, getattr(signal, case.fault))
    elif case.fault.startswith("helpers stopped"):
        pids = helpers_of(pid)
        for one in {0: pids[:1], 1: pids[1:], 2: pids}[case.number % 3]:
            os.kill(one, signal.SIGSTOP)
        os.kill(pid, getattr(signal, case.fault.partition(", ")[2]))
    elif case.fault.endswith(("guard", "engine")):
        engine, guard = helpers_of(pid)
        pids = {"engine": [engine], "guard": [guard], "engine and guard": [engine, guard]}[case.fault]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for one in pids:
                os.kill(one, number)
    elif case.fault == "watcher stopped":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
    elif case.fault == "directory removed":
        box.cache.rename(box.root / "away")
    elif case.fault == "generator killed":
        _, guard = helpers_of(pid)
        leader = int(open(f"/proc/{guard}/task/{guard}/children").read().split()[0])
        os.kill(leader, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", type=int, default=None, help="replay this case only")
    options = parser.parse_args()
    undo_ignored_signals()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    end_s = time.monotonic() + options.minutes * 60
    counts: Counter[str] = Counter()
    broken_cases = 0
    numbers = [options.case] if options.case is not None else range(1_000_000)
    for number in numbers:
        if options.case is None and time.monotonic() > end_s:
            break
        case = make_case(seed, number)
        broken = run_case(case)
        counts[case.fault] += 1
        broken_cases += bool(broken)
        for text in broken:
            print(f"BROKEN {case}: {text}\n  replay: make soak SEED={seed} CASE={number}", flush=True)
    for fault, count in sorted(counts.items()):
        print(f"{count:6d}  {fault}")
    print(f"seed {seed}: {sum(counts.values())} cases, {broken_cases} with broken promises")
    return 1 if broken_cases else 0


if __name__ == "__main__":
    sys.exit(main())
