"""The store when runs are killed, dates lie, and what it would remove is somebody else's or cannot be removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.harness import Sandbox, in_namespace, living, new_tag, until
from tests.prefect_server import Server
from tests.support import unavailable

pytestmark = pytest.mark.timeout(400)

# Skips what exists, as many generators do, and gives its files dates from elsewhere, as cp -a, unzip and tar do.
LIES = """
import ctypes, os, sys, time
directory, mark, tag = sys.argv[1:4]
ctypes.CDLL(None).prctl(15, tag.encode())
kept = []
for n in range(8):
    path = os.path.join(directory, f"layer{n}.bin")
    if os.path.exists(path):
        kept.append(n)
        continue
    with open(path, "wb") as file:
        for part in range(10):
            file.write(bytes([n]) * 5000)
            file.flush()
            if n == 6 and part == 5 and not os.path.exists(mark):
                os.utime(path, (1, 1))
                open(mark, "w").close()
                time.sleep(600)
    os.utime(path, (5e9 - n, 5e9 - n))
    time.sleep(2)
open(mark, "w").write(repr(kept))
"""


@pytest.mark.parametrize("killed", ["the run", "a stall"])
def test_a_file_that_a_killed_run_has_cut_is_written_again_whatever_its_date(
    own_sandbox: Sandbox, server: Server, killed: str
) -> None:
    tag, mark = new_tag(), own_sandbox.root / "out" / "mark"
    own_sandbox.tags.append(tag)
    own_sandbox.mkdir("store")
    where = ["--store", str(own_sandbox.root / "store")]
    argv = own_sandbox.cachewatch("generate", "--quiet", "--name", "lies", *where, "--attempts", "1", "--poll", "200ms")
    argv += [
        "--stall-after", "7s", "--first-write-within", "60s", "--grace", "500ms", "--report",
        str(own_sandbox.report_path),
    ]  # fmt: skip
    argv += ["--", sys.executable, "-I", "-S", "-c", LIES, "{cache_dir}", str(mark), tag]
    with (own_sandbox.root / "out" / "log").open("ab") as log:
        run = own_sandbox.popen(argv, env=server.env, stdout=log, stderr=log)
        until(mark.exists, 200, "the seventh file is cut")
        if killed == "the run":
            time.sleep(0.7)
            run.send_signal(signal.SIGKILL)
        run.wait(120)
        until(lambda: not living(tag), 60, "the generator is gone")
        again = own_sandbox.popen(argv, env=server.env, stdout=log, stderr=log)
        assert again.wait(200) == 0, (own_sandbox.root / "out" / "log").read_text()[-3000:]
    kept = json.loads(mark.read_text())
    assert 6 not in kept and {0} <= set(kept), f"kept {kept}; {(own_sandbox.root / 'out' / 'log').read_text()[-3000:]}"
    current = own_sandbox.root / "store/lies/current"
    for n in range(8):
        assert (current / f"layer{n}.bin").read_bytes() == bytes([n]) * 50_000


MOUNT = """
import os, subprocess, sys
from pathlib import Path
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.key import BuildRecipe
root, where = sys.argv[1:]
store, policy = CacheStore(root), PublishPolicy(store=root)
def publish():
    with store.begin("c", BuildRecipe(("g",), {})) as build:
        Path(build.path, "d").mkdir()
        Path(build.path, "d/a.bin").write_text("abc")
        build.publish(policy, findings=build.check(policy))
    store.activate("c", build.build_id)
    return build
old = publish()
if where == "a refused build":
    with store.begin("c", BuildRecipe(("other",), {})) as build:
        Path(build.path, "d").mkdir()
        Path(build.path, "x.tmp").write_text("half")
        place = Path(build.refuse(build.check(policy), "refused"), "d")
else:
    publish()
    place = Path(old.path, "d") if where == "a build" else Path(old.path)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
(place / "theirs").write_text("theirs")
fd = os.open(place, os.O_RDONLY)
done = store.gc("c", keep=1, keep_quarantined=0, grace_s=0)
again = store.gc("c", keep=1, keep_quarantined=0, grace_s=0)
print([len(done.problems), os.listdir(fd), store.verify("c").whole, done.problems])
publish()
print(store.verify("c").whole)
"""


@pytest.mark.parametrize("where", ["a build", "a build's place", "a refused build"])
def test_clean_up_never_reaches_into_a_mount(tmp_path: Path, where: str) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a file system")
    argv = [*in_namespace(None, "--bind", str(tmp_path)), sys.executable, "-c", MOUNT, str(tmp_path), where]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "['theirs'], True" in done.stdout and done.stdout.endswith("True\n"), done.stdout
    if where != "a build's place":  # that one is named by `list`, and is no build
        assert done.stdout.startswith("[1, "), done.stdout


LAYERS = """
import os, subprocess, sys
from pathlib import Path
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.key import BuildRecipe
above = Path(sys.argv[1])
lower, upper, merged = (above / name for name in ("lower", "upper", "merged"))
def publish(root):
    store, policy = CacheStore(root), PublishPolicy(store=root)
    with store.begin("c", BuildRecipe(("g",), {})) as build:
        Path(build.path, "a.bin").write_text("abc")
        build.publish(policy, findings=build.check(policy))
    store.activate("c", build.build_id)
    return build.build_id
for path in (lower, upper, merged):
    path.mkdir()
old = publish(lower)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", upper], check=True)
(upper / "u").mkdir(), (upper / "w").mkdir()
layers = f"lowerdir={lower},upperdir={upper}/u,workdir={upper}/w,redirect_dir=off"
if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=False).returncode:
    sys.exit(77)
newer, newest = publish(merged), publish(merged)
store = CacheStore(merged)
done = store.gc("c", keep=1, grace_s=0)
assert [decision.build_id for decision in done.removed] == [newer], done
assert len(done.problems) == 1 and old in done.problems[0] and "lower layer" in done.problems[0], done.problems
assert store.verify("c").whole and store.verify("c", old).whole
subprocess.run(["mount", "-o", "remount,ro", merged], check=True)
assert store.verify("c").whole and len(store.list_builds("c")) == 2
with store.open_current("c") as build:
    assert build.build_id == newest
"""


def test_clean_up_of_a_store_in_two_layers(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a file system")
    argv = [*in_namespace(None, "--bind", str(tmp_path)), sys.executable, "-c", LAYERS, str(tmp_path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode == 77:
        unavailable("no overlay can be mounted here")
    assert done.returncode == 0, done.stderr
