"""kill -9 at every call into the kernel while publishing, activating, rolling back and cleaning up."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from prefect_cachewatch.errors import StoreBusy
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

HERE = Path(__file__).parent


@pytest.fixture
def root():
    """A store in memory where there is some: a kill is the same there, and hundreds of fsyncs take no minute."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachewatch-kill-", dir=memory) as path:
        yield path


@contextlib.contextmanager
def reader(root, how):
    process = subprocess.Popen(
        [sys.executable, str(HERE / "store_reader.py"), str(root), "cache", how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    result = {}
    try:
        assert process.stdout.readline() == "ready\n"
        yield result
        out, _ = process.communicate("stop\n", timeout=60)
        result.update(json.loads(out))
    finally:
        process.kill()
        process.wait()


def publish_one(root, text):
    store, policy = CacheStore(root), PublishPolicy(store=root)
    with store.begin("cache", BuildRecipe.of(["seed", "{cache_dir}"], policy)) as build:
        Path(build.path, "0.bin").write_text(text)
        build.publish(policy, findings=build.check(policy))
    store.activate("cache")


@pytest.mark.parametrize(
    ("scenario", "how", "stride", "least"),
    [
        ("publish", "plain", 1, 50),
        ("switch", "pinned", 1, 30),
        ("publish", "plain", 7, 100),
        ("switch", "pinned", 7, 50),
    ],
)
def test_a_reader_sees_a_whole_cache_whatever_call_the_publisher_is_killed_at(root, scenario, how, stride, least):
    publish_one(root, "first")
    with reader(root, how) as seen:
        done = subprocess.run(
            [sys.executable, str(HERE / "store_killer.py"), root, "cache", scenario, str(stride)],
            stdout=subprocess.PIPE, text=True, timeout=150, check=True,
        )  # fmt: skip
    killer = json.loads(done.stdout)
    assert killer["problems"] == []
    assert killer["finished"] == 1, "the last child went through all its steps"
    assert sum(killer["killed"].values()) >= least
    if stride == 1:
        switched = {"rename", "symlink", "fsync", "write"}
        assert switched | ({"mkdir", "unlink"} if scenario == "publish" else {"rmdir"}) <= set(killer["killed"])
    assert seen["bad"] == []
    assert seen["reads"] > 50
    assert seen["builds"] > 1


def test_the_lock_of_a_killed_publisher_is_free_at_once_even_while_its_child_lives(root):
    script = (
        "import os, sys, time, subprocess\n"
        "from prefect_cachewatch.publish.policy import PublishPolicy\n"
        "from prefect_cachewatch.publish.store import CacheStore\n"
        "from prefect_cachewatch.publish.target import BuildRecipe\n"
        "policy = PublishPolicy(store=sys.argv[1])\n"
        "build = CacheStore(sys.argv[1]).begin('cache', BuildRecipe.of(['g'], policy))\n"
        "spawned = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)\n"
        "forked = os.fork()\n"
        "if forked == 0:\n"
        "    os.close(1); time.sleep(60); os._exit(0)\n"
        "print(spawned.pid, forked, flush=True)\n"
        "time.sleep(60)\n"
    )
    publisher = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True)
    children = [int(pid) for pid in publisher.stdout.readline().split()]
    policy = PublishPolicy(store=root)
    recipe = BuildRecipe.of(["g"], policy)
    try:
        with pytest.raises(StoreBusy, match=f"pid {publisher.pid} on "):
            CacheStore(root).begin("cache", recipe)
        publisher.kill()
        publisher.wait()
        assert all(Path(f"/proc/{pid}").exists() for pid in children)
        with CacheStore(root).begin("cache", recipe) as build:
            assert build.adopted
    finally:
        publisher.kill()
        publisher.wait()
        publisher.stdout.close()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def test_a_publisher_killed_at_a_random_moment_leaves_a_whole_cache(root):
    publish_one(root, "first")
    script = (
        "import sys, pathlib\n"
        "from prefect_cachewatch.publish.policy import PublishPolicy\n"
        "from prefect_cachewatch.publish.store import CacheStore\n"
        "from prefect_cachewatch.publish.target import BuildRecipe\n"
        "policy, store = PublishPolicy(store=sys.argv[1]), CacheStore(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for turn in range(10**9):\n"
        "    with store.begin('cache', BuildRecipe.of(['g', str(turn)], policy)) as build:\n"
        "        for n in range(20):\n"
        "            pathlib.Path(build.path, f'{n}.bin').write_bytes(bytes([turn % 256]) * 20000)\n"
        "        build.publish(policy, findings=build.check(policy))\n"
        "    store.activate('cache')\n"
        "    store.gc('cache', keep=2, grace_s=1)\n"
    )
    with reader(root, "plain") as seen:
        for turn in range(12):
            publisher = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True)
            assert publisher.stdout.readline() == "ready\n"
            time.sleep(0.05 + 0.037 * turn)
            publisher.kill()
            publisher.wait()
            publisher.stdout.close()
            CacheStore(root).verify("cache", depth="full")
    assert seen["bad"] == []
    assert seen["builds"] > 3
