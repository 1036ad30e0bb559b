"""The mount table from /proc/self/mountinfo, which never blocks, whatever the file systems do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "mount_of", "parse_mountinfo", "read_mounts"]

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
    "gluster",
    "virtiofs",
    "wekafs",
)


@dataclass(frozen=True)
class Mount:
    """One line of the mount table."""

    mount_point: str
    fs_type: str
    source: str
    options: str

    @property
    def is_network(self) -> bool:
        """Whether another clock than ours may stamp its files."""
        return self.fs_type.startswith(_NETWORK)

    @property
    def read_only(self) -> bool:
        return "ro" in self.options.split(",")


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse the text of a mountinfo file (proc_pid_mountinfo(5)).

    Args:
        text: the file's text.

    Returns:
        The mounts, in mount order: a later one hides an earlier one on the same point.

    Example:
        >>> parse_mountinfo("36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/sda rw").pop().mount_point
        '/mnt'
    """
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        mounts.append(Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]), f"{fields[5]},{rest[2]}"))
    return mounts


def read_mounts() -> list[Mount]:
    """Read this process's mount table; empty where there is none."""
    try:
        return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return []


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Find the mount that a resolved absolute path lies on.

    Args:
        path: absolute, without symbolic links.
        mounts: the table, in mount order.

    Returns:
        The mount with the longest matching point, the latest of equals.
    """
    best: Mount | None = None
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        inside = path == point or path.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best.mount_point.rstrip("/"))):
            best = mount
    return best


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
