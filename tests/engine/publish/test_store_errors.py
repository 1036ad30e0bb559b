"""A storage that refuses any one call of a publication: nothing that was there is lost, nothing partial becomes current."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

CHANGES = (
    "mkdir",
    "rename",
    "symlink",
    "unlink",
    "rmdir",
    "fsync",
    "write",
    "pwrite",
    "utime",
    "open",
    "link",
    "ftruncate",
)


class Storage:
    """Lets calls that change something through, but for one; `failing` counts down to it."""

    def __init__(self, monkeypatch):
        self.calls, self.fails_at, self.error = 0, None, 0
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, real):
        def call(*args, **kwargs):
            if name != "open" or args[1] & os.O_CREAT:
                self.calls += 1
                if self.fails_at == self.calls:
                    raise OSError(self.error, os.strerror(self.error))
            return real(*args, **kwargs)

        return call


def recipe_of(store, word="x"):
    return BuildRecipe.of(["gen", word, "{cache_dir}"], PublishPolicy(store=store.root))


def publish(store, activate=True):
    policy = PublishPolicy(store=store.root)
    with store.begin("c", recipe_of(store)) as build:
        if build.adopted:
            build.prepare_resume(policy, window_s=0)
        build.note_growth()
        with open(f"{build.path}/a.bin", "w") as file:  # the generator's own, which does not go through os
            file.write("abc")
        build.publish(policy, findings=build.check(policy))
    if activate:
        store.activate("c", build.build_id)


def refuse(store):
    with store.begin("c", recipe_of(store, "refused")) as build:
        with open(f"{build.path}/a.tmp", "w") as file:
            file.write("abc")
        build.quarantine(build.check(PublishPolicy(store=store.root)), "refused")
    store.prune_quarantine("c", keep=1)


SCENARIOS = {
    "publish": publish,
    "refuse": refuse,
    "roll back": lambda store: store.rollback("c"),
    "unhealthy": lambda store: store.rollback("c", unhealthy="exit 7"),
    "clean up": lambda store: store.gc("c", keep=1, keep_quarantined=0, grace_s=0),
}


@pytest.fixture
def root():
    """A store in memory where there is some: a call that fails is the same there, and hundreds of fsyncs take no minute."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachewatch-errors-", dir=memory) as path:
        yield path


@pytest.mark.campaign
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_call_the_storage_refuses_nothing_is_lost_and_nothing_partial_current(
    root, monkeypatch, scenario, number
):
    store = CacheStore(root)
    publish(store), publish(store), refuse(store)
    storage = Storage(monkeypatch)
    storage.error = number
    ended = 0
    for step in range(1, 400):
        storage.calls, storage.fails_at = 0, step
        before = store.list_builds("c")
        try:
            SCENARIOS[scenario](store)
            ended += storage.calls < step
        except (StoreError, OSError) as error:
            assert isinstance(error, StoreError), f"step {step}: {error!r} is no sentence"
        storage.fails_at = None
        # Looked at before anybody repairs anything.
        assert store.verify("c").whole, step
        with store.open_current("c") as pinned:
            assert Path(pinned.path, "a.bin").read_text() == "abc"
        states = {build.build_id: build.state for build in store.list_builds("c")}
        assert "damaged" not in states.values(), step
        if scenario != "clean up":
            whole = {build.build_id for build in before if build.state in ("active", "published")}
            assert whole <= set(states), step
        # And the next one works.
        publish(store)
        if step % 10 == 0:
            store.gc("c", keep=4, keep_quarantined=2, grace_s=0)
        if scenario == "refuse":
            refuse(store)
        if ended:
            break
    assert ended, "the last turn went through all its steps"
    assert step > 4
    assert store.gc("c", keep=1, keep_quarantined=0, grace_s=0).problems == ()
    assert [build.state for build in store.list_builds("c")] == ["active"]
