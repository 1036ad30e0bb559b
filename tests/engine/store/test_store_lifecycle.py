"""The store on a real file system: publish, activate, roll back, clean up, and everything planted against it."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.measure.growth_mark import MARK_BYTES, GrowthMark
from prefect_cachewatch.store import records
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path)


def policy_of(store, **fields):
    return PublishPolicy(store=store.root, **fields)


def recipe_of(store, *words, **fields):
    return BuildRecipe(("gen", *words, "{cache_dir}"), fields)


def write(build, files):
    for path, data in files.items():
        target = Path(build.path, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def publish(store, files=None, *, name="c", activate=True, recipe=None, **fields):
    policy = policy_of(store, **fields)
    with store.begin(name, recipe or recipe_of(store)) as build:
        write(build, files or {"a.bin": b"abc", "d/b.bin": b"defg"})
        findings = build.check(policy)
        build.publish(policy, findings=findings)
    if activate:
        store.activate(name, build.build_id)
    return build


def seen(watch, numbers):
    """What the scan process does with each scan."""
    watch.begin_scan()
    watch.end_scan(numbers)


def states(store, name="c"):
    return {build.build_id: build.state for build in store.list_builds(name)}


# -- publish


def test_a_file_that_changes_while_it_is_digested_is_seen(store):
    policy = policy_of(store)
    with store.begin("c", recipe_of(store)) as build:
        write(build, {"a.bin": os.urandom(64 << 20)})
        findings = build.check(policy)
        stop = threading.Event()

        def scribble():
            while not stop.is_set():
                with open(f"{build.path}/a.bin", "r+b") as file:
                    file.write(b"x")

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            with pytest.raises(StoreError, match=r"changed while it was read|something wrote into"):
                build.publish(policy, findings=findings)
        finally:
            stop.set()
            thread.join()


def test_digests_take_the_same_memory_for_a_large_file(store, tmp_path):
    script = (
        "import os, resource, sys\n"
        "from prefect_cachewatch.store.verify import digest_files\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "digest_files(fd, ['a'])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "os.truncate(sys.argv[1] + '/a', 512 << 20)\n"
        "print(digest_files(fd, ['a'])[0].size_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    (tmp_path / "big").mkdir()
    (tmp_path / "big/a").write_bytes(b"x" * (4 << 20))
    out = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "big"], capture_output=True, text=True, check=True
    ).stdout
    size, grown_kib = map(int, out.split())
    assert size == 512 << 20
    assert grown_kib < 8 << 10


# -- retries


def test_a_resumed_build_loses_what_may_be_cut_and_keeps_the_rest(store):
    policy = policy_of(store)
    with store.begin("c", recipe_of(store)) as build:
        build.note_growth()
        watch = GrowthMark(build.record, build.path)
        write(build, {"0.bin": b"whole"})
        os.utime(f"{build.path}/0.bin", (2e9, 2e9))  # as unzip may, or cp -a
        time.sleep(0.05)
        seen(watch, 1)
        time.sleep(0.05)
        write(build, {"d/1.bin": b"cut", "2.bin.tmp.9": b"t", "3.bin": b""})
        os.utime(f"{build.path}/d/1.bin", (1e9, 1e9))
        seen(watch, 2)
        seen(watch, 2)
        watch.close()
    with store.begin("c", recipe_of(store)) as again:
        assert again.adopted and again.path == build.path
        gone, _ = again.prepare_resume(policy, window_s=0)
        assert {s.path: s.reason for s in gone} == {
            "d/1.bin": "changed_in_window",
            "2.bin.tmp.9": "temporary",
            "3.bin": "empty",
        }
        assert [f for _, _, names in os.walk(again.path) for f in names] == ["0.bin"]


@pytest.mark.parametrize("how", ["copied", "no mark", "cut mark", "clock set back", "another user's file system"])
def test_where_nothing_shows_what_is_whole_the_build_begins_with_nothing_and_says_why(store, how, monkeypatch):
    with store.begin("c", recipe_of(store)) as build:
        build.note_growth()
        write(build, {"0.bin": b"whole", "d/1.bin": b"cut"})
        mark = Path(build.record)
    text = mark.read_text()
    known = json.loads(text[:MARK_BYTES])

    def put(head):
        mark.write_text(head.ljust(MARK_BYTES - 1) + "\n" + text[MARK_BYTES:])
        os.utime(mark, (0, 0))  # its writer has ended

    if how == "copied":
        Path(build.path).rename(store.root / "moved")
        subprocess.run(["cp", "-a", store.root / "moved", build.path], check=True)
    elif how == "no mark":
        put("")
    elif how == "cut mark":
        put("{")
    elif how == "clock set back":
        put(json.dumps(known | {"grew_after_ns": known["grew_after_ns"] + 10**12}))
    else:  # FAT and sshfs: the change time is the modification time
        monkeypatch.setattr(records, "holds_change_times", lambda _fd: False)
    with store.begin("c", recipe_of(store)) as again:
        assert again.adopted
        gone, notes = again.prepare_resume(policy_of(store), window_s=0)
        assert {suspect.reason for suspect in gone} == {"unprovable"}
        (note,) = notes
        assert note.startswith("none of the 2 files of an earlier attempt can be shown to be whole: ")
        assert [name for _, _, names in os.walk(again.path) for name in names] == []
        # From here on it is known again.
        assert json.loads(mark.read_text()[:MARK_BYTES])["grew_after_ns"] >= known["grew_after_ns"]


def test_what_a_run_had_open_at_its_end_is_suspect_for_the_next_run_however_long_it_stood_still(store):
    with store.begin("c", recipe_of(store)) as build:
        build.note_growth()
        write(build, {"open.bin": b"half", "0.bin": b"whole"})
        time.sleep(0.05)
        watch = GrowthMark(build.record, build.path)
        seen(watch, 1)
        time.sleep(0.05)
        write(build, {"1.bin": b"cut"})
        seen(watch, 2)
        watch.close()
        records.change_begun(build.record, None, {"reported": ["open.bin"]})
    with store.begin("c", recipe_of(store)) as again:
        gone, _ = again.prepare_resume(policy_of(store), window_s=0)
        assert {s.path: s.reason for s in gone} == {"open.bin": "reported", "1.bin": "changed_in_window"}


# -- clean-up


def test_the_example_of_the_documentation_runs(store):
    publish(store, name="llama-3-70b-n300")
    text = (Path(__file__).parents[3] / "docs/store.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(example.replace("/mnt/caches", str(store.root)), "docs/store.md", "exec"), {})


# -- space, file systems, NFS


IN_A_MOUNT = """
import os, subprocess, sys
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.key import BuildRecipe
root, case = sys.argv[1:]
def publish(size):
    policy = PublishPolicy(store=root)
    with CacheStore(root).begin("c", BuildRecipe(("g",), {})) as build:
        open(build.path + "/a", "wb").write(os.urandom(size))
        build.publish(policy, findings=build.check(policy))
    CacheStore(root).activate("c")
def mount(where, options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where], check=True)
try:
    if case == "bind":
        os.makedirs(root + "/elsewhere/deep")
        policy = PublishPolicy(store=root)
        with CacheStore(root).begin("c", BuildRecipe(("g",), {})) as build:
            os.mkdir(build.path + "/sub")
            open(build.path + "/a", "wb").write(bytes(1000))
            subprocess.run(["mount", "--bind", root + "/elsewhere", build.path + "/sub"], check=True)
            print([finding.category for finding in build.check(policy)])
    elif case == "resumed":
        mount(root, "size=1m,nr_inodes=100")
        recipe = BuildRecipe(("g",), {})
        with CacheStore(root).begin("c", recipe) as build:
            open(build.path + "/a", "wb").write(os.urandom(600_000))
        CacheStore(root).require_space("c", expected_bytes=700_000, resumes=recipe.key)
        CacheStore(root).require_space("c", expected_bytes=700_000, resumes="another")
    elif case == "full":
        mount(root, "size=1m,nr_inodes=100")
        publish(1000)
        with open(root + "/filler", "wb") as f:
            try:
                while True: f.write(b"x" * 65536); f.flush()
            except OSError: pass
        try:
            publish(0)
        except (StoreError, OSError) as error:
            print(getattr(error, "message", error))
        assert CacheStore(root).verify("c").whole
        os.unlink(root + "/filler")
        publish(1000)
        print("published again")
except StoreError as error:
    print(error.message)
"""


def in_a_mount(root, case):
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [*command, sys.executable, "-c", IN_A_MOUNT, root, case], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_directory_of_the_same_file_system_that_is_mounted_in_a_build_is_no_part_of_it(tmp_path):
    assert "special_file" in in_a_mount(tmp_path, "bind")


def test_what_a_run_that_is_resumed_has_written_counts_as_room_for_its_key_alone(tmp_path):
    assert "are needed (1.1 times what the job expects)" in in_a_mount(tmp_path, "resumed")


def test_a_disk_that_fills_up_leaves_the_current_build_whole(tmp_path):
    first, last = in_a_mount(tmp_path, "full").splitlines()
    assert "No space left on device" in first and first.startswith("cannot ")
    assert last == "published again"


def test_a_rename_whose_answer_was_lost_as_on_nfs_counts_as_done(store, monkeypatch):
    publish(store)
    rename = os.rename

    def lossy(*args, **kwargs):
        rename(*args, **kwargs)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "rename", lossy)
    build = publish(store)
    assert os.readlink(store.current_path("c")).endswith(build.build_id)
    assert len(store.gc("c", keep=1, grace_s=0).removed) == 1


def test_a_rename_that_failed_is_not_taken_for_done(store, monkeypatch):
    first = publish(store)
    second = publish(store, activate=False)

    def failing(*args, **kwargs):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(StoreError, match=f"cannot switch .*{first.build_id} stays active"):
        store.activate("c", second.build_id)
    monkeypatch.undo()
    assert os.readlink(store.current_path("c")).endswith(first.build_id)
    assert not list((store.root / "c").glob(".cachewatch-new-*"))


AS_ANOTHER = """
import os, sys
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.key import BuildRecipe
# Only now: another user may not read this interpreter's own files.
os.setgid(65534)
os.setuid(65534)
store, policy = CacheStore(sys.argv[1]), PublishPolicy(store=sys.argv[1])
for act in (
    lambda: store.open_current("c").path,
    lambda: [build.state for build in store.list_builds("c")],
    lambda: store.verify("c").whole,
    lambda: store.begin("c", BuildRecipe(("g",), {})),
    lambda: store.rollback("c"),
    lambda: store.gc("c", keep=1, grace_s=0),
):
    try:
        print(act())
    except (StoreError, OSError) as error:
        print(type(error).__name__, getattr(error, "message", error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_user_reads_and_verifies_and_can_change_nothing(store):
    publish(store), publish(store)
    for path in [store.root, *store.root.parents]:
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    argv = [sys.executable, "-c", AS_ANOTHER, store.root]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[:3] == [os.path.realpath(store.current_path("c")), "['active', 'published']", "True"], done.stderr
    assert lines[3].startswith("StoreError") and "belongs to uid 0" in lines[3]
    assert all(line.startswith("StoreError") and "Permission denied" in line for line in lines[4:]), lines
    assert len(states(store)) == 2
