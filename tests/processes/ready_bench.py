"""What the tests of servers share: a cache directory, a port, a state directory, and an end for whatever was started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import CACHEWATCH, Ran, new_tag, run, run_exec, tagged

SERVER = str(Path(__file__).with_name("ready_server.py"))
QUICK = [
    "--stall-after",
    "0.8s",
    "--first-write-within",
    "4s",
    "--poll",
    "0.2s",
    "--grace",
    "1s",
]


class Bench:
    """A cache directory, a port, a state directory, and servers that are ended whatever a test does."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache, self.tag = root, root / "cache", new_tag()
        self.state = root / "state"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/health"
        self.env = {**os.environ, "CACHEWATCH_STATE": str(self.state)}

    def command(self, **plan: Any) -> list[str]:
        return [sys.executable, "-I", "-S", SERVER, str(self.cache), str(self.port), json.dumps(plan), self.tag]

    def options(self, ready: str | None = None, *more: object) -> list[object]:
        return ["--ready", ready or f"http={self.url}", *QUICK, *more]

    def exec(self, *more: object, ready: str | None = None, **plan: Any) -> Ran:
        return run_exec(self.cache, *self.options(ready, *more), command=self.command(**plan), env=self.env)

    def cachewatch(self, *arguments: str) -> Ran:
        return run([*CACHEWATCH, *arguments], env=self.env)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.state / "servers").glob("*.json"))]

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def run_files(self) -> list[Path]:
        return list((self.state / "runs").glob("*.run"))


@contextlib.contextmanager
def made_bench(root: Path) -> Iterator[Bench]:
    """Make a bench; nothing that it has started is left afterwards."""
    made = Bench(root)
    try:
        yield made
    finally:
        for pid in tagged(made.tag):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
