"""Watches live generators for hours: `python -m tests.standing_hours --generators 40 --minutes 30`.

Each is a real program under the real `cachewatch exec --prove-after`, silent for longer than that again and again. It
waits for something of its own (a timer, a child, a pool) or for something outside (this program). Any that is said to
be dead is a false proof. Prints the hours, the looks and the proofs; the exit status is 1 if there was a false one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.cli.main import main as cachewatch
from prefect_cachewatch.postmortem.examination import PostMortem
from prefect_cachewatch.watching.proving import Seen
from tests.standing_waits import HEAD, KINDS, Outside

_LOOKS = "STANDING_HOURS_LOOKS"
_LOOP = """
if __name__ == '__main__':  # not in what multiprocessing starts anew
    while time.monotonic() < end:
        write()
        pause()
    write()
"""


@dataclass
class _Generator:
    """One live generator under cachewatch, and what goes on outside for it."""

    kind: str
    here: Path
    process: subprocess.Popen[bytes]
    outside: Outside | None


def main() -> int:
    """Run generators of all kinds side by side, and say what came of it."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--generators", type=int, default=len(KINDS))
    asked.add_argument("--minutes", type=float, default=30)
    asked.add_argument("--prove-after", default="3s")
    asked.add_argument("--poll", default="3s")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--kind", action="append", choices=list(KINDS), help="only these kinds")
    options = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds = options.kind or list(KINDS)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="standing-") as top:
        running: list[_Generator] = []
        try:
            for number in range(options.generators):
                kind = kinds[number % len(kinds)]
                running.append(_start(kind, Path(top, str(number)), options, options.seed + number))
            watched_s = [_end(generator) for generator in running]
        finally:
            for generator in running:
                generator.process.terminate()  # does nothing to one that has ended
                generator.process.wait()
        broken = [told for generator in running if (told := _judge(generator))]
        looks = [line for generator in running for line in _looks_of(generator.here)]
    _print(watched_s, looks, broken, time.monotonic() - began_s)
    return 1 if broken else 0


def _start(kind: str, here: Path, options: argparse.Namespace, seed: int) -> _Generator:
    here.mkdir()
    code, outside = KINDS[kind]
    (here / "generator.py").write_text(HEAD + code + _LOOP)
    argv = [sys.executable, "-m", "tests.standing_hours", "exec", "--cache-dir", str(here / "cache")]
    argv += ["--prove-after", options.prove_after, "--poll", options.poll, "--stall-after", "10m", "--no-bundle"]
    argv += ["--report", str(here / "report.json"), "--quiet", "--"]
    argv += [sys.executable, "-S", str(here / "generator.py"), str(here), str(60 * options.minutes), str(seed)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=(here / "errors").open("wb"),
        env={**os.environ, _LOOKS: str(here / "looks")},
    )  # fmt: skip
    beside = Outside(here, process, random.Random(seed)) if outside else None
    if beside is not None and outside is not None:
        threading.Thread(target=_act, args=(outside, beside), daemon=True).start()
    until_s = time.monotonic() + 60
    while not (here / "cache" / "1").exists() and process.poll() is None and time.monotonic() < until_s:
        time.sleep(0.1)  # not all at once: a start takes a second of a core
    return _Generator(kind, here, process, beside)


def _act(outside: Callable[[Outside], None], beside: Outside) -> None:
    try:
        outside(beside)
    except OSError as error:
        time.sleep(5)  # it may be ending
        if beside.process.poll() is None:
            beside.failed = f"{type(error).__name__}: {error}"


def _end(generator: _Generator) -> float:
    generator.process.wait()
    try:
        return float(json.loads((generator.here / "report.json").read_text())["duration_s"])
    except (OSError, ValueError, KeyError):
        return 0.0


def _judge(generator: _Generator) -> str:
    """Say what is wrong with the end of a live generator; empty if nothing is."""
    try:
        report = json.loads((generator.here / "report.json").read_text())
    except (OSError, ValueError):
        report = {"outcome": "no report", "message": ""}
    proven = [line for line in _looks_of(generator.here) if line.startswith("proven")]
    failed = generator.outside.failed if generator.outside is not None else ""
    if report["outcome"] == "completed" and not proven and not failed:
        return ""
    errors = (generator.here / "errors").read_text(errors="replace")[-1000:]
    return f"{generator.kind}: {report['outcome']}: {report['message']} {proven} {failed}\n{errors}"


def _looks_of(here: Path) -> list[str]:
    try:
        return (here / "looks").read_text().splitlines()
    except OSError:
        return []


def _print(watched_s: list[float], looks: list[str], broken: list[str], took_s: float) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    reasons = collections.Counter(re.sub(r"\d+", "N", line) for line in looks)
    for reason, count in reasons.most_common():
        print(f"{count:7d} {reason}")
    for each in broken:
        print(f"BROKEN {each}")
    costs = sorted(float(line.split()[1]) for line in looks)
    ended = [line for line in looks if "could not be looked at" not in line]
    print(
        f"{len(watched_s)} generators, {sum(watched_s) / 3600:.1f} hours, {len(looks)} looks, {len(ended)} of them to their end, "
        f"{sum(line.startswith('proven') for line in looks)} false proofs; {sum(costs) / max(1, len(costs)) * 1000:.0f} ms of a "
        f"core each, {costs[-1] * 1000 if costs else 0:.0f} ms at most; all together took "
        f"{(used.ru_utime + used.ru_stime) / took_s:.2f} cores"
    )


def _exec(argv: list[str]) -> None:
    """Run `cachewatch`, and write down each look."""
    prove = PostMortem.prove

    def prove_and_tell(self: PostMortem, roots: list[int], include_roots: bool, earlier: bytes) -> Seen:
        seen = prove(self, roots, include_roots, earlier)
        what = "proven" if seen.waits else "second" if earlier else "first"
        with open(os.environ[_LOOKS], "a") as told:
            told.write(f"{what} {seen.cpu_s or 0:.3f} {seen.why or 'stands still'}\n")
        return seen

    PostMortem.prove = prove_and_tell  # type: ignore[method-assign, assignment]
    sys.argv = ["cachewatch", *argv]
    cachewatch()


if __name__ == "__main__":
    if sys.argv[1:2] == ["exec"]:
        _exec(sys.argv[1:])
    else:
        sys.exit(main())
