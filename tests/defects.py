"""`make test-defects`: promises, each broken on purpose, and the rows of the contract that must turn red for it.

Each defect changes one line of a copy of the package, which stands before the installed one on PYTHONPATH; the sources are
not touched. The target fails if a row stays green, or if the line is not there any more: then the defect is written anew.
What else is given picks defects by a word of their promise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "prefect_cachewatch"
TOP = ("flows", "tasks", "deployments")
WITHIN_S = 900


class Defect(NamedTuple):
    """A promise, the line that keeps it, what stands in its place, and the rows that look."""

    promise: str
    file: str
    line: str
    broken: str
    rows: tuple[str, ...]


DEFECTS = (
    Defect("a verdict comes at its window, not two polls later", "watching/stall.py",
           "        return self.pause_s >= self.window_s - _EPSILON_S\n",
           "        return self.pause_s >= self.window_s + 2 * self.poll_s - _EPSILON_S\n",
           ("test_report.py",)),
    Defect("touched files are no growth", "watching/stall.py",
           "        return seen.overwriting_age_s\n", "        return seen.touched_age_s\n", ("test_growth.py",)),
    Defect("writing that keeps nothing is churning", "watching/stall.py",
           "        churning = self._churning(seen)\n", "        churning = False\n", ("test_growth.py", "-k", "no_growth")),
    Defect("the exit code is the command's own", "watching/outcomes.py",
           "        return exit_code or _NEVER_READY\n", "        return _NEVER_READY\n", ("test_exit_statuses.py",)),
    Defect("a signal that ended the command is told by 128+N", "watching/outcomes.py",
           "        return 128 + signal\n", "        return signal\n", ("test_exit_statuses.py",)),
    Defect("an empty cache is no success", "watching/attempt.py",
           '            return "nothing_written", f"', '            return "completed", f"', ("test_exit_statuses.py",)),
    Defect("who ignores SIGTERM is killed", "supervise/stop_tree.py",
           "send_signal(pid, found.start_ticks, signal.SIGKILL)", "send_signal(pid, found.start_ticks, signal.SIGTERM)",
           ("test_survivors.py",)),
    Defect("daemons stay the guard's", "supervise/guard.py",
           "    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # fork inherits neither\n", "",
           ("test_survivors.py",)),
    Defect("a process has its grace period", "supervise/guard.py",
           "        tree, self._kill_by_s = TreeStop(self._look), began + grace_s\n",
           "        grace_s = 0.0\n        tree, self._kill_by_s = TreeStop(self._look), began\n",
           ("test_signals.py", "-k", "grace")),
    Defect("the time for which a run is suspended is none of its own", "cli/signals.py",
           "            return time.monotonic() - self._suspended_s\n", "            return time.monotonic()\n",
           ("test_signals.py", "-k", "suspended")),
    Defect("a lock and its holder are the cause", "evidence/rules.py",
           "    process.waiting_for_lock,\n", "", ("test_causes.py", "-k", "lock")),
    Defect("a stopped process is the cause", "evidence/rules.py",
           "    process.stopped_by_signal,\n", "", ("test_causes.py", "-k", "hang")),
    Defect("secrets are told nowhere", "common/secrets.py",
           '    if "\\x1b[" not in text:\n', '    if text:\n        return text\n    if "\\x1b[" not in text:\n',
           ("test_report.py", "test_bundles.py", "-k", "secret")),
    Defect("reports are their owner's alone", "common/files.py", "PRIVATE = 0o600", "PRIVATE = 0o644",
           ("test_report.py", "test_bundles.py", "-k", "private or owners")),
    Defect("`current` leads to a whole build at every instant", "store/layout.py",
           "        rename_entry(directory_fd, temporary, directory_fd, name)\n    except",
           "        remove_file(directory_fd, name)\n        rename_entry(directory_fd, temporary, directory_fd, name)\n    except",
           ("test_store_kills.py", "test_store_locks.py")),
    Defect("a set without one of its parts is refused", "store/checks.py",
           "        if told := [said for said in looks if said.category == category]:\n",
           "        if told := [said for said in looks if said.category == category != 'incomplete_set']:\n",
           ("test_whole_sets.py",)),
    Defect("one writer at a time", "store/locks.py",
           "lambda fd: take_exclusive(fd, past_readers=past_readers)", "lambda fd: True",
           ("test_store_locks.py", "test_store_cold_starts.py")),
    Defect("a server that does not listen is not ready", "watching/servers/checks.py",
           "            return describe_failure(error)\n", "            return None\n",
           ("test_exit_statuses.py", "test_servers.py", "-k", "server")),
    Defect("generate-N and monitor-N run side by side under their names", "flows/attempts.py",
           'task_run_name=f"monitor-{number}"', 'task_run_name=f"watch-{number}"',
           ("test_prefect_ends.py", "-k", "side_by_side")),
    Defect("so many attempts as were asked for", "run/retry.py",
           "    if attempt >= policy.attempts:\n", "    if attempt > policy.attempts:\n",
           ("test_prefect_retries.py",)),
    Defect("a cause that lasts is not tried again", "run/retry.py",
           "    if lasting:\n        return no(lasting)\n", "", ("test_prefect_retries.py",)),
    Defect("a stall is named Stalled in Prefect", "watching/outcomes.py",
           '    Ending("stalled", "Stalled", STOPPED),\n    *(Ending("stalled", "Stalled", STOPPED',
           '    Ending("stalled", "Stall", STOPPED),\n    *(Ending("stalled", "Stall", STOPPED',
           ("test_prefect_ends.py",)),
)  # fmt: skip


def break_copy(folder: Path, defect: Defect) -> str | None:
    """Copy the package and break one line of it; returns what is wrong with the defect itself."""
    package = folder / "prefect_cachewatch"
    shutil.rmtree(package, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, package, ignore=skip)
    for name in TOP:
        shutil.copytree(ROOT / name, package / name, ignore=skip)
    file = package / defect.file
    source = file.read_text() if file.exists() else ""
    if defect.line not in source:
        return f"its line is not in {defect.file} any more"
    at = source.index(defect.line)
    file.write_text(source[:at] + defect.broken + source[at + len(defect.line) :])
    return None


def try_defect(folder: Path, defect: Defect) -> str:
    """Run its rows; `caught by ROW`, or what went wrong."""
    if (wrong := break_copy(folder, defect)) is not None:
        return wrong
    rows = [f"tests/contract/{row}" if row.endswith(".py") else row for row in defect.rows]
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not campaign", *rows]
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        return f"no row ended within {WITHIN_S} s"
    ends = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in ends]
    if ran.returncode == 1 and failed:
        return f"caught by {failed[0].removeprefix('tests/contract/')}"
    return f"NOT CAUGHT (exit status {ran.returncode})"


def main(words: list[str]) -> int:
    """Try each defect and print the table; returns the exit status."""
    folder = ROOT / "build" / "defects"
    chosen = [defect for defect in DEFECTS if all(word in defect.promise for word in words)]
    caught = 0
    for number, defect in enumerate(chosen, 1):
        result = try_defect(folder, defect)
        caught += result.startswith("caught")
        print(f"{number:2} {defect.promise}: {result}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{caught} of {len(chosen)} caught")
    return 0 if chosen and caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
