"""The store: what is published and what is refused, what is current, what is found damaged, and what clean-up takes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch import BuildDamaged, CacheStore, NotEnoughSpace, PublishPolicy, StoreError
from tests.contract.builds import NAME, Fill, Recipe, active, beside, listed, offer, states
from tests.contract.harness import WELL, Place
from tests.written import write_safetensors, write_torch

TENSOR = write_safetensors({"t": ("F32", [3], b"x" * 12)})
TRAILING = b"\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n12"


def linked(**links: str) -> Callable[[Path], object]:
    """A file in a directory below, and links beside it."""

    def fill(build: Path) -> None:
        (build / "blobs").mkdir()
        (build / "blobs/x").write_bytes(b"abc")
        for name, target in links.items():
            (build / name).symlink_to(target)

    return fill


def sly(build: Path) -> None:
    """A link that is spelt as if it stayed inside, and resolves to a place outside."""
    (build / "x/y").mkdir(parents=True)
    (build / "b").mkdir()
    (build / "b/f").write_bytes(b"abc")
    (build / "x/y/d").symlink_to("../../b")
    (build / "x/sly").symlink_to("y/d/../../outside")
    (build.parent / "outside").write_bytes(b"abc")


def deep(levels: int) -> Callable[[Path], object]:
    def fill(build: Path) -> None:
        (build / "a.bin").write_bytes(b"abc")
        fd = os.open(build, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir("d", dir_fd=fd)
            fd, above = os.open("d", os.O_RDONLY, dir_fd=fd), fd
            os.close(above)
        os.close(fd)

    return fill


def special(build: Path) -> None:
    (build / "a.bin").write_bytes(b"abc")
    os.mkfifo(build / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        fd = os.open(build, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{fd}/sock")  # a path of its own may be too long for a socket
        os.close(fd)
    if os.geteuid() == 0:
        os.mknod(build / "null", 0o600 | 0o020000, os.makedev(1, 3))


def sparse(build: Path) -> None:
    with open(build / "a.bin", "wb") as file:
        file.truncate(8 << 20)
        file.write(b"x" * (1 << 20))


def marker(*files: str, **more: Any) -> bytes:
    """As `mark_weight_cache_complete` of tt-metal writes it."""
    return json.dumps({"format_version": 3, "cache_files": files, "weights": {"w": [[1], "x"]}} | more).encode()


UNFINISHED = [
    "w.tmp", "d/w.tensorbin.tmp.4711.3", "w.partial", "w.incomplete", "w.part", "w.crdownload", "w.bin~", "w.tmp-12",
    ".w.bin.Ab3dEf", "w.bin.6D1c9aE2", ".rsync-partial/w.bin", "tmpa1b2c3_d", ".tmpAbCdEf", "W.BIN.PART", "engine.tmp/0.engine",
    "\x1b[2J\n.tmp",
]  # fmt: skip
LOOK_ALIKE = [
    "tmp", "template.bin", "tmpfs.json", ".w.sha256", "w.bin.deadbeef", "w.20260131", "part-00001.bin", ".gitignore",
]  # fmt: skip
TWO = {"layers.0.bin": b"x", "d/layers.1.bin": b"x"}
# What is written, the category of the refusal, the files that it names (None: not looked at), the policy.
REFUSED: dict[str, tuple[Fill, str, tuple[str, ...] | None, dict[str, Any]]] = {
    **{f"unfinished {name}": ({"a": b"x", name: b"x"}, "temporary_file", (name,), {}) for name in UNFINISHED},
    "empty file": ({"a": b"x", "d/b.bin": b""}, "empty_file", ("d/b.bin",), {}),
    "nothing": ({}, "empty_cache", (), {}),
    "nothing but an empty file": ({"READY": b""}, "empty_cache", (), {}),
    "nothing but what is ignored": ({"run.log": b"x"}, "empty_cache", None, {"ignore": ["*.log"]}),
    "another number of files": (TWO, "wrong_file_count", (), {"expected_files": 3}),
    "a name that is expected": (TWO, "missing_file", None, {"expected_files": ["layers.*.bin", "config.json"]}),
    "cut off": ({"a.safetensors": TENSOR[:-1], "b.safetensors": TENSOR}, "broken_content", ("a.safetensors",), {}),
    "never written": (sparse, "unwritten_part", ("a.bin",), {}),
    "links outside": (
        linked(up="../other", abs="/etc/passwd", dangling="nothing"),
        "link_escapes",
        ("abs", "dangling", "up"),
        {},
    ),
    "a link that only looks inside": (sly, "link_escapes", ("x/sly",), {}),
    "pipes, sockets, devices": (
        special, "special_file", ("null", "pipe", "sock") if os.geteuid() == 0 else ("pipe", "sock"), {},
    ),
    "too deep": (deep(201), "unreadable", None, {}),
    "much too deep": (deep(1500), "unreadable", None, {}),
    "a marker that lists more": (
        {"n300/l/a.bin": b"\0", "n300/.weights_complete.3f2a90b1c4d5": marker("l/a.bin", "b.tensorbin")},
        "broken_content", ("n300/.weights_complete.3f2a90b1c4d5",), {},
    ),
    "a marker that is cut": ({"a.bin": b"\0", ".weights_complete": marker("a.bin")[:-9]}, "broken_content", None, {}),
    "a marker that is no list": ({"a.bin": b"\0", ".weights_complete": b"[]"}, "broken_content", None, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_whole_is_refused_and_what_is_current_stays(root: Path, case: str) -> None:
    fill, category, paths, policy = REFUSED[case]
    first = offer(root)
    refused = offer(root, fill, key="2", **policy)
    assert refused.refused == [category], refused.said
    finding = refused.findings[0]
    assert paths is None or finding.paths == paths
    assert "\n" not in finding.message and "\x1b" not in finding.message
    record = json.loads(beside(refused.path, ".bad").read_text())
    assert [one["category"] for one in record["findings"] if one["severity"] == "refuse"] == [category]
    assert states(root) == {refused.build_id: "quarantined", first.build_id: "active"} | strangers(root)
    assert CacheStore(root).verify(NAME).whole
    again = offer(root, key="2")  # the next run of the key begins anew
    assert not again.adopted and active(root) == again.build_id
    assert CacheStore(root).gc(NAME, keep=1, keep_quarantined=0, grace_s=0).problems == ()
    assert states(root) == {again.build_id: "active"} | strangers(root)


def strangers(root: Path) -> dict[str, str]:
    """What lies among the builds and is none of them."""
    return {"outside": "damaged"} if (root / NAME / "builds/outside").exists() else {}


def shared(build: Path) -> None:
    """A file that is linked from outside, where it could be changed."""
    (build / "a.bin").write_bytes(b"x")
    os.link(build / "a.bin", build.parent.parent / "outside")


def vouched(build: Path) -> None:
    (build / "a.bin").write_bytes(b"x")
    (build / "b.bin").symlink_to("a.bin")
    (build / "c.log").write_bytes(b"x")
    (build / ".weights_complete").write_bytes(marker("a.bin", "b.bin", "c.log"))


def twice(build: Path) -> None:
    (build / "a.bin").write_bytes(b"x")
    os.link(build / "a.bin", build / "b.bin")


ALLOWED: dict[str, tuple[Fill, list[str], dict[str, Any]]] = {
    "names that only look unfinished": (dict.fromkeys(LOOK_ALIKE, b"x"), [], {}),
    "what may be empty": ({"a": b"x", "d/b.json": b""}, [], {"allow_empty_files": ["b.json"]}),
    "what may have holes": (sparse, [], {"allow_sparse": ["a.*"]}),
    "names of the store's own records": ({"a.json": b"{}", "a.bad": b"x", ".begun": b"x", "current": b"x"}, [], {}),
    "files by number": (TWO, [], {"expected_files": 2}),
    "files by glob": (TWO, [], {"expected_files": ["layers.*.bin", "d/*"]}),
    "links inside": (linked(model="blobs/x", snapshot="blobs"), [], {}),
    "names of any bytes": ({os.fsdecode(name): name for name in (b"\xff\xfe", b"new\nline", b"\x1b[31m", b"x" * 255)}, [], {}),
    "a file with two names": (twice, [], {}),
    "a file with a name outside": (shared, ["shared_file"], {}),
    "cut off, and only a warning": ({"a.safetensors": TENSOR[:-1]}, ["broken_content"], {"on_broken_content": "warn"}),
    "cut off, and not looked at": ({"a.safetensors": TENSOR[:-1]}, [], {"on_broken_content": "ignore"}),
    "cut off, and no part of it": ({"a": b"x", "run.npy": b"cut"}, [], {"ignore": ["run.*"]}),
    "more than its format needs": ({"b.npy": TRAILING}, ["suspicious_content"], {}),
    "a marker of what is there": ({"l/a.bin": b"\0", ".weights_complete": marker("l/a.bin")}, [], {}),
    "a marker of links, and of what is no part of the cache": (vouched, [], {"ignore": ["*.log"]}),
    "a marker without a list": (
        {"a.bin": b"\0", ".weights_complete": marker(format_version=2, cache_files=None)}, ["suspicious_content"], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_whole_is_published_and_current_with_its_warnings(root: Path, case: str) -> None:
    fill, warnings, policy = ALLOWED[case]
    done = offer(root, fill, **policy)
    assert (done.refused, done.warned) == ([], warnings), done.said
    assert (active(root), states(root)) == (done.build_id, {done.build_id: "active"})
    if "on_broken_content" not in policy:
        assert "broken" not in {finding.verdict for _, finding in CacheStore(root).inspect(NAME)}
    manifest = json.loads(beside(done.path, ".json").read_text())
    assert len(manifest["warnings"]) == len(warnings)
    assert CacheStore(root).verify(NAME).whole


@pytest.mark.parametrize(("size", "inside"), [(49, False), (50, True), (200, True), (201, False)])
def test_a_size_far_from_that_of_the_last_build_is_a_warning(root: Path, size: int, inside: bool) -> None:
    offer(root, {"a": b"x" * 100})
    assert offer(root, {"a": b"x" * size}).warned == ([] if inside else ["size_out_of_band"])


def test_the_manifest_lists_every_file_with_its_digest_and_no_secret(root: Path) -> None:
    files = {"a.bin": b"abc", "d/b.bin": b"defg", "run.log": b"no part of it"}
    done = offer(root, files, argv=("gen", "--token", "hunter2", "{cache_dir}"), ignore=["*.log"])
    text = beside(done.path, ".json").read_text()
    manifest = json.loads(text)
    assert [(one["path"], one["size_bytes"], one["digest"]) for one in manifest["files"]] == [
        (path, len(files[path]), hashlib.sha256(files[path]).hexdigest()) for path in ("a.bin", "d/b.bin")
    ]
    assert (manifest["totals"], manifest["cache_key"]) == ({"bytes": 7, "files": 2}, {"v": "1"})
    assert manifest["host"]["hostname"] == socket.gethostname()
    assert "hunter2" not in text


def test_a_build_is_published_only_as_it_was_checked(root: Path) -> None:
    first = offer(root)

    rules = PublishPolicy(store=root)
    with CacheStore(root).begin(NAME, Recipe()) as build:  # type: ignore[arg-type]
        assert os.listdir(build.path) == []  # some generators skip what is not empty
        Path(build.path, "a.bin").write_bytes(b"abc")
        with pytest.raises(StoreError):
            build.publish(rules)
        findings = build.check(rules)
        Path(build.path, "late.bin").write_bytes(b"x")
        with pytest.raises(StoreError):
            build.publish(rules, findings=findings)
    assert (active(root), states(root)[build.build_id]) == (first.build_id, "abandoned")


# -- damage


def change_files(build: Path, **changes: bytes | None) -> None:
    for name, data in changes.items():
        if data is None:
            (build / name).unlink()
        else:
            (build / name).write_bytes(data)


def edit_manifest(build: Path, change: Callable[[bytes], bytes]) -> None:
    file = beside(build, ".json")
    file.write_bytes(change(file.read_bytes()))


def of_another(build: Path) -> None:
    (other,) = (one for one in build.parent.iterdir() if one.is_dir() and one != build)
    (beside(build, ".json")).write_bytes(beside(other, ".json").read_bytes())


DAMAGE: dict[str, tuple[Callable[[Path], object], bool]] = {  # and whether names and sizes show it
    "cut": (lambda build: change_files(build, one=b"ab"), True),
    "gone": (lambda build: change_files(build, one=None), True),
    "added": (lambda build: change_files(build, more=b"x"), True),
    "other contents": (lambda build: change_files(build, one=b"xyz"), False),
    "a link that leads elsewhere": (lambda build: ((build / "to").unlink(), (build / "to").symlink_to("two")), True),
    "manifest cut": (lambda build: edit_manifest(build, lambda data: data[:-20]), True),
    "manifest empty": (lambda build: edit_manifest(build, lambda _: b""), True),
    "manifest edited": (lambda build: edit_manifest(build, lambda data: data.replace(b": 3", b": 4", 1)), True),
    "manifest of a later version": (
        lambda build: edit_manifest(build, lambda data: re.sub(rb'"schema_version": \d+', b'"schema_version": 99', data)),
        True,
    ),
    "manifest of another build": (of_another, True),
}  # fmt: skip


def three(build: Path) -> None:
    (build / "one").write_bytes(b"abc")
    (build / "two").write_bytes(b"abc")
    (build / "to").symlink_to("one")


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_build_is_told_never_activated_never_cached_and_passed_over(
    root: Path, place: Place, case: str
) -> None:
    damage, quick = DAMAGE[case]
    store, key = CacheStore(root), Recipe(cache_key={"v": "1"}).key
    good, bad = offer(root, three), offer(root, three)
    damage(bad.path)
    assert (store.find_whole(NAME, key) is None) is quick
    ran = place.run("store", "verify", root, NAME, "--json")
    assert (ran.status, json.loads(ran.stdout)["whole"]) == (1, False)
    assert store.find_whole(NAME, key) is None
    assert (listed(root)[bad.build_id].status or listed(root)[bad.build_id].state) == "damaged"
    assert store.rollback(NAME).build_id == good.build_id
    with pytest.raises(BuildDamaged):
        store.activate(NAME, bad.build_id, verify="full")
    assert store.activate(NAME).build_id == good.build_id == active(root)
    store.gc(NAME, keep=1, grace_s=0)
    assert bad.build_id in states(root), "for a person to look at"


def test_what_was_found_against_a_build_stays_until_a_person_activates_it(root: Path) -> None:
    store, key = CacheStore(root), Recipe(cache_key={"v": "1"}).key
    first, bad = offer(root), offer(root)
    (bad.path / "a.bin").write_bytes(b"xyz")
    with pytest.raises(BuildDamaged):
        store.verify(NAME)
    (bad.path / "a.bin").write_bytes(b"abc")
    with store.open_current(NAME) as held:
        assert held.build_id == bad.build_id and held.warning
    assert store.verify(NAME).whole and store.find_whole(NAME, key) is None
    store.activate(NAME, bad.build_id)
    found = store.find_whole(NAME, key)
    assert found is not None and found[0].build_id == bad.build_id
    store.rollback(NAME, expected=bad.build_id, unhealthy="exit 7")
    (bad.path / "a.bin").write_bytes(b"xyz")
    with pytest.raises(BuildDamaged):
        store.verify(NAME, bad.build_id)
    assert (listed(root)[bad.build_id].status, listed(root)[bad.build_id].why) == ("unhealthy", "exit 7"), "the first"
    done = store.activate(NAME)
    assert (done.build_id, len(done.skipped)) == (first.build_id, 1)


def test_a_file_of_the_same_size_and_date_with_other_contents_is_seen_by_a_roll_back(root: Path) -> None:
    first, second, _ = offer(root), offer(root), offer(root)
    status = os.stat(second.path / "a.bin")
    (second.path / "a.bin").write_bytes(b"xyz")
    os.utime(second.path / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    back = CacheStore(root).rollback(NAME)
    assert (back.build_id, len(back.skipped)) == (first.build_id, 1)
    assert listed(root)[second.build_id].state == "damaged"


@pytest.mark.parametrize("how", ["cut", "of no kind", "empty"])
def test_a_cut_reason_against_a_build_still_counts_and_a_person_takes_it_back(root: Path, how: str) -> None:
    store, key = CacheStore(root), Recipe(cache_key={"v": "1"}).key
    first, second = offer(root), offer(root)
    store.rollback(NAME)
    record = beside(second.path, ".bad")
    text = {"cut": record.read_bytes()[:15], "of no kind": b'{"status": "fine", "why": "", "at": ""}', "empty": b""}
    record.write_bytes(text[how])
    assert listed(root)[second.build_id].status == "damaged"
    assert store.activate(NAME).build_id == first.build_id == active(root)
    found = store.find_whole(NAME, key)
    assert found is not None and found[0].build_id == first.build_id
    store.gc(NAME, keep=1, grace_s=0)
    assert store.activate(NAME, second.build_id).build_id == second.build_id and not record.exists()


@pytest.mark.parametrize("how", ["cut", "of no clock", "gone"])
def test_a_record_of_a_dead_run_that_was_cut_costs_the_resume_and_no_build(root: Path, how: str) -> None:
    def dies(build: Path) -> None:
        (build / "a.bin").write_bytes(b"abc")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        offer(root, dies)
    (left,) = states(root)
    record = beside(root / NAME / "builds" / left, ".begun")
    whole = record.read_bytes()
    if how == "gone":
        record.unlink()
    else:
        record.write_bytes(
            whole[:-20] if how == "cut" else whole.replace(b'"started_s": ', b'"started_s": 1e999, "x": ')
        )
        os.utime(record, (0, 0))  # its writer has ended
    again = offer(root)
    assert not again.adopted and active(root) == again.build_id
    assert (root / NAME / "builds" / left / "a.bin").exists()


MOVED: dict[str, Callable[[Path], object]] = {
    "its lock file": lambda build: (build.parents[1] / ".lock").unlink(),
    "its directory": lambda build: (build.rename(build.parents[2] / "moved"), build.mkdir()),
    "its record": lambda build: beside(build, ".begun").unlink(),
    "published by another": lambda build: beside(build, ".json").write_text("{}"),
}


@pytest.mark.parametrize("what", MOVED)
def test_a_writer_that_may_have_been_replaced_publishes_nothing(root: Path, what: str) -> None:
    first = offer(root)
    store, rules = CacheStore(root), PublishPolicy(store=root)
    with store.begin(NAME, Recipe(cache_key={"v": "2"})) as build:  # type: ignore[arg-type]
        Path(build.path, "a.bin").write_bytes(b"abc")
        findings = build.check(rules)
        MOVED[what](Path(build.path))
        with pytest.raises(StoreError):
            build.publish(rules, findings=findings)
    assert active(root) == first.build_id and store.verify(NAME).whole


def test_a_record_that_is_cut_while_its_run_lives_is_written_whole_again(root: Path) -> None:
    store = CacheStore(root)
    with store.begin(NAME, Recipe(cache_key={"v": "1"})) as build:  # type: ignore[arg-type]
        os.truncate(beside(Path(build.path), ".begun"), 300)
        build.note_growth()
    assert offer(root).adopted


def left_by(root: Path, how: str) -> Path:
    """A build of a run that died, with its record changed."""

    def dies(build: Path) -> None:
        (build / "a.bin").write_bytes(b"abc")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        offer(root, dies)
    (build,) = (path for path in (root / NAME / "builds").iterdir() if path.is_dir())
    record = beside(build, ".begun")
    data = record.read_bytes()
    body = json.loads(data[256:])
    if how == "of another boot":
        body["boot"] = "another"
    rest = b'old": 1}' if how == "of this boot" else b""
    record.write_bytes(data[:256] + json.dumps(body).encode() + b"\n" + rest)
    os.utime(record, (0, 0))  # its writer has ended
    return build


@pytest.mark.parametrize("how", ["of this boot", "of another boot"])
def test_a_build_is_resumed_only_where_the_locks_of_its_writer_are_seen(root: Path, how: str) -> None:
    build = left_by(root, how)
    expected = how == "of this boot"
    again = offer(root)
    assert (again.adopted, again.path == build) == (expected, expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("ending", ["", ".begun"])
def test_a_build_that_is_another_users_is_not_resumed(root: Path, ending: str) -> None:
    build = left_by(root, "of this boot")
    os.chown(str(build) + ending, 65534, 65534)
    assert not offer(root).adopted
    assert (build / "a.bin").read_bytes() == b"abc"


@pytest.mark.parametrize("ending", ["", ".begun", ".json", ".bad"])
def test_a_place_that_somebody_else_took_before_is_refused_and_left_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    first = offer(root)
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr("time.time", lambda: 86_400.0)
    place = root / NAME / f"builds/19700102T000000000Z-00000000{ending}"
    if ending:
        place.write_text("theirs")
        os.utime(place, (0, 0))  # it is no sign of a writer on another host
    else:
        place.mkdir()
        (place / "a.bin").write_text("theirs")
    with pytest.raises(StoreError, match="put there by something else"):
        offer(root, key="2")
    assert (place if ending else place / "a.bin").read_text() == "theirs"
    monkeypatch.undo()
    assert not offer(root, key="2").adopted and CacheStore(root).verify(NAME, first.build_id).whole


def test_a_build_that_was_current_is_never_resumed(root: Path) -> None:
    first = offer(root)
    beside(first.path, ".json").unlink()
    again = offer(root, {"other.bin": b"x"})
    assert not again.adopted and (first.path / "a.bin").exists() and active(root) == again.build_id


def test_a_run_takes_nothing_back_that_is_known_against_a_build(root: Path) -> None:
    store = CacheStore(root)
    first, bad = offer(root), offer(root)
    store.rollback(NAME)
    with pytest.raises(StoreError, match="rolled back"):
        store.activate(NAME, bad.build_id, forgive=False)
    assert active(root) == first.build_id and listed(root)[bad.build_id].status == "rolled_back"
    assert store.activate(NAME, bad.build_id).previous == first.build_id


def test_an_unhealthy_build_gives_way_to_what_was_current_right_before_it(root: Path) -> None:
    store = CacheStore(root)
    first, second = offer(root), offer(root)
    store.activate(NAME, first.build_id)
    third = offer(root)
    assert store.rollback(NAME, expected=third.build_id, unhealthy="exit 7", verify="full").build_id == first.build_id
    assert store.activate(NAME, second.build_id, verify="full").previous == first.build_id


def test_a_roll_back_takes_back_an_activation_by_hand(root: Path) -> None:
    store = CacheStore(root)
    first, second = offer(root), offer(root)
    store.activate(NAME, first.build_id)
    assert store.rollback(NAME).build_id == second.build_id == active(root)
    assert listed(root)[first.build_id].status == "rolled_back"


def test_a_lock_file_that_has_another_name_too_is_refused(root: Path) -> None:
    first = offer(root)
    (root / "theirs").write_text("theirs")
    (root / NAME / ".lock").unlink()
    os.link(root / "theirs", root / NAME / ".lock")
    with pytest.raises(StoreError, match="remove it"):
        offer(root)
    assert ((root / "theirs").read_text(), active(root)) == ("theirs", first.build_id)


def listed_directories(root: Path) -> list[str]:
    return [path.name for path in (root / NAME / "builds").iterdir() if path.is_dir()]


# -- the command


def test_the_command_lists_rolls_back_activates_and_cleans_up(root: Path, place: Place) -> None:
    first, second, third = (offer(root, {"a.bin": b"x" * size}).build_id for size in (1, 2, 3))

    def store(verb: str, *words: object, status: int = 0) -> Any:
        ran = place.run("store", verb, root, NAME, *words, "--json")
        assert ran.status == status, ran.stderr
        return json.loads(ran.stdout) if ran.stdout else ran.stderr

    def shown() -> list[tuple[str, str, str | None]]:
        return [(build["build_id"], build["state"], build["status"]) for build in store("list")]

    assert shown() == [(third, "active", None), (second, "published", None), (first, "published", None)]
    assert [build["total_bytes"] for build in store("list")] == [3, 2, 1]
    assert store("verify")["whole"] and store("verify", "--build", first)["whole"]
    different = store("verify", "--against", first, status=1)
    assert [one["kind"] for one in different["differences"]] == ["size"]
    assert store("rollback")["build_id"] == second
    assert store("rollback")["build_id"] == first
    assert store("rollback", status=125).count("\n") == 1  # nothing was current before it
    assert shown() == [
        (third, "published", "rolled_back"),
        (second, "published", "rolled_back"),
        (first, "active", None),
    ]
    assert store("activate")["build_id"] == first, "what was rolled back from is passed over"
    assert store("activate", third)["previous"] == first
    assert active(root) == third
    dry = store("gc", "--keep", "1", "--grace", "0", "--dry-run")
    assert [one["build_id"] for one in dry["decisions"] if one["remove"]] and len(states(root)) == 3
    assert store("gc", "--keep", "1")["freed_bytes"] == 0, "they were current within the grace time"
    assert store("gc", "--keep", "1", "--grace", "0")["freed_bytes"] == 3
    assert states(root) == {third: "active"}


def test_the_tables_of_the_command_fit_a_terminal(root: Path, place: Place) -> None:
    offer(root), offer(root, {"a.tmp": b"x"})
    for words in (("list", root, NAME), ("list", root), ("gc", root, NAME, "--dry-run")):
        ran = place.run("store", *words)
        assert ran.status == 0 and all(len(line) <= 80 for line in ran.stdout.splitlines() if "/" not in line), (
            ran.stdout
        )


def test_verify_content_finds_what_was_published_broken(root: Path, place: Place) -> None:
    files = {"a.safetensors": TENSOR[:-1], "b.safetensors": TENSOR, "c.safetensors": write_torch([b"x"])}
    done = offer(root, files, on_broken_content="ignore")
    assert place.run("store", "verify", root, NAME).status == 0
    ran = place.run("store", "verify", root, NAME, "--content", "--json")
    body = json.loads(ran.stdout)
    assert (ran.status, body["whole"], len(body["problems"])) == (1, False, 1)
    assert [one["verdict"] for one in body["content"]] == ["broken", "whole", "suspicious"]
    assert listed(root)[done.build_id].status == "damaged"


BAD_INPUT = {
    "no store": ["list", "/nowhere", NAME],
    "a root that is a file": ["list", "{root}/file", NAME],
    "the root of all": ["list", "/", NAME],
    "a name that leads out": ["list", "{root}", "../c"],
    "no such cache": ["verify", "{root}", "other"],
    "no such build": ["activate", "{root}", NAME, "20260131T235959123Z-0a1b2c3d"],
    "no build id": ["activate", "{root}", NAME, "../builds/x"],
    "none to compare with": ["verify", "{root}", NAME, "--against", "20260101T000000000Z-00000000"],
    "keep nothing": ["gc", "{root}", NAME, "--keep", "0"],
    "nothing before": ["rollback", "{root}", NAME],
}


def test_bad_input_is_one_sentence_and_nothing_is_touched(root: Path, place: Place) -> None:
    (root / "file").touch()
    only = offer(root).build_id
    before = sorted(root.rglob("*"))
    for case, words in BAD_INPUT.items():
        ran = place.run("store", *(word.replace("{root}", str(root)) for word in words))
        assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), (case, ran)
        assert ran.stderr.startswith("cachewatch: "), case
    assert (sorted(root.rglob("*")), active(root)) == (before, only)


def test_a_name_that_could_leave_the_store_or_break_a_tool_is_refused(root: Path) -> None:
    store = CacheStore(root)
    for name in ("../x", "a/b", "..", ".", "/etc", "", ".hidden", "-rf", "a\nb", "a\0b", "é" * 101):
        for act in (store.list_builds, store.gc, lambda name: store.begin(name, Recipe())):  # type: ignore[arg-type]
            with pytest.raises(StoreError) as caught:
                act(name)
            assert "\n" not in str(caught.value) and "\0" not in str(caught.value)
    assert list(root.iterdir()) == []


# -- keys


def test_a_whole_build_of_the_same_key_is_found_and_no_other(root: Path) -> None:
    store = CacheStore(root)

    def found(key: str) -> str | None:
        hit = store.find_whole(NAME, Recipe(cache_key={"v": key}).key)
        return hit[0].build_id if hit else None

    assert store.find_whole("nowhere", "0" * 64) is None
    old, first = offer(root).build_id, offer(root).build_id
    assert (found("1"), found("2")) == (first, None)
    waiting = offer(root, key="2", activate=False).build_id
    assert (active(root), found("2")) == (first, waiting), "it was never current: its publisher died before the switch"
    store.activate(NAME, waiting)
    assert found("1") is None, "a former current build is old"
    store.rollback(NAME)
    assert (active(root), found("1"), found("2")) == (first, first, None), "nor one that was rolled back from"
    assert old in states(root)


def test_a_build_that_a_dead_run_left_is_resumed_under_its_key_only(root: Path) -> None:
    def dies(build: Path) -> None:
        (build / "a.bin").write_bytes(b"abc")
        raise KeyboardInterrupt

    for key in ("1", "1", "2"):
        with pytest.raises(KeyboardInterrupt):
            offer(root, dies, key=key)
    assert list(states(root).values()) == ["abandoned"] * 2
    assert not offer(root, key="3").adopted
    assert offer(root, key="1").adopted, "each record beside its build names its key"
    store = CacheStore(root)
    assert store.gc(NAME, keep=1, grace_s=3600).removed == ()
    assert len(store.gc(NAME, keep=1, grace_s=0).removed) == 2, "that of key 2, and that of key 3"


def test_a_file_that_may_be_cut_and_cannot_be_removed_is_never_published(tmp_path: Path) -> None:
    def dies(build: Path) -> None:
        (build / "a.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        offer(tmp_path, dies)
    (cut,) = (tmp_path / NAME / "builds").glob("*/a.bin")
    if os.geteuid() != 0 or subprocess.run(["chattr", "+i", str(cut)], check=False, capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        with pytest.raises(StoreError):
            offer(tmp_path)
        assert active(tmp_path) is None
    finally:
        subprocess.run(["chattr", "-i", str(cut)], check=True)
    done = offer(tmp_path)
    assert done.adopted and (done.path / "a.bin").read_bytes() == b"abc"


def test_there_must_be_room_before_the_first_byte(root: Path) -> None:
    store = CacheStore(root)
    with pytest.raises(NotEnoughSpace):
        store.require_space(NAME, expected_bytes=10**17)
    assert list(root.iterdir()) == []
    offer(root)
    store.require_space(NAME)


# -- what somebody planted


@pytest.mark.parametrize("where", ["c", "c/builds", "c/.lock", "c/.switch", "c/builds/{id}"])
def test_a_link_in_a_place_of_the_store_is_refused_and_not_followed(root: Path, where: str) -> None:
    first = offer(root)
    place = root / where.replace("{id}", first.build_id)
    bait = root / "bait"
    place.rename(bait)
    place.symlink_to(bait)
    before = {path: path.read_bytes() for path in [bait, *bait.rglob("*")] if path.is_file()}
    with pytest.raises(StoreError):
        if "id" in where:
            CacheStore(root).activate(NAME, first.build_id)
        else:
            offer(root)
    assert {path: path.read_bytes() for path in [bait, *bait.rglob("*")] if path.is_file()} == before


@pytest.mark.parametrize("ending", [".json", ".bad", ".begun"])
def test_a_link_in_the_place_of_a_record_is_not_followed(root: Path, tmp_path: Path, ending: str) -> None:
    store, first = CacheStore(root), offer(root)
    place, bait = beside(first.path, ending), tmp_path / "bait"
    bait.write_text("bait")
    place.unlink(missing_ok=True)
    place.symlink_to(bait)
    if ending == ".json":
        with pytest.raises(StoreError):
            store.open_current(NAME)
    else:
        offer(root)
        store.gc(NAME, keep=1, grace_s=0)
    assert bait.read_text() == "bait"


@pytest.mark.parametrize(
    "target", ["/etc", "../other/builds/20260131T235959123Z-0a1b2c3d", "builds/..", "builds/x", "a directory"]
)
def test_a_current_that_is_none_is_told_and_nothing_is_removed(root: Path, target: str) -> None:
    store = CacheStore(root)
    offer(root), offer(root)
    link = root / NAME / "current"
    link.unlink()
    if target == "a directory":
        link.mkdir()
    else:
        link.symlink_to(target)
    for act in (store.open_current, store.rollback, store.verify, lambda name: store.gc(name, keep=1, grace_s=0)):
        with pytest.raises(StoreError):
            act(NAME)
    assert len(listed_directories(root)) == 2


def test_directories_of_others_among_the_builds_stay_and_harm_nothing(root: Path, place: Place) -> None:
    kept = offer(root).build_id
    builds = root / NAME / "builds"
    names = [b"-rf\n\x1b[2J", b"\xffbad", b"notes", b"20260101T000000000Z-XYZ"]
    for name in names:
        os.mkdir(os.path.join(os.fsencode(builds), name))
        (builds / os.fsdecode(name) / "theirs").write_text("theirs")
    os.mkfifo(builds / "20260101T000000000Z-00000000")
    (builds / "loop").symlink_to("loop")
    (root / NAME / "quarantine/kept-by-hand").mkdir(parents=True)
    for words in (["list"], ["gc", "--grace", "0s", "--keep-quarantined", "0"], ["gc", "--json"], ["verify"]):
        ran = place.run("store", words[0], root, NAME, *words[1:])
        assert ran.status == 0, ran.stderr
        assert "Traceback" not in ran.stderr and "\x1b" not in ran.stdout + ran.stderr
    offer(root)
    assert all((builds / os.fsdecode(name) / "theirs").exists() for name in names)
    assert (builds / "20260101T000000000Z-00000000").is_fifo() and (builds / "loop").is_symlink()
    assert (root / NAME / "quarantine/kept-by-hand").is_dir() and kept in states(root)


@pytest.mark.parametrize("how", ["file", "link", "dangling", "gone"])
def test_a_build_whose_directory_was_replaced_is_begun_anew(root: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "theirs").write_text("theirs")
    first = offer(root)

    def replaced(build: Path) -> None:
        build.rmdir()
        if how == "file":
            build.write_text("x")
        elif how != "gone":
            build.symlink_to(tmp_path if how == "link" else "nowhere")

    with pytest.raises(StoreError):
        offer(root, replaced)
    assert active(root) == first.build_id
    assert not offer(root).adopted
    CacheStore(root).gc(NAME, keep=1, grace_s=0)
    assert list(states(root).values()) == ["active"] and (tmp_path / "theirs").exists()


# -- clean-up


def test_clean_up_keeps_what_a_reader_or_its_child_holds(root: Path) -> None:
    store = CacheStore(root)
    old = offer(root)
    with store.open_current(NAME) as pinned:
        child = subprocess.Popen(["sleep", "600"], pass_fds=[pinned.fileno()])
    try:
        new = offer(root)
        assert [one.reason for one in store.gc(NAME, keep=1, grace_s=0).decisions] == ["active", "pinned"]
        assert (old.path / "a.bin").read_bytes() == b"abc"
    finally:
        child.kill()
        child.wait()
    assert len(store.gc(NAME, keep=1, grace_s=0).removed) == 1
    assert states(root) == {new.build_id: "active"}


def test_clean_up_goes_by_the_switch_and_by_no_date_that_a_generator_sets(root: Path) -> None:
    store = CacheStore(root)
    for date_s in (-(10**9), 0, 4 * 10**9, 4 * 10**10):
        old, refused = offer(root), offer(root, {"a.tmp": b"x"}, key="2")
        new = offer(root)
        for path in [old.path, refused.path, *old.path.rglob("*"), *refused.path.rglob("*")]:
            os.utime(path, (date_s, date_s))
        assert store.gc(NAME, keep=1, keep_quarantined=0, grace_s=3600).removed == (), date_s
        store.gc(NAME, keep=1, keep_quarantined=0, grace_s=0)
        assert states(root) == {new.build_id: "active"}, date_s


def test_clean_up_prefers_builds_in_order_and_what_a_roll_back_would_go_to(root: Path) -> None:
    store = CacheStore(root)
    first, second = offer(root).build_id, offer(root).build_id
    waiting = offer(root, activate=False).build_id
    unhealthy = offer(root).build_id
    store.rollback(NAME, expected=unhealthy, unhealthy="exit 7")
    store.gc(NAME, keep=3, grace_s=0)
    assert set(states(root)) == {first, second, waiting}


def test_refused_builds_are_bounded_by_number_and_the_last_one_stays(root: Path) -> None:
    made = [offer(root, {"a.tmp": b"x"}).build_id for _ in range(5)]
    store = CacheStore(root)
    assert store.prune_quarantine(NAME, keep=3) == [] and sorted(states(root)) == made[-3:]
    store.prune_quarantine(NAME, keep=0)
    assert sorted(states(root)) == made[-1:]


# -- the flow, which runs the generator and the check command


def test_generate_publishes_finds_the_same_key_resumes_nothing_and_refuses(place: Place) -> None:
    writes = place.program("""
        [Path(sys.argv[1], f'{n}.bin').write_bytes(b'x' * 9000) for n in range(3)]
        if (PLACE / 'leave').exists():
            Path(sys.argv[1], 'w.partial').write_bytes(b'x')
    """)

    def generate(*words: str) -> tuple[int, str, Any]:
        ran = place.generate(*WELL, "--attempts", "1", *words, command=[*writes, "{cache_dir}"])
        return ran.status, ran.report["outcome"], ran.report["publication"]

    status, outcome, first = generate("--key", "dtype=bf16")
    assert (status, outcome, first["status"]) == (0, "completed", "published")
    assert json.loads(Path(first["manifest"]).read_text())["cache_key"] == {"dtype": "bf16"}
    current = place.current()
    assert current is not None and (current / "2.bin").read_bytes() == b"x" * 9000
    assert generate("--key", "dtype=bf16")[:2] == (0, "cached")
    (place.root / "leave").touch()
    status, outcome, publication = generate("--key", "dtype=bf8")
    assert (status, outcome, publication["findings"][0]["category"]) == (1, "verification_failed", "temporary_file")
    assert Path(publication["quarantine"], "w.partial").exists()
    (place.root / "leave").unlink()
    status, outcome, publication = generate("--key", "dtype=bf8", "--check", "false {cache_dir}")
    assert (status, outcome) == (1, "verification_failed")
    assert "check_command_failed" in [one["category"] for one in publication["findings"]]
    assert os.path.realpath(current) == first["path"]


@pytest.mark.parametrize(
    "words",
    [
        ["--store", "{root}/none", "--name", "c", "--", "true", "{cache_dir}"],
        ["--store", "{root}", "--", "true", "{cache_dir}"],
        ["--store", "{root}", "--name", "c", "--", "true"],
        ["--store", "{root}", "--name", "c", "--key", "dtype", "--", "true", "{cache_dir}"],
        ["--store", "{root}", "--name", "c", "--expect", "900TB", "--", "true", "{cache_dir}"],
    ],
    ids=["no store", "no name", "not told where", "no key", "no room"],
)
def test_generate_with_bad_input_is_one_sentence_and_nothing_is_touched(
    root: Path, place: Place, words: list[str]
) -> None:
    ran = place.run("generate", *(word.replace("{root}", str(root)) for word in words))
    assert (ran.status, ran.stderr.count("\n"), list(root.iterdir())) == (125, 1, []), ran.stderr
