"""`make scale`: a fleet of guarded generations on a real server and real workers; figures to a JSON file.

usage: python -m tests.scale [--runs 200] [--workers 4] [--limit 4] [--seconds 20] [--output FILE]

The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch import __version__
from tests.benchmarks.measuring import machine_facts
from tests.scale.campaign import Campaign, Plan
from tests.scale.services import MissingPart, find_parts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test and write what came of it.

    Args:
        argv: arguments; default the command line's.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="make scale", description="a fleet on a real server and real workers")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--limit", type=int, default=4, help="runs at once of a worker")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a generator works")
    parser.add_argument("--output", type=Path, default=Path("build/scale.json"), help="file for the figures")
    args = parser.parse_args(argv)
    if args.runs < 12 or args.workers < 2 or args.limit < 2 or args.seconds < 5:
        parser.error("too small to be broken: at least 12 runs of 5 seconds, on 2 workers of 2 runs each")
    try:
        find_parts()
    except MissingPart as error:
        print(f"make scale: {error}", file=sys.stderr)
        return 2
    # A service manager's or an impatient person's end is one that cleans up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    data = _fleet(args)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(data, indent=1) + "\n")
    print(*data["events"], f"written to {args.output}", sep="\n", file=sys.stderr)
    if data["problems"]:
        print(f"{len(data['problems'])} promises were broken:", *data["problems"], sep="\n- ", file=sys.stderr)
        return 1
    return 0


def _fleet(args: argparse.Namespace) -> dict[str, Any]:
    slots = max(1, args.workers * args.limit - 2)  # two fewer than runs at once, so that some wait
    plan = Plan(runs=args.runs, workers=args.workers, limit=args.limit, seconds=args.seconds, slots=slots)
    began = datetime.now(UTC)
    result = Campaign(plan).run()
    return {
        "started_at": began.isoformat(timespec="seconds"),
        "cachewatch_version": __version__,
        "machine": machine_facts() | _versions(find_parts()),
        "problems": result.problems,
        "happened": result.happened,
        "states": result.states,
        "events": result.events,
        "figures": result.figures,
    }


def _versions(parts: dict[str, str]) -> dict[str, str]:
    def said(name: str) -> str:
        text = subprocess.run([parts[name], "--version"], capture_output=True, text=True, check=True).stdout
        return next((w.removeprefix("v=") for w in text.split() if w.removeprefix("v=")[0].isdigit()), text.strip())

    return {
        "prefect": importlib.metadata.version("prefect"),
        "prefect_redis": importlib.metadata.version("prefect-redis"),
        "postgresql": said("postgres"),
        "redis": said("redis-server"),
    }


if __name__ == "__main__":
    sys.exit(main())
