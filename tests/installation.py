"""An installation of the package of its own, which a test may remove or replace while a run of it goes on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from support import eventually

ROOT = Path(__file__).parents[1]


class Installation:
    """A copy of the package, for an interpreter that knows no other.

    Args:
        folder: where the copy is made.
    """

    def __init__(self, folder: Path) -> None:
        self.package = folder / "prefect_cachewatch"
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
        """Put another version in its place, of which nothing fits."""
        self.remove()
        shutil.copytree(ROOT / "src" / "prefect_cachewatch", self.package)
        for path in self.package.rglob("*.py"):
            path.write_text("raise ImportError('this is another version')\n")


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
