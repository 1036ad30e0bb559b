"""An installation of the package of its own, which a test may remove or replace while a run of it goes on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from support import eventually

ROOT = Path(__file__).parents[1]
_OTHER = """
with open({told!r}, "a") as told, open("/proc/self/cmdline") as process:
    told.write({module!r} + " in " + process.read().replace(chr(0), " ")[-200:].replace(chr(10), " ") + chr(10))
raise ImportError("this is another version")
"""


class Installation:
    """A copy of the package, for an interpreter that knows no other.

    Args:
        folder: where the copy is made.
    """

    def __init__(self, folder: Path) -> None:
        self.package, self._told = folder / "prefect_cachewatch", folder / "other-version-was-imported"
        shutil.copytree(ROOT / "src" / "prefect_cachewatch", self.package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("flows", "tasks"):
            shutil.copytree(ROOT / name, self.package / name, ignore=shutil.ignore_patterns("__pycache__"))
        libraries = next(path for path in sys.path if path.endswith("site-packages"))
        # The interpreter below the virtual environment: no path file leads it to the checkout.
        self.python = str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))
        self.env = {**os.environ, "PYTHONPATH": f"{folder}:{libraries}"}

    def remove(self) -> None:
        """Remove the package, as an upgrade does first."""
        shutil.rmtree(self.package)

    def replace(self) -> None:
        """Put another version in its place, of which nothing fits, and of which each module tells who imports it."""
        modules = [path.relative_to(self.package) for path in self.package.rglob("*.py")]
        self.remove()
        for module in modules:
            (self.package / module).parent.mkdir(parents=True, exist_ok=True)
            (self.package / module).write_text(_OTHER.format(told=str(self._told), module=str(module)))

    def strangers(self) -> list[str]:
        """List the modules of the other version that any process has imported, each with the process."""
        return self._told.read_text().splitlines() if self._told.exists() else []


def await_copy(pid: int) -> None:
    """Wait until a process has its copy of the package in memory."""

    def copied() -> bool:
        fds = Path(f"/proc/{pid}/fd")
        return any("memfd:cachewatch-sources" in os.readlink(fd) and fd.stat().st_size for fd in fds.iterdir())

    assert eventually(_without_races(copied)), os.listdir(f"/proc/{pid}/fd")


def _without_races(look: Callable[[], bool]) -> Callable[[], bool]:
    def looked() -> bool:
        try:
            return look()
        except FileNotFoundError:  # a descriptor was closed meanwhile
            return False

    return looked


def children(pid: int, title: bytes) -> list[int]:
    """List the children of a process that have a word in their command line."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if title in Path(f"/proc/{one}/cmdline").read_bytes()]
