"""A Prefect database as a server leaves a new one, made once: its migrations cost 4 s of CPU each time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

MADE = Path(__file__).parents[1] / "build/prefect-databases"
MAKES = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


@contextlib.contextmanager
def harness() -> Iterator[None]:
    """Have Prefect's test harness with such a database, for flows that run in this process."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing import utilities  # 2 s of CPU, for those who want it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilities, "mkdtemp", lambda: str(fresh_home(Path(tempfile.mkdtemp()), "prefect-test.db")))
        # A flow's end waits a second for its heartbeat thread, and no test here needs it.
        with utilities.prefect_test_harness(180), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield


def fresh_home(home: Path, name: str = "prefect.db") -> Path:
    """Put a database into a new PREFECT_HOME, so that no server there begins with the migrations; returns the home."""
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_template(), home / name)
    return home


def _template() -> Path:
    """The database of this version of Prefect, which several workers of pytest may ask for at once.

    Were it an older one, a server would only migrate its copy.
    """
    made = MADE / f"{version('prefect')}.db"
    MADE.mkdir(parents=True, exist_ok=True)
    with (MADE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            home = MADE / "home"
            shutil.rmtree(home, ignore_errors=True)  # of one that was broken off
            plain = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
            subprocess.run([sys.executable, "-c", MAKES], env=plain | {"PREFECT_HOME": str(home)}, check=True)
            (home / "prefect.db").rename(made)  # closed: SQLite has put its log into the file
            shutil.rmtree(home)
    return made
