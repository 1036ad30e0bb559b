"""What is known against builds, and what lies in a build that a generator had no business to put there."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path)


def recipe_of(store, *words):
    return BuildRecipe.of(["gen", *words, "{cache_dir}"], PublishPolicy(store=store.root))


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


def cachewatch(*words):
    command = [sys.executable, "-m", "prefect_cachewatch.cli.main", "store", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


# -- what is known


def test_a_build_that_verify_found_damaged_is_not_cached_again_though_names_and_sizes_agree(store):
    build = publish(store)
    key = recipe_of(store).key
    Path(build.path, "a.bin").write_text("xyz")
    assert store.find_whole("c", key) is not None, "quick looks at names and sizes"
    with pytest.raises(BuildDamaged):
        store.verify("c", build.build_id)
    assert store.find_whole("c", key) is None
    found = listed(store)[build.build_id]
    assert (found.state, found.status) == ("active", "damaged") and "a.bin has other contents" in found.why
    Path(build.path, "a.bin").write_text("abc")
    with store.open_current("c") as held:
        assert held.build_id == build.build_id and "a.bin has other contents" in held.warning
    assert store.verify("c", build.build_id).whole
    assert store.find_whole("c", key) is None, "what was found against it stays until a person has chosen it"
    assert store.activate("c", build.build_id).build_id == build.build_id
    assert store.find_whole("c", key) is not None


def test_the_first_reason_against_a_build_stays_until_it_is_activated_by_its_id(store):
    a, b = publish(store).build_id, publish(store).build_id
    store.rollback("c", expected=b, unhealthy="exit 7")
    Path(store.root, "c/builds", b, "a.bin").write_text("xyz")
    with pytest.raises(BuildDamaged):
        store.verify("c", b)
    assert (listed(store)[b].status, listed(store)[b].why) == ("unhealthy", "exit 7")
    with pytest.raises(BuildDamaged):
        store.activate("c", b)
    Path(store.root, "c/builds", b, "a.bin").write_text("abc")
    assert store.activate("c", b).previous == a and listed(store)[b].status is None


def test_roll_back_sees_other_contents_of_the_same_size_without_reading_what_nobody_touched(store):
    a, b, _ = (publish(store) for _ in range(3))
    status = os.stat(f"{b.path}/a.bin")
    Path(b.path, "a.bin").write_text("xyz")
    os.utime(f"{b.path}/a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    back = store.rollback("c")
    assert back.build_id == a.build_id
    assert len(back.skipped) == 1 and b.build_id in back.skipped[0] and "other contents" in back.skipped[0]
    assert listed(store)[b.build_id].state == "damaged"
    with pytest.raises(BuildDamaged, match="other contents"):
        store.activate("c", b.build_id)
    assert [d.reason for d in store.gc("c", keep=1, grace_s=0).decisions if d.build_id == b.build_id] == ["damaged"]


def test_roll_back_passes_over_what_was_found_damaged_or_unhealthy_before_and_says_which(store):
    a, b, c, d = (publish(store).build_id for _ in range(4))
    store.rollback("c", expected=d, unhealthy="the server did not answer")
    assert listed(store)[d].status == "unhealthy"
    store.rollback("c")
    assert os.readlink(store.current_path("c")) == f"builds/{b}"
    store.activate("c", d)
    assert listed(store)[d].status is None, "a person chose it"
    e = publish(store).build_id
    store.rollback("c", expected=e, unhealthy="again")
    store.activate("c", c)
    store.rollback("c")
    assert listed(store)[c].status == "rolled_back"
    done = cachewatch("list", store.root, "c")
    row = next(line for line in done.stdout.splitlines() if line.startswith(c))
    assert row.endswith("rolled back")
    assert f"unhealthy at {listed(store)[e].since}: again" in done.stdout
    as_json = {build["build_id"]: build for build in json.loads(cachewatch("list", store.root, "c", "--json").stdout)}
    assert (as_json[e]["status"], as_json[e]["why"], as_json[a]["status"]) == ("unhealthy", "again", None)


def test_roll_back_refuses_where_everything_before_is_bad(store):
    a, b = publish(store), publish(store)
    Path(a.path, "a.bin").write_text("xyz")
    with pytest.raises(StoreError, match=f"{a.build_id} .* other contents .* {b.build_id} stays active"):
        store.rollback("c")
    done = cachewatch("rollback", store.root, "c")
    assert done.returncode == 125 and "damaged at " in done.stderr and done.stderr.count("\n") == 1
    assert os.readlink(store.current_path("c")) == f"builds/{b.build_id}"


def test_activate_without_an_id_passes_over_what_was_unhealthy_or_rolled_back_from(store):
    a, b = publish(store).build_id, publish(store).build_id
    store.rollback("c", expected=b, unhealthy="exit 7")
    done = store.activate("c")
    assert (done.build_id, len(done.skipped)) == (a, 1) and "unhealthy" in done.skipped[0] and b in done.skipped[0]
    said = cachewatch("activate", store.root, "c").stdout
    assert f"passed over: the build {b} was unhealthy" in said
    assert store.activate("c", b).build_id == b


def test_clean_up_keeps_builds_in_order_before_those_that_were_unhealthy(store):
    a, b = publish(store).build_id, publish(store).build_id
    c = publish(store, activate=False).build_id
    d = publish(store).build_id
    store.rollback("c", expected=d, unhealthy="exit 7")
    store.gc("c", keep=3, grace_s=0)
    assert set(listed(store)) == {a, b, c}


def test_a_record_that_was_cut_lets_no_damaged_build_pass(store):
    build = publish(store)
    Path(build.path, "a.bin").write_text("xyz")
    with pytest.raises(BuildDamaged):
        store.verify("c")
    (store.root / "c/.status.json").write_text('{"builds": {')
    with pytest.raises(StoreError, match="was cut short or edited: move it away"):
        store.find_whole("c", recipe_of(store).key)


# -- what a generator puts into a build


def test_a_build_seeded_with_the_last_one_and_then_stalled_is_resumed_and_collected(store):
    first = publish(store)
    with store.begin("c", recipe_of(store)) as build:
        subprocess.run(["cp", "-a", f"{first.path}/.", build.path], check=True)
    assert listed(store)[build.build_id].state == "abandoned"
    with store.begin("c", recipe_of(store)) as again:
        assert again.adopted and again.build_id == build.build_id
    with store.begin("c", recipe_of(store, "other")) as other:
        other.discard()
    assert listed(store)[build.build_id].state == "abandoned"
    store.gc("c", keep=1, grace_s=0)
    assert list(listed(store)) == [first.build_id]


@pytest.mark.parametrize("how", ["file", "link", "dangling", "directory", "fifo", "copied"])
def test_what_a_generator_calls_cachewatch_is_refused_once_and_the_next_run_begins_anew(store, how):
    policy = PublishPolicy(store=store.root)
    first = publish(store)
    with store.begin("c", recipe_of(store)) as build:
        Path(build.path, "a.bin").write_text("abc")
        place = Path(build.path, ".cachewatch")
        if how == "file":
            place.write_text("mine")
        elif how in ("link", "dangling"):
            place.symlink_to(first.path if how == "link" else "nowhere")
        elif how == "fifo":
            os.mkfifo(place)
        else:
            subprocess.run(["cp", "-a", f"{first.path}/.cachewatch", place], check=True)
        if how == "directory":
            (place / "notes.txt").write_text("mine")
        found = build.check(policy)
        if how == "copied":
            build.publish(policy, findings=found)
            assert store.verify("c", build.build_id).whole
            return
        assert [finding.category for finding in found] == ["reserved_name"]
        assert ".cachewatch is cachewatch's own name in a build" in found[0].message
        where = build.quarantine(found, "refused")
    assert (
        json.loads(Path(where, ".cachewatch/quarantine.json").read_text())["findings"][0]["category"] == "reserved_name"
    )
    assert (Path(first.path) / ".cachewatch/manifest.json").exists()
    with store.begin("c", recipe_of(store)) as again:
        assert not again.adopted
    assert store.verify("c").whole


@pytest.mark.parametrize("levels", [201, 1500])
def test_a_build_nested_too_deep_is_refused_once_and_can_be_removed(store, levels):
    policy = PublishPolicy(store=store.root)
    publish(store)
    with store.begin("c", recipe_of(store)) as build:
        fd = os.open(build.path, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir("d", dir_fd=fd)
            fd, above = os.open("d", os.O_RDONLY, dir_fd=fd), fd
            os.close(above)
        os.close(fd)
        Path(build.path, "a.bin").write_text("abc")
        found = build.check(policy)
        assert [finding.category for finding in found] == ["unreadable"]
        assert "nested more than 200 directories deep" in found[0].message
        build.quarantine(found, "refused")
    with store.begin("c", recipe_of(store)) as again:
        assert not again.adopted
        again.discard()
    store.gc("c", keep=1, keep_quarantined=0, grace_s=0)
    assert [build.state for build in store.list_builds("c")] == ["active"]
    assert [path.name for path in (store.root / "c/quarantine").iterdir()] == []


@pytest.mark.parametrize("how", ["file", "link", "dangling", "gone"])
def test_a_build_whose_directory_was_replaced_is_begun_anew_and_collected(store, tmp_path_factory, how):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "theirs").write_text("theirs")
    publish(store)
    with store.begin("c", recipe_of(store)) as build:
        os.rmdir(build.path)
        if how == "file":
            Path(build.path).write_text("x")
        elif how != "gone":
            os.symlink(elsewhere if how == "link" else "nowhere", build.path)
        with pytest.raises(StoreError, match=r"is not a directory|is a symbolic link|there is no"):
            build.check(PublishPolicy(store=store.root))
    with store.begin("c", recipe_of(store)) as again:
        assert not again.adopted
        again.discard()
    store.gc("c", keep=1, grace_s=0)
    assert [build.state for build in store.list_builds("c")] == ["active"]
    assert (elsewhere / "theirs").exists()


def test_sockets_pipes_and_devices_in_a_build_are_named(store):
    policy = PublishPolicy(store=store.root)
    with store.begin("c", recipe_of(store)) as build:
        Path(build.path, "a.bin").write_text("abc")
        os.mkfifo(f"{build.path}/pipe")
        here = os.getcwd()
        os.chdir(build.path)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind("sock")
        finally:
            os.chdir(here)
        expected = ("pipe", "sock")
        if os.geteuid() == 0:
            os.mknod(f"{build.path}/null", 0o600 | 0o020000, os.makedev(1, 3))
            expected = ("null", "pipe", "sock")
        (finding,) = build.check(policy)
        assert (finding.category, finding.paths) == ("special_file", expected)
        build.quarantine([finding], "refused")
    with store.begin("c", recipe_of(store)) as again:
        assert not again.adopted


AS_NOBODY = """
import os, sys
from pathlib import Path
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe
os.setgid(65534); os.setuid(65534)
store, policy = CacheStore(sys.argv[1]), PublishPolicy(store=sys.argv[1])
recipe = BuildRecipe.of(["g"], policy)
with store.begin("c", recipe) as build:
    Path(build.path, "a.bin").write_text("abc")
    os.mkdir(build.path + "/closed")
    os.chmod(build.path + "/closed", 0)
    os.chmod(build.path + "/a.bin", 0)
    found = build.check(policy)
    print([(f.category, f.paths) for f in found])
    build.quarantine(found, "refused")
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
    assert done.stdout.splitlines() == ["[('unreadable', ('a.bin', 'closed'))]", "False"], done.stderr


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
        build.quarantine([], "refused")
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
@pytest.mark.parametrize("where", ["c", "c/builds", "c/quarantine"])
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


# -- dates


@pytest.mark.parametrize(
    "date_s", [-(10**9), 0, 4 * 10**9, 4 * 10**10], ids=["before 1970", "1970", "future", "after 2262"]
)
def test_no_date_that_a_generator_sets_makes_a_build_young_or_old_for_clean_up(store, date_s):
    old = publish(store)
    with store.begin("c", recipe_of(store, "abandoned")) as abandoned:
        Path(abandoned.path, "a.bin").write_text("abc")
    with store.begin("c", recipe_of(store, "refused")) as refused:
        Path(refused.path, "a.tmp").write_text("abc")
        where = refused.quarantine(refused.check(PublishPolicy(store=store.root)), "refused")
    active = publish(store)
    for path in [old.path, abandoned.path, where, *Path(where).rglob("*"), *Path(old.path).rglob("*")]:
        os.utime(path, (date_s, date_s))
    for path in Path(abandoned.path).iterdir():
        os.utime(path, (date_s, date_s))
    assert store.gc("c", keep=1, keep_quarantined=0, grace_s=3600).removed == (), "not old"
    time.sleep(0.1)
    assert len(store.gc("c", keep=1, keep_quarantined=0, grace_s=0.05).removed) == 3, "not young"
    assert list(listed(store)) == [active.build_id] and store.verify("c").whole


def test_refused_builds_are_bounded_by_number(store):
    policy = PublishPolicy(store=store.root)
    made = []
    for _ in range(5):
        with store.begin("c", recipe_of(store)) as build:
            Path(build.path, "a.tmp").write_text("x" * 100)
            build.quarantine(build.check(policy), "refused")
        made.append(build.build_id)
        (store.root / "c/quarantine/kept-by-hand").mkdir(exist_ok=True)
        assert store.prune_quarantine("c", keep=3) == []
    assert sorted(listed(store)) == made[-3:]
    store.prune_quarantine("c", keep=0)
    assert sorted(listed(store)) == made[-1:], "the last one always stays"
    assert (store.root / "c/quarantine/kept-by-hand").is_dir()


# -- hostile surroundings


def test_names_that_no_build_has_are_harmless_in_every_list(store):
    publish(store)
    builds = store.root / "c" / "builds"
    for name in (b"-rf\n\x1b[2J", b"\xffbad"):
        os.mkdir(os.path.join(os.fsencode(builds), name))
    os.mkfifo(builds / "20260101T000000000Z-00000000")
    os.symlink("loop", builds / "loop")
    for words in (["list"], ["gc", "--grace", "0s"], ["gc", "--json"], ["rollback"]):
        done = cachewatch(*words[:1], store.root, "c", *words[1:])
        assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr, words
        assert done.returncode == (125 if words == ["rollback"] else 0)
    assert len(os.listdir(builds)) == 5


def test_a_fault_that_cannot_be_noted_is_said(store):
    build = publish(store)
    Path(build.path, "b.npy").write_bytes(b"cut")
    os.mkdir(store.root / "c" / ".status.json")
    problems: list[str] = []
    assert dict(store.inspect("c", problems=problems))["b.npy"].verdict == "broken"
    assert len(problems) == 1 and problems[0].endswith(".status.json: Is a directory")
    with pytest.raises(
        BuildDamaged, match=r"is not whole: b\.npy is not in the manifest.* It is not noted: cannot read .*"
    ):
        store.verify("c")
