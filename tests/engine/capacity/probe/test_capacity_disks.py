"""Whether a disk is behind a network, from trees as the kernel lays them out in /sys, and from this machine's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from prefect_cachewatch.capacity import LinkProfile, ServiceCurve, StorageProfile, WorkloadClass, plan
from prefect_cachewatch.capacity.probe.disks import Disk, look_at_disk
from prefect_cachewatch.capacity.probe.target import inspect_target
from prefect_cachewatch.common.mounts import Mount, read_mounts
from prefect_cachewatch.errors import InputError

PCI = "devices/pci0000:00/0000:00:01.0"


class Tree:
    """A tree as in /sys, with the block devices that a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count(1)
        (root / "dev" / "block").mkdir(parents=True)

    def disk(self, place: str, *, model: str = "", partition: bool = False, slaves: tuple[str, ...] = ()) -> str:
        """A disk at a place, and a partition of it if one is wanted; its number."""
        disk = self.root / place
        disk.mkdir(parents=True, exist_ok=True)
        (disk / "slaves").mkdir()
        if model:
            self.write(f"{place}/device/model", model)
        for number in slaves:
            below = (self.root / "dev" / "block" / number).resolve()
            (disk / "slaves" / below.name).symlink_to(below)
        if partition:
            disk = disk / f"{disk.name}1"
            disk.mkdir()
            (disk / "partition").write_text("1\n")
        number = f"8:{next(self._numbers)}"
        (self.root / "dev" / "block" / number).symlink_to(disk)
        return number

    def write(self, place: str, text: str = "") -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def look(self, number: str) -> Disk:
        return look_at_disk(Mount("2", "/c", "ext4", "/dev/x", ("rw",), number), self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_iscsi_is_known_by_its_session_also_from_a_partition(tree: Tree) -> None:
    session = "devices/platform/host3/session1"
    (tree.root / session / "iscsi_session" / "session1").mkdir(parents=True)
    number = tree.disk(f"{session}/target3:0:0/3:0:0:0/block/sdb", model="LUN", partition=True)
    assert tree.look(number) == Disk(True, False, "iSCSI (sdb)")


def test_fibre_channel_is_known_by_its_remote_port(tree: Tree) -> None:
    port = f"{PCI}/host7/rport-7:0-0"
    (tree.root / port / "fc_remote_ports" / "rport-7:0-0").mkdir(parents=True)
    assert tree.look(tree.disk(f"{port}/target7:0:0/7:0:0:0/block/sdc")).network == "Fibre Channel (sdc)"


@pytest.mark.parametrize(
    ("transport", "network"),
    [
        ("tcp", "NVMe over TCP (nvme1n1)"),
        ("rdma", "NVMe over RDMA (nvme1n1)"),
        ("fc", "NVMe over Fibre Channel (nvme1n1)"),
        ("pcie", ""),
        ("loop", ""),
    ],
)
@pytest.mark.parametrize("multipath", [False, True])
def test_nvme_is_known_by_the_transport_of_its_controllers(
    tree: Tree, transport: str, network: str, multipath: bool
) -> None:
    controller = "devices/virtual/nvme-fabrics/ctl/nvme1"
    tree.write(f"{controller}/transport", transport)
    above = controller
    if multipath:  # the namespace is then below a subsystem, with links to its controllers
        above = "devices/virtual/nvme-subsystem/nvme-subsys1"
        (tree.root / above).mkdir(parents=True)
        (tree.root / above / "nvme1").symlink_to(tree.root / controller)
    assert tree.look(tree.disk(f"{above}/nvme1n1", partition=True)) == Disk(True, False, network)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("nbd0", "NBD (nbd0)"),
        ("rbd12", "Ceph RBD (rbd12)"),
        ("drbd0", "DRBD (drbd0)"),
        ("rnbd3", "RNBD (rnbd3)"),
        ("etherd!e1.1", "ATA over Ethernet (etherd/e1.1)"),
        ("nbdx", ""),
        ("zram0", ""),
    ],
)
def test_drivers_that_are_networks_are_known_by_their_names(tree: Tree, name: str, network: str) -> None:
    assert tree.look(tree.disk(f"devices/virtual/block/{name}")).network == network


def test_what_lvm_crypt_and_raid_are_made_of_is_looked_at(tree: Tree) -> None:
    local = tree.disk(f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda", partition=True)
    nbd = tree.disk("devices/virtual/block/nbd4")
    raid = tree.disk("devices/virtual/block/md0", slaves=(local, nbd))
    crypt = tree.disk("devices/virtual/block/dm-0", slaves=(raid,))
    assert tree.look(local) == Disk(True)
    assert tree.look(tree.disk("devices/virtual/block/dm-1", slaves=(crypt,))) == Disk(True, False, "NBD (nbd4)")
    assert tree.look(tree.disk("devices/virtual/block/dm-2", slaves=(local,))) == Disk(True)


def test_disks_that_are_made_of_each_other_come_to_an_end(tree: Tree) -> None:
    first = tree.disk("devices/virtual/block/dm-0")
    second = tree.disk("devices/virtual/block/dm-1", slaves=(first,))
    (tree.root / "devices/virtual/block/dm-0/slaves/dm-1").symlink_to(tree.root / "devices/virtual/block/dm-1")
    assert tree.look(second) == Disk(True)


@pytest.mark.parametrize(
    ("place", "model", "virtual", "network"),
    [
        (f"{PCI}/virtio1/block/vda", "", True, ""),
        ("devices/vbd-768/block/xvda", "", True, ""),
        ("devices/LNXSYSTM:00/VMBUS:00/host0/target0:0:0/0:0:0:0/block/sda", "Virtual Disk", True, ""),
        (f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda", "QEMU HARDDISK", True, ""),
        (f"{PCI}/nvme/nvme0/nvme0n1", "Amazon Elastic Block Store", False, "Amazon EBS (nvme0n1)"),
        (f"{PCI}/nvme/nvme0/nvme0n1", "nvme_card-pd", False, "Google Persistent Disk (nvme0n1)"),
        (f"{PCI}/nvme/nvme0/nvme0n1", "Amazon EC2 NVMe Instance Storage", False, ""),
        (f"{PCI}/nvme/nvme0/nvme0n1", "Samsung SSD 990 PRO 2TB", False, ""),
    ],
)
def test_a_hypervisors_disk_is_virtual_and_a_clouds_remote_one_is_known_by_its_model(
    tree: Tree, place: str, model: str, virtual: bool, network: str
) -> None:
    assert tree.look(tree.disk(place, model=model)) == Disk(True, virtual, network)


def test_what_is_not_seen_is_not_guessed(tree: Tree) -> None:
    assert tree.look("8:99") == Disk()
    assert not tree.look(tree.disk("devices/virtual/block/loop3")).seen
    assert look_at_disk(Mount("2", "/", "overlay", "overlay", ("rw",), "0:31"), tree.root) == Disk()
    assert look_at_disk(Mount("2", "/", "btrfs", "/dev/nothing", ("rw",), "0:31"), tree.root) == Disk()


def test_every_disk_of_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    devices = [entry.name for entry in Path("/sys/dev/block").glob("*")]
    for number in devices:
        assert look_at_disk(Mount("2", "/c", "ext4", "/dev/x", ("rw",), number)) is not None
    for mount in read_mounts():
        look_at_disk(mount)
    assert inspect_target(tmp_path).through in ("network", "local", None)


def test_a_plan_with_a_link_refuses_what_was_measured_through_such_a_disk(tree: Tree, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    number = tree.disk("devices/virtual/block/nbd0")
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 {number} / {tmp_path} rw - xfs /dev/nbd0 rw\n")
    target = inspect_target(own, table, tree.root)
    assert (target.is_network, target.through) == (False, "network")
    curve = ServiceCurve(per_stream_bytes_per_s="1GB/s", aggregate_bytes_per_s="1GB/s")
    storage = StorageProfile(name="nbd", basis="measured", shared=False, through=target.through, sequential_write=curve)
    classes = [WorkloadClass(name="caches", burst_bytes="2GB", think_s=10)]
    with pytest.raises(InputError, match="would count that network twice"):
        plan(storage, LinkProfile(bytes_per_s="10Gbit/s"), classes)
