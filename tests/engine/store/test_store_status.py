"""What is known against builds, and what lies in a build that a generator had no business to put there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path)


def recipe_of(store, *words):
    return BuildRecipe(("gen", *words, "{cache_dir}"), {})


def publish(store, text="abc", *, activate=True):
    policy = PublishPolicy(store=store.root)
    with store.begin("c", recipe_of(store)) as build:
        Path(build.path, "a.bin").write_text(text)
        build.publish(policy, findings=build.check(policy))
    if activate:
        store.activate("c", build.build_id)
    return build


def listed(store):
    return {build.build_id: build for build in store.list_builds("c")}


# -- what a generator puts into a build


AS_NOBODY = """
import os, sys
from pathlib import Path
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.key import BuildRecipe
os.setgid(65534); os.setuid(65534)
store, policy = CacheStore(sys.argv[1]), PublishPolicy(store=sys.argv[1])
recipe = BuildRecipe(("g",), {})
with store.begin("c", recipe) as build:
    Path(build.path, "a.bin").write_text("abc")
    os.mkdir(build.path + "/closed")
    os.chmod(build.path + "/closed", 0)
    os.mkdir(build.path + "/listed")
    Path(build.path, "listed/b.bin").write_text("abc")
    os.chmod(build.path + "/listed", 0o444)
    os.chmod(build.path + "/a.bin", 0)
    found = build.check(policy)
    print([(f.category, f.paths) for f in found])
    build.refuse(found, "refused")
with store.begin("c", recipe) as again:
    print(again.adopted)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root sets up what another user may not read")
def test_what_cannot_be_read_in_a_build_is_refused_once(store, tmp_path):
    for path in [tmp_path, *tmp_path.parents]:
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    os.chown(tmp_path, 65534, 65534)
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[('unreadable', ('a.bin', 'closed', 'listed'))]", "False"], done.stderr


# -- durability


def watch_directories(monkeypatch):
    """Which directories have entries that a power cut could take back; a stand-in for a disk that forgets."""
    dirty = {}
    real = {name: getattr(os, name) for name in ("mkdir", "rename", "unlink", "symlink", "rmdir", "fsync", "open")}

    def where(fd):
        status = os.fstat(fd) if fd is not None else os.stat(".")
        return status.st_dev, status.st_ino

    def entry(name, *keys):
        def wrapper(*args, **kwargs):
            before = [where(kwargs.get(key)) for key in keys]
            result = real[name](*args, **kwargs)
            for directory in before:
                dirty[directory] = f"{name} {args}"
            return result

        monkeypatch.setattr(os, name, wrapper)

    for name in ("mkdir", "unlink", "rmdir"):
        entry(name, "dir_fd")
    entry("symlink", "dir_fd")
    entry("rename", "src_dir_fd", "dst_dir_fd")

    def fsync(fd):
        real["fsync"](fd)
        dirty.pop(where(fd), None)

    monkeypatch.setattr(os, "fsync", fsync)
    return dirty


def test_every_directory_on_the_way_to_a_published_build_is_durable(store, monkeypatch):
    policy = PublishPolicy(store=store.root)
    dirty = watch_directories(monkeypatch)
    synced = []
    plain = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (plain(fd), synced.append(os.readlink(f"/proc/self/fd/{fd}")))[0])
    with store.begin("c", recipe_of(store)) as build:
        assert dirty == {}, "ROOT/NAME, its directories, the build and its record"
        assert {str(store.root), f"{store.root}/c", f"{store.root}/c/builds"} <= set(synced)
        with monkeypatch.context() as generator:
            generator.undo()
        Path(build.path, "a.bin").write_text("abc")
        build.publish(policy, findings=build.check(policy))
        assert dirty == {}
    store.activate("c")
    assert dirty == {}
    synced.clear()
    with store.begin("c", recipe_of(store)) as build:
        assert str(store.root) in synced, "whoever made ROOT/NAME may have died before it was durable"
        build.refuse([], "refused")
    assert dirty == {}
    with store.begin("c", recipe_of(store)) as build:
        build.clean()
        assert dirty == {}
        Path(build.path, "b.bin").write_text("abc")
        build.publish(policy, findings=build.check(policy))
    store.activate("c")
    store.rollback("c")
    assert dirty == {}


# -- whose the directories are


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
@pytest.mark.parametrize("where", ["c", "c/builds"])
def test_a_folder_that_another_user_made_where_everybody_may_write_is_changed_by_nobody_else(store, where):
    a, b = publish(store), publish(store)
    place = store.root / where
    place.parent.chmod(0o1777)
    os.chown(place, 65534, 65534)
    refused = r"is not used: .* belongs to uid 65534 and lies in a directory where everybody may write"
    acts = [
        lambda: store.begin("c", recipe_of(store)),
        lambda: store.rollback("c"),
        lambda: store.activate("c", a.build_id),
        lambda: store.gc("c", keep=1, grace_s=0),
    ]
    for act in acts:
        with pytest.raises(StoreError, match=refused):
            act()
    assert os.readlink(store.current_path("c")) == f"builds/{b.build_id}" and set(listed(store)) == {
        a.build_id,
        b.build_id,
    }
    # A volume that a group shares: other owners, and nobody else may write.
    place.parent.chmod(0o2775)
    assert store.rollback("c").build_id == a.build_id
    # The owner of the shared directory itself is trusted, as the kernel trusts him.
    place.parent.chmod(0o1777)
    os.chown(place.parent, 65534, 65534)
    if where != "c":
        os.chown(store.root / "c", 65534, 65534)
    store.activate("c", b.build_id)


# -- hostile surroundings


def test_a_fault_that_cannot_be_noted_is_said(store):
    build = publish(store)
    Path(build.path, "b.npy").write_bytes(b"cut")
    os.unlink(store.root / "c/.switch")
    os.symlink("elsewhere", store.root / "c/.switch")
    with pytest.raises(BuildDamaged, match=r"^b\.npy does not begin like npy.* It is not noted: the lock file .*"):
        store.inspect("c")
    with pytest.raises(
        BuildDamaged, match=r"is not whole: b\.npy is not in the manifest.* It is not noted: the lock file .*"
    ):
        store.verify("c")
