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
from support import mostly_apart

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
    "campaign",
    mostly_apart(
        [
            ("publish", "plain", 1, 50),
            ("switch", "pinned", 1, 30),
            ("publish", "plain", 7, 100),
            ("switch", "pinned", 7, 50),
            ("refuse", "pinned", 1, 25),
            ("unhealthy", "pinned", 1, 60),
        ],
        [("publish", "plain", 1, 50)],
    ),
    ids=lambda campaign: "-".join(map(str, campaign)),
)
def test_a_reader_sees_a_whole_cache_whatever_call_the_publisher_is_killed_at(root, campaign):
    scenario, how, stride, least = campaign
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
        switched = {"rename", "fsync", "write"} | ({"symlink"} if scenario != "refuse" else set())
        more = {"publish": {"mkdir", "unlink"}, "refuse": {"mkdir", "unlink", "rmdir"}}.get(scenario, {"rmdir"})
        assert switched | more <= set(killer["killed"])
    assert seen["bad"] == []
    assert seen["reads"] > 50
    assert seen["builds"] > (0 if scenario == "refuse" else 1)


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


@pytest.mark.campaign
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


TOGETHER = """
import os, pathlib, sys, time
from prefect_cachewatch.errors import BuildDamaged, StoreBusy, StoreError
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe
root, what = sys.argv[1:]
policy, store = PublishPolicy(store=root), CacheStore(root)
def publish():
    with store.begin("cache", BuildRecipe.of([what, str(time.time_ns())], policy)) as build:
        for n in range(5):
            pathlib.Path(build.path, f"{n}.bin").write_bytes(os.urandom(5000))
        build.publish(policy, findings=build.check(policy), threads=1)
    store.activate("cache", build.build_id)
def refuse():
    with store.begin("cache", BuildRecipe.of([what], policy)) as build:
        pathlib.Path(build.path, "x.tmp").write_bytes(b"half")
        build.quarantine(build.check(policy), "refused")
    store.prune_quarantine("cache", keep=1)
acts = {
    "publish": publish,
    "refuse": refuse,
    "roll back": lambda: store.rollback("cache"),
    "unhealthy": lambda: store.rollback("cache", unhealthy="no answer"),
    "clean up": lambda: store.gc("cache", keep=2, keep_quarantined=0, grace_s=0),
    "verify": lambda: store.verify("cache"),
    "list": lambda: store.list_builds("cache"),
    "activate": lambda: store.activate("cache"),
}
print("ready", flush=True)
done, until_s = 0, time.monotonic() + 4
while time.monotonic() < until_s:
    try:
        acts[what]()
        done += 1
    except BuildDamaged as error:
        # What clean-up takes away under a reader without a pin is gone, and not damaged.
        if os.path.exists(error.data["path"]):
            print("damaged", error.message, flush=True)
    except StoreBusy:
        time.sleep(0.01)
    except StoreError as error:
        told = ("cannot be rolled back", "there is no build", "has no active build", "is gone", "cannot read the build",
                "there is no /", "No such file", "has no published build", "was made current meanwhile")
        if not any(text in error.message for text in told):
            print("error", error.message, flush=True)
print("done", done, flush=True)
"""


@pytest.mark.campaign
def test_publishers_operators_and_clean_up_at_once_leave_a_whole_cache(root):
    publish_one(root, "first")
    acts = ["publish", "publish", "refuse", "roll back", "unhealthy", "clean up", "verify", "list", "activate"]
    with reader(root, "pinned") as seen:
        processes = [
            subprocess.Popen([sys.executable, "-c", TOGETHER, root, act], stdout=subprocess.PIPE, text=True)
            for act in acts
        ]
        said = [process.communicate(timeout=90)[0].splitlines() for process in processes]
    problems = [line for lines in said for line in lines if line.startswith(("damaged", "error"))]
    assert problems == []
    assert all(process.returncode == 0 for process in processes)
    assert sum(int(lines[-1].split()[1]) for lines in said) > 20
    assert seen["bad"] == [] and seen["builds"] > 1
    store = CacheStore(root)
    assert store.verify("cache").whole
    assert "damaged" not in {build.status for build in store.list_builds("cache")}
