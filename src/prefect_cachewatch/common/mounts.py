"""Reads the mount table from /proc/self/mountinfo, which never blocks, even if a file system hangs.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prefect_cachewatch.common.tuples import NamedTuple

MOUNT_TABLE = "/proc/self/mountinfo"
_LIMIT_BYTES = 4 << 20
# Prefixes: they match nfs4, smb3 and fuse.sshfs too. `fuseblk` is a disk of this machine.
_NETWORK = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "gluster", "gpfs", "lustre", "nfs", "ocfs2", "orangefs",
    "pvfs2", "smb", "virtiofs", "wekafs",
)  # fmt: skip
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\"))


class Mount(NamedTuple):
    """One line of the mount table."""

    number: str
    mount_point: str
    type: str
    source: str
    #: Options of the mount, then of the file system below it; without `rw` if either is read-only.
    options: tuple[str, ...]
    #: Major and minor number of the device.
    device: str = ""

    @property
    def is_network(self) -> bool:
        """Whether other machines share its files, and may stamp them with a different clock."""
        return is_network_type(self.type)

    @property
    def read_only(self) -> bool:
        """Whether the mount or the file system below it is read-only."""
        return "ro" in self.options


def is_network_type(name: str) -> bool:
    """Say whether a file system type is one that other machines share.

    Example:
        >>> is_network_type("fuse.sshfs"), is_network_type("fuseblk")
        (True, False)
    """
    return name.startswith(_NETWORK) and name != "fuseblk"


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse the text of a mountinfo file (proc_pid_mountinfo(5)).

    Args:
        text: the file's text.

    Returns:
        The mounts, in mount order: a later one hides an earlier one on the same point.

    Example:
        >>> parse_mountinfo("36 35 98:0 / /mnt/a\\\\040b rw,noatime master:1 - ext4 /dev/sda rw").pop().mount_point
        '/mnt/a b'
    """
    mounts = []
    for line in text.split("\n"):
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 2:
            continue
        options = tuple(dict.fromkeys(",".join((left[5], *right[2:3])).split(",")))
        if "ro" in options:
            options = tuple(option for option in options if option != "rw")
        mounts.append(Mount(left[0], _unescape(left[4]), right[0], _unescape(right[1]), options, left[2]))
    return mounts


def read_mounts(path: str | os.PathLike[str] = MOUNT_TABLE) -> list[Mount]:
    """Read a mount table, by default this process's; empty if there is none."""
    try:
        with open(path, "rb") as file:
            return parse_mountinfo(file.read(_LIMIT_BYTES).decode("utf-8", "surrogateescape"))
    except OSError:
        return []


def is_in(path: str, directory: str) -> bool:
    """Say by their names whether a path is a directory or below it; both are absolute.

    Example:
        >>> is_in("/mnt/a/b", "/mnt/a/"), is_in("/mnt/ab", "/mnt/a"), is_in("/mnt", "/")
        (True, False, True)
    """
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Find the mount that an absolute path lies on, by its name alone; the file system is not asked.

    Args:
        path: absolute, without symbolic links.
        mounts: the table, in mount order.

    Returns:
        The mount with the longest matching mount point; of equal ones the latest.
    """
    best: Mount | None = None
    for mount in mounts:
        length = len(mount.mount_point.rstrip("/"))
        if is_in(path, mount.mount_point) and (best is None or length >= len(best.mount_point.rstrip("/"))):
            best = mount
    return best


def storage_of(path: str, host: str) -> tuple[str, str]:
    """Name the storage that a directory lies on: a server's export, or a device of one host.

    Args:
        path: absolute, resolved; its file system is not asked.
        host: name of this machine, which the key of a local device begins with.

    Returns:
        A key, the same for all who share it, and what people are told.

    Example:
        >>> key, told = storage_of("/proc", "host")
        >>> key.startswith("host:"), told
        (True, '/proc (proc)')
    """
    mount = mount_of(path, read_mounts())
    if mount is None:
        return f"{host}:?", f"the file system of {path}"
    if mount.is_network and (":" in mount.source or mount.source.startswith("//")):
        return _export(mount.source), f"{mount.mount_point} ({mount.source})"
    return f"{host}:{mount.device}", f"{mount.mount_point} ({mount.type})"


def _export(source: str) -> str:
    """Spell a server's export in one way: hosts write its name, and the end of its path, as they like."""
    lead, colon = ("//", "/") if source.startswith("//") else ("", ":")
    server, _, path = source.removeprefix(lead).partition(colon)
    return f"{lead}{server.lower()}{colon}{path.rstrip('/')}"


def _unescape(text: str) -> str:
    for code, char in _ESCAPES:
        text = text.replace(code, char)
    return text
