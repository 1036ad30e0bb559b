"""A parked file is held without its descriptor, or with it where the kernel parks no more."""

import os
import subprocess
import sys
from pathlib import Path

from prefect_cachewatch.common.parked import park, taken

SECOND = """
import resource
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    fd = os.open(sys.executable, os.O_RDONLY)
    kept = park(fd)
    print(kept == fd, os.path.sameopenfile(taken(kept), fd))
else:
    parked = [park(os.open(sys.executable, os.O_RDONLY)) for _ in range(40)]
    os.spawnv(os.P_WAIT, sys.executable, [*sys.orig_argv, "again"])
"""


def test_a_parked_file_is_the_same_and_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    inode = os.fstat(fd).st_ino
    parked = park(fd)
    for _ in range(2):
        again = taken(parked)
        assert os.fstat(again).st_ino == inode
        os.close(again)
    os.close(parked)


def test_where_the_kernel_parks_no_more_the_files_own_descriptor_serves() -> None:
    # The kernel allows a user who is not root as many files in flight as a process may have open.
    who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    python = "/usr/bin/python3" if who else sys.executable  # one that others may run
    source = Path(sys.modules[park.__module__].__file__ or "").read_text() + SECOND
    done = subprocess.run([python, "-I", "-c", source], capture_output=True, text=True, cwd="/", **who)
    assert (done.stdout, done.stderr) == ("True True\n", "")
