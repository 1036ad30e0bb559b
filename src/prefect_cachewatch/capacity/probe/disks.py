"""The disk under a file system, as /sys shows it: a hypervisor's, or one behind a network.

Opens no device. What a cloud or a hypervisor hides cannot be seen from inside: such a disk is only called virtual.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.common.mounts import Mount

_NAMES = {
    r"nbd\d+": "NBD",
    r"rbd\d+": "Ceph RBD",
    r"drbd\d+": "DRBD",
    r"rnbd\d+": "RNBD",
    r"etherd!.+": "ATA over Ethernet",
}
_FABRICS = {"tcp": "NVMe over TCP", "rdma": "NVMe over RDMA", "fc": "NVMe over Fibre Channel"}
# A directory above a SCSI disk, and what it holds if the disk is at the other end of such a network.
_SCSI = {"iscsi_session": "iSCSI", "fc_remote_ports": "Fibre Channel", "srp_remote_ports": "SRP"}
_CLOUD = {
    "Amazon Elastic Block Store": "Amazon EBS",
    "nvme_card-pd": "Google Persistent Disk",
    "PersistentDisk": "Google Persistent Disk",
    "MSFT NVMe Accelerator v1.0": "Azure remote disk",
}
_VIRTUAL_PATH = re.compile(r"/(virtio|vbd-|xen|vmbus)", re.IGNORECASE)
_VIRTUAL_MODEL = ("QEMU", "VMware", "Virtual")


@dataclass(frozen=True)
class Disk:
    """The disk, or the disks together, of one file system."""

    #: Whether it was found at all: not that of an overlay, nor the file behind a loop device.
    seen: bool = False
    #: Whether it is a hypervisor's, whose own caches and networks are out of sight.
    virtual: bool = False
    #: The network in between and its device, as in `iSCSI (sdb)`; empty if none is seen.
    network: str = ""


UNSEEN = Disk()


def look_at_disk(mount: Mount | None, root: str | os.PathLike[str] = "/sys") -> Disk:
    """Look at the disk that a mounted file system lies on, through partitions, LVM, dm-crypt, RAID and multipath.

    Args:
        mount: the mount; None: nothing is known of it.
        root: where sysfs is mounted.

    Returns:
        The disk; a plain one where nothing is seen.

    Example:
        >>> look_at_disk(None)
        Disk(seen=False, virtual=False, network='')
    """
    device = _device_of(mount) if mount is not None else ""
    disks = list(_disks(Path(root, "dev", "block", device), set())) if device else []
    networks = [f"{kind} ({disk.name.replace('!', '/')})" for disk in disks if (kind := _network(disk))]
    seen = bool(disks) and not any(disk.name.startswith("loop") for disk in disks)
    return Disk(seen, any(map(_is_virtual, disks)), ", ".join(networks))


def _device_of(mount: Mount) -> str:
    """Major and minor number; btrfs has none of its own, and its source is a device."""
    if not mount.device.startswith("0:"):
        return mount.device
    try:
        node = os.stat(mount.source) if mount.source.startswith("/dev/") else None
    except OSError:
        node = None
    if node is None or not stat.S_ISBLK(node.st_mode):
        return ""
    return f"{os.major(node.st_rdev)}:{os.minor(node.st_rdev)}"


def _disks(link: Path, seen: set[Path]) -> Iterator[Path]:
    """The directories of the disks below a block device: itself, and what dm and md are made of."""
    try:
        disk = link.resolve(strict=True)
        disk = disk.parent if (disk / "partition").exists() else disk
        below = [] if disk in seen else sorted((disk / "slaves").glob("*"))
    except (OSError, RuntimeError):
        return
    if disk in seen:
        return
    seen.add(disk)
    yield disk
    for slave in below:
        yield from _disks(slave, seen)


def _network(disk: Path) -> str:
    for pattern, kind in _NAMES.items():
        if re.fullmatch(pattern, disk.name):
            return kind
    # A namespace is below its controller, or below a subsystem with links to the controllers that reach it.
    for transport in (disk.parent / "transport", *sorted(disk.parent.glob("nvme*/transport"))):
        if kind := _FABRICS.get(_read(transport), ""):
            return kind
    for above in disk.parents:
        for child, kind in _SCSI.items():
            if (above / child).is_dir():
                return kind
    return _CLOUD.get(_read(disk / "device" / "model"), "")


def _is_virtual(disk: Path) -> bool:
    return bool(_VIRTUAL_PATH.search(str(disk))) or _read(disk / "device" / "model").startswith(_VIRTUAL_MODEL)


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:200].decode("ascii", "replace").strip()
    except OSError:
        return ""
