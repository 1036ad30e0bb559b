"""The one mount table: which types of file systems other machines share."""

from __future__ import annotations

import pytest

from prefect_cachewatch.capacity.probe.target import ProbeTarget
from prefect_cachewatch.common.mounts import parse_mountinfo, read_mounts


@pytest.mark.parametrize(
    ("type_", "shared"),
    [("nfs4", True), ("ocfs2", True), ("fuse.sshfs", True), ("wekafs", True), ("fuseblk", False), ("ext4", False)],
)
def test_the_watch_and_the_probe_agree_which_file_systems_other_machines_share(tmp_path, type_, shared):
    assert parse_mountinfo(f"2 1 0:9 / /c rw - {type_} x rw")[0].is_network is shared
    assert ProbeTarget(tmp_path, type_, 0, 0).is_network is shared


def test_a_backslash_that_was_escaped_begins_no_other_escape():
    assert parse_mountinfo("2 1 0:9 / /c\\134040 rw - tmpfs x rw")[0].mount_point == "/c\\040"


def test_where_there_is_no_table_there_are_no_mounts(tmp_path):
    assert read_mounts(tmp_path / "mountinfo") == []
