"""Bundles on a real disk: private, complete or saying what is cut, pruned, and without secrets."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import shlex
import stat
import time
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from prefect_cachewatch.cli.group import command_group
from prefect_cachewatch.cli.main import COMMANDS
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.postmortem.bundle import BUNDLE_FILES, BundleContent, write_bundle
from prefect_cachewatch.postmortem.bundlestore import choose_bundle_root, find_bundles, load_report, prune_bundles
from prefect_cachewatch.postmortem.diagnosis import diagnose
from prefect_cachewatch.postmortem.model import Evidence, FilesystemFacts, GrowthFacts, ProcessFacts, PythonThread
from prefect_cachewatch.watching.sections import Diagnosis

HOSTILE = [
    "<script>document.title='owned'<",
    '"><img src=x onerror=alert(1)>',
    "a\u202etxt.exe",
    "x\x1b[2J\n",
    "javascript:alert(1)",
    "`|[x](http:",
]


def content(cache: Path, **more) -> BundleContent:
    evidence = more.pop(
        "evidence",
        Evidence(
            growth=GrowthFacts(samples=((0.0, 0, 0), (10.0, 100, 4096))),
            processes=(
                ProcessFacts(
                    7, 1, "gen", ("gen", "--token", "***"), python_threads=(PythonThread(7, "M", ("f (a:1)",)),)
                ),
            ),
        ),
    )
    report = {
        "schema_version": 1,
        "outcome": "stalled",
        "stall": {"kind": "no_growth", "window_s": 5.0, "pause_s": 5.0},
        "message": "Tensor cache generation stalled.",
        "name": "llama",
        "growth": {"last_growth_s": 10.0, "bytes_written": 100, "samples": []},
        "duration_s": 15.0,
        "listing": {"total_files": 0, "total_bytes": 0, "entries": [], "rest": []},
    } | more.pop("report", {})
    diagnosis = more.pop("diagnosis", diagnose(evidence))
    return BundleContent("Llama 3 / 70B", report, evidence, diagnosis, [str(cache)], **more)


@pytest.fixture
def cache(tmp_path):
    made = tmp_path / "cache"
    (made / "sub").mkdir(parents=True)
    for index, name in enumerate(HOSTILE):
        (made / name).write_bytes(b"x" * index)
    with open(os.fsencode(made / "sub") + b"/\xff\xfe.bin", "wb") as file:
        file.write(b"12345")
    (made / "link").symlink_to("/etc")
    return made


@pytest.mark.parametrize("broken", [{"log": lambda size: 1 / 0}, {"report": {"notes": [object()]}}])
def test_of_a_bundle_that_cannot_be_written_nothing_stays(tmp_path, cache, broken):
    with pytest.raises((ZeroDivisionError, TypeError)):
        write_bundle(tmp_path / "bundles", content(cache, **broken))
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_bundle_is_private_and_has_every_file(tmp_path, cache):
    written = write_bundle(tmp_path / "state" / "bundles", content(cache))
    assert sorted(path.name for path in written.path.iterdir()) == sorted(BUNDLE_FILES)
    assert stat.S_IMODE(written.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.path.iterdir()} == {0o600}
    assert written.cut == ()
    assert load_report(written.path)["diagnosis"]["category"] == "never_started"
    assert (written.path / "growth.csv").read_text().splitlines() == [
        "t_s,bytes_written,allocated_written_bytes,total_bytes,file_count,grew_at_s",
        "0.000,0,0,0,0,",
        "10.000,100,4096,100,1,10.000",
    ]
    assert "f (a:1)" in (written.path / "stacks.txt").read_text()
    assert json.loads((written.path / "processes.json").read_text())["processes"][0]["pid"] == 7


def test_the_command_on_the_page_judges_the_growth_again_with_the_same_verdict(tmp_path, cache):
    samples = tuple((t * 1.0, min(t, 10) << 20, min(t, 10) << 20) for t in range(15))
    evidence = Evidence(growth=GrowthFacts(samples=(*samples, (14.6, 10 << 20, 10 << 20))))
    report = {"growth": {"last_growth_s": 9.5, "bytes_written": 1000, "samples": []}}
    written = write_bundle(tmp_path / "bundles", content(cache, evidence=evidence, report=report))
    page = (written.path / "report.html").read_text()
    command = re.search('<code id="replay">([^<]*)</code>', page)
    assert command is not None
    words = shlex.split(html.unescape(command[1]))
    assert words == ["cachewatch", "replay", f"{written.path}/growth.csv", "--stall-after", "5s", "--poll", "1.0s"]
    told = CliRunner().invoke(command_group(COMMANDS), [*words[1:], "--json"])
    found = json.loads(told.stdout)
    assert (found["status"], found["kind"], found["last_growth_s"], found["at_s"]) == (
        "stalled",
        "no_growth",
        9.5,
        14.5,
    )


def test_the_listing_is_complete_lossless_and_follows_no_symlink(tmp_path, cache):
    written = write_bundle(tmp_path / "bundles", content(cache))
    lines = [json.loads(line) for line in gzip.open(written.path / "listing.jsonl.gz")]
    assert lines[-1] == {"end": True, "files": 8, "bytes": sum(range(6)) + 5 + len("/etc"), "cut": None}
    paths = {os.fsencode(line["path"]) for line in lines[:-1]}
    assert os.fsencode(cache / "sub") + b"/\xff\xfe.bin" in paths
    assert {os.fsencode(cache / name) for name in HOSTILE} < paths
    assert not any(b"/etc" in path for path in paths)


def test_a_listing_that_takes_too_long_is_cut_and_says_so(tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    for index in range(3000):
        (many / f"f{index}").touch()
    written = write_bundle(tmp_path / "bundles", content(many), listing_s=0.0)
    lines = [json.loads(line) for line in gzip.open(written.path / "listing.jsonl.gz")]
    assert lines[-1] == {"end": True, "files": 1000, "bytes": 0, "cut": "after 0 s"}
    assert written.cut == ("listing.jsonl.gz holds the first 1000 files: cut after 0 s",)
    assert load_report(written.path)["cut"] == list(written.cut)


def test_a_file_system_that_hangs_is_not_listed(tmp_path, cache):
    evidence = Evidence(filesystems=(FilesystemFacts(str(cache), responded=False),))
    written = write_bundle(tmp_path / "bundles", content(cache, evidence=evidence))
    assert gzip.open(written.path / "listing.jsonl.gz").read() == b""
    assert written.cut == (f"listing.jsonl.gz is empty: {cache} does not answer",)


def test_a_log_of_many_megabytes_is_bounded_in_size_and_time(tmp_path, cache):
    log = b"layer 1 done, password=sesame\n" * 400_000
    started = time.monotonic()
    written = write_bundle(tmp_path / "bundles", content(cache, log=lambda size: log[-size:]), log_s=0.3)
    assert time.monotonic() - started < 60
    text = gzip.open(written.path / "generator.log.gz").read()
    assert 0 < len(text) <= 4 << 20
    assert b"sesame" not in text
    assert any("generator.log.gz" in cut for cut in written.cut)


def test_no_secret_is_in_any_byte_of_the_bundle(tmp_path, cache):
    log = b"token=sesame-1\nAuthorization: Bearer sesame-2-abcdefg\nhttps://u:sesame-3@h/\nthe value is sesame-4\n"
    (cache / "of-sesame-4").write_text("x")
    told = content(cache, log=lambda size: log, secrets=["sesame-4"])
    written = write_bundle(tmp_path / "bundles", told, listing_s=60)
    assert b"/of-***" in gzip.open(written.path / "listing.jsonl.gz").read()
    for path in written.path.iterdir():
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = zlib.decompress(raw, 31)
        assert b"sesame" not in raw, path


def test_the_page_has_no_address_and_no_markup_of_a_stranger(tmp_path, cache):
    entries = [
        {"path": str(cache / name), "size_bytes": 1, "allocated_bytes": 1, "age_s": 1.0, "flags": [], "modified_at": ""}
        for name in HOSTILE
    ]
    report = {
        "listing": {"total_files": 6, "total_bytes": 6, "entries": entries, "rest": []},
        "name": "<b>x</b>",
        "message": "</p><script>1</script>",
        "command": ["<i>"],
        "notes": ["<u>"],
    }
    diagnosis = Diagnosis("unknown", "<s>", ("<img src=http://x>",), "<a href=x>", "low")
    written = write_bundle(
        tmp_path / "bundles",
        content(cache, report=report, diagnosis=diagnosis, log=lambda size: b"</pre><script>2</script>"),
    )
    page = (written.path / "report.html").read_text()
    for markup in (
        "<b>",
        "<script>1",
        "<script>2",
        "<script>doc",
        "<img",
        "<i>",
        "<u>",
        "<s>",
        "<a ",
        "\x1b",
        "\u202e",
    ):
        assert markup not in page, markup
    assert page.count("<script>") == 1
    assert "default-src 'none'" in page


def test_an_unfinished_bundle_is_not_found(tmp_path, cache):
    root = tmp_path / "bundles"
    write_bundle(root, content(cache))
    (root / ".20260101T000000Z-x-abcdef.partial").mkdir()
    (root / "notes").mkdir()
    assert len(find_bundles(root)) == 1


def _old(root: Path, stamp: str, job: str = "x", age_s: float = 0.0) -> Path:
    path = root / f"{stamp}-{job}-abcdef"
    path.mkdir(parents=True)
    (path / "report.json").write_text("{}")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_old_bundles_go_by_count_and_by_age_and_nothing_else_goes(tmp_path):
    root = tmp_path / "bundles"
    newest = _old(root, "20260105T000000Z")
    middle = _old(root, "20260104T000000Z")
    aged = _old(root, "20260103T000000Z", age_s=1000)
    (root / "mine").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / "20260101T000000Z-x-abcdef").symlink_to(elsewhere)
    assert prune_bundles(root, keep=5, max_age_s=500) == [aged]
    assert prune_bundles(root, keep=1, max_age_s=500) == [middle]
    assert prune_bundles(root, keep=0, max_age_s=500, spare=[newest]) == []
    assert elsewhere.is_dir() and (root / "mine").is_dir() and newest.is_dir()


def test_bundles_of_cancelled_runs_drive_out_none_that_explains_a_stall(tmp_path):
    root = tmp_path / "bundles"
    stalled = [_old(root, f"2026010{day}T000000Z", "llama-cancelled") for day in (1, 2)]  # so is the job called
    cancelled = [_old(root, f"202602{day:02}T000000Z", "llama--cancelled") for day in range(1, 13)]
    assert set(prune_bundles(root, keep=2, max_age_s=500)) == set(cancelled[:2])
    assert all(path.is_dir() for path in stalled)


MOUNTS = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - ext4 /dev/b rw\n3 1 0:3 / /dev/shm rw - tmpfs t rw\n"


@pytest.mark.parametrize(
    ("facts", "place", "noted"),
    [
        (FilesystemFacts("/c", mount_point="/", free_bytes=0), "/home/me/.local/state/cachewatch/bundles", False),
        (
            FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10),
            "/home/me/.local/state/cachewatch/bundles",
            True,
        ),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=0), None, True),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10, responded=False), None, True),
    ],
)
def test_a_bundle_does_not_go_where_the_trouble_is(facts, place, noted):
    root = choose_bundle_root([facts], None, {"HOME": "/home/me"}, MOUNTS)
    assert bool(root.note) is noted
    if place:
        assert str(root.path) == place
    else:
        assert not str(root.path).startswith("/home")


def test_the_command_shows_lists_and_opens_bundles(tmp_path, cache, monkeypatch):
    root = tmp_path / "cachewatch" / "bundles"
    written = write_bundle(root, content(cache))
    run = CliRunner(env={"XDG_STATE_HOME": str(tmp_path), "CACHEWATCH_STATE": None})
    shown = run.invoke(command_group(COMMANDS), ["report", str(written.path)])
    assert shown.exit_code == 0
    assert shown.output.startswith("stalled: never_started")
    assert max(len(line) for line in shown.output.splitlines() if not line.startswith("page")) <= 80
    assert run.invoke(command_group(COMMANDS), ["report"]).output == shown.output
    listed = run.invoke(command_group(COMMANDS), ["report", "--list"]).output
    assert written.path.name in listed and str(root) in listed
    assert (
        json.loads(run.invoke(command_group(COMMANDS), ["report", "--json", str(written.path)]).output)["name"]
        == "llama"
    )
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    assert run.invoke(command_group(COMMANDS), ["report", "--open", str(written.path)]).exit_code == 0
    assert opened == [(written.path / "report.html").as_uri()]


def test_what_is_not_a_bundle_gets_one_sentence(tmp_path):
    (tmp_path / "report.json").write_text("{")
    (tmp_path / "deep").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path, "no JSON"),
        (tmp_path / "deep", "no JSON"),
        (tmp_path / "nowhere", "is missing"),
        (Path("/etc"), "is missing"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path / "pipe", "no regular file"),
    ):
        with pytest.raises(InputError, match=words):
            load_report(path)
