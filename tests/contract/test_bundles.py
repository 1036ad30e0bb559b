"""The post-mortem on disk: private, whole, without secrets or a stranger's markup, readable in a terminal and offline, and not for ever."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, WELL, Place, Ran

FILES = {"report.json", "report.html", "listing.jsonl.gz", "growth.jsonl", "generator.log.gz"}
SHORT = (*QUICK, "--stall-after", "2s", "--first-write-within", "60s")
WRITES = "CACHE = Path(sys.argv[1])\nfor i in range(3): (CACHE / f'layers.{i}.bin').write_bytes(os.urandom(50_000))\n"
DEADLOCK = "import threading\nlock = threading.Lock(); lock.acquire(); threading.Thread(target=lock.acquire).start(); lock.acquire()\n"
FAILS = "sys.exit('no such layer')\n"


def program(place: Place, source: str) -> list[object]:
    return [*place.program(WRITES + source), place.cache]


def bundles(place: Place) -> list[Path]:
    root = place.root / "state/bundles"
    return sorted(root.iterdir()) if root.exists() else []


def texts(bundle: Path) -> dict[str, str]:
    """What each file of a bundle says."""
    raw = {path.name: path.read_bytes() for path in bundle.iterdir()}
    return {
        name: (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8", "replace")
        for name, data in raw.items()
    }


def listed(bundle: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    *entries, end = map(json.loads, texts(bundle)["listing.jsonl.gz"].splitlines())
    return entries, end


def stall(place: Place, *options: object, source: str = "") -> Ran:
    ran = place.exec(*SHORT, *options, command=program(place, source + DEADLOCK))
    assert ran.status == 124, ran.stderr
    return ran


@pytest.mark.parametrize("end", ["a stall", "a crash"])
def test_a_bundle_is_private_whole_and_says_what_the_report_says(place: Place, end: str) -> None:
    ran = stall(place) if end == "a stall" else place.exec(*WELL, command=program(place, FAILS))
    assert ran.status == (124 if end == "a stall" else 1)
    (bundle,) = bundles(place)
    assert ran.report["bundle"] == str(bundle) and f"cachewatch report {bundle}" in ran.stderr
    assert {path.name for path in bundle.iterdir()} == FILES
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in bundle.iterdir()} == {0o600}
    inner = json.loads((bundle / "report.json").read_text())
    assert (inner["diagnosis"], inner["outcome"]) == (ran.report["diagnosis"], ran.report["outcome"])
    tree = [process["parent_pid"] for process in inner["evidence"]["processes"]]
    assert len(tree) == (end == "a stall"), "its guard is none of it"
    entries, last = listed(bundle)
    assert {Path(str(one["path"])).name for one in entries} >= {f"layers.{number}.bin" for number in range(3)}
    assert last["end"] is True and last["cut"] is None
    assert last["files"] == ran.report["listing"]["total_files"] == len(entries)
    assert last["bytes"] == ran.report["listing"]["total_bytes"] == 150_000
    page = html.unescape((bundle / "report.html").read_text())
    for shown in (ran.report["diagnosis"]["summary"][1:], ran.report["diagnosis"]["resolution"], "layers.2.bin"):
        assert shown in page


def test_the_page_needs_nothing_from_elsewhere(place: Place) -> None:
    stall(place)
    page = (bundles(place)[0] / "report.html").read_text()
    assert page.startswith("<!") and page.rstrip().endswith("</html>")
    assert "default-src 'none'" in page
    assert re.findall(r"(?:src|href|action|data)\s*=\s*[\"']?(?!#)|@import|url\(", page) == []


def test_the_command_on_the_page_comes_to_the_same_verdict(place: Place) -> None:
    ran = stall(place)
    command = re.search('<code id="replay">([^<]*)</code>', (bundles(place)[0] / "report.html").read_text())
    assert command is not None
    words = shlex.split(html.unescape(command[1]))
    found = json.loads(place.run(*words[1:], "--json").stdout)
    assert (words[0], found["status"], found["kind"]) == ("cachewatch", "stalled", "no_growth")
    assert found["last_growth_s"] == pytest.approx(ran.report["growth"]["last_growth_s"], abs=0.01)


def test_a_bundle_is_read_in_a_terminal_as_the_newest_by_its_name_and_by_its_path(place: Place) -> None:
    stall(place)
    (bundle,) = bundles(place)
    shown = [place.run("report", *words) for words in ([], [bundle.name], [bundle], [bundle / "report.json"])]
    assert [ran.status for ran in shown] == [0] * 4
    assert len({ran.stdout for ran in shown}) == 1
    lines = shown[0].stdout.splitlines()
    assert lines[0].startswith("stalled: deadlocked (confidence ")
    assert max(len(line) for line in lines if not line.startswith("page")) <= 80
    for words in ([bundle], [bundle / "report.json"]):
        assert place.run("report", "--json", *words).stdout == (bundle / "report.json").read_text()
    table = json.loads(place.run("report", "--list", "--json").stdout)["bundles"]
    assert [(one["path"], one["category"], one["readable"]) for one in table] == [(str(bundle), "deadlocked", True)]


@pytest.mark.parametrize("page", ["there", "missing"])
def test_the_page_is_opened_in_the_browser_if_there_is_one(place: Place, page: str) -> None:
    place.exec(*WELL, command=program(place, FAILS))
    (bundle,) = bundles(place)
    browser = place.root / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {place.root}/opened\n')
    browser.chmod(0o755)
    place.env["BROWSER"] = f"{browser} %s"
    if page == "missing":
        (bundle / "report.html").unlink()
    ran = place.run("report", "--open")
    if page == "there":
        assert (ran.status, (place.root / "opened").read_text()) == (0, f"file://{bundle}/report.html\n")
    else:
        assert (ran.status, ran.stderr.count("\n")) == (125, 1) and not (place.root / "opened").exists()


@pytest.mark.parametrize("what", ["completed", "--no-bundle"])
def test_there_is_no_bundle_where_none_is_wanted(place: Place, what: str) -> None:
    options, source = ([what], FAILS) if what.startswith("-") else ([], "")
    ran = place.exec(*WELL, *options, command=program(place, source))
    assert (ran.status, ran.report["bundle"], bundles(place)) == (1 if options else 0, None, [])


def test_a_run_that_was_cancelled_leaves_what_it_had(place: Place) -> None:
    command = program(place, "print('up', flush=True); time.sleep(3600)")
    with place.start("exec", "--cache-dir", place.cache, *WELL, "--", *command) as watching:
        assert watching.stdout is not None and watching.stdout.readline() == "up\n"
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=120)
    assert watching.returncode == 130
    (bundle,) = bundles(place)
    assert "-cancelled-" in bundle.name and {path.name for path in bundle.iterdir()} == FILES
    report = json.loads((bundle / "report.json").read_text())
    assert (report["outcome"], report["diagnosis"]["category"]) == ("cancelled", "cancelled")
    assert [missing["part"] for missing in report["missing"]] == ["processes"]
    assert listed(bundle)[1]["bytes"] == 150_000
    assert texts(bundle)["generator.log.gz"].startswith("up")


HOSTILE = ["<script>document.title=1<", '"><img src=x onerror=alert(1)>', "a\u202etxt.exe", "x\x1b[2J\n", "`|[x](http:"]


def test_names_and_lines_of_a_stranger_are_no_markup_and_no_terminal_codes(place: Place) -> None:
    names = [name.replace("/", "") for name in HOSTILE]
    source = f"""
for name in {names!r}: (CACHE / name).write_bytes(b'x' * 50)
with open(os.fsencode(CACHE) + b'/\\xff\\xfe.bin', 'wb') as file: file.write(b'12345')
(CACHE / 'link').symlink_to('/etc')
print('</pre><script>2</script> \\x1b[2J', flush=True)
"""
    place.cache = place.root / "<b>x<"
    ran = stall(place, source=source)
    (bundle,) = bundles(place)
    page = (bundle / "report.html").read_text()
    for markup in ("<b>", "<script>1", "<script>2", "<script>doc", "<img", "\x1b", "\u202e"):
        assert markup not in page, markup
    assert page.count("<script>") <= 1
    entries, _ = listed(bundle)
    paths = {os.fsencode(str(one["path"])) for one in entries}
    assert paths >= {os.fsencode(place.cache / name) for name in names}
    assert os.fsencode(place.cache) + b"/\xff\xfe.bin" in paths  # exact, however it is spelled
    assert not any(path.startswith((b"/etc", os.fsencode(place.cache / "link") + b"/")) for path in paths)
    shown = place.run("report").stdout
    assert not {"\x1b", "\u202e"} & set(shown + ran.last_line)


def test_no_secret_reaches_any_output(place: Place) -> None:
    place.env |= {"HF_TOKEN": "sesame-env-11111", "DB_PASSWORD": "sesame-raw-22222"}
    place.cache = place.root / "of-sesame-raw-22222"
    source = """
print('Authorization: Bearer sesame-log-3333'); print('value', os.environ['HF_TOKEN'])
print(os.environ['HF_TOKEN'][:9]); print(os.environ['HF_TOKEN'][9:])
held = open(CACHE / os.environ['HF_TOKEN'], 'wb'); held.write(b'x' * 9000); held.flush()
(CACHE / ('of-' + os.environ['HF_TOKEN'])).mkdir()
print('https://me:sesame-url-4@host/x', os.environ['DB_PASSWORD'], flush=True)
"""
    secret_words = ["--api-key", "sesame-argv-6", "--url=https://me:sesame-url-7@host/"]
    command = [*program(place, source + DEADLOCK), *secret_words]
    ran = place.exec(*SHORT, "--env", "MY_API_KEY=sesame-opt-55555", command=command)
    assert ran.status == 124
    said = texts(bundles(place)[0]) | {
        "stderr": ran.stderr,
        "report": json.dumps(ran.report),
        "terminal": place.run("report").stdout,
        "history": "".join(path.read_text() for path in (place.root / "state/history").iterdir()),
    }
    assert [name for name, text in said.items() if "sesame-" in text or "11111" in text] == []
    assert ran.report["cache_dirs"] == [f"{place.root}/of-***"]
    assert f"{place.root}/of-***/***" in [entry["path"] for entry in ran.report["listing"]["entries"]]


def test_no_secret_of_the_last_line_is_in_the_cause(place: Place) -> None:
    place.env["HF_TOKEN"] = "sesame-env-11111"
    source = (
        "raise PermissionError(13, 'Permission denied', '/m/' + os.environ['HF_TOKEN'] + '?token=sesame-url-22222')"
    )
    ran = place.exec(*WELL, command=program(place, source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (1, "permission_denied")
    assert "sesame" not in ran.last_line + json.dumps(ran.report)


def test_of_a_log_of_many_megabytes_the_end_is_kept(place: Place) -> None:
    source = (
        "for _ in range(100): sys.stdout.write('layer 1 done, password=sesame\\n' * 4000)\nprint('the last line')\n"
    )
    ran = place.exec(*WELL, command=program(place, source + FAILS))
    assert ran.status == 1
    log = texts(bundles(place)[0])["generator.log.gz"]
    assert 0 < len(log) <= 4 << 20 and "sesame" not in log
    assert "the last line" in log


def test_old_bundles_go_by_count_and_by_age_and_nothing_else_goes(place: Place) -> None:
    (root := place.root / "state/bundles").mkdir(parents=True, mode=0o700)
    (place.root / "state").chmod(0o700)

    def make(name: str, age_days: float = 0) -> Path:
        (path := root / name).mkdir()
        (path / "report.json").write_text('{"diagnosis": {}}')
        os.utime(path, (time.time() - age_days * 86400,) * 2)
        return path

    young = [make(f"202601{1 + number // 3:02}T{number:06}Z-x-abcdef") for number in range(55)]
    aged = make("20260301T000000Z-x-abcdef", age_days=31)
    cancelled = [make(f"20260401T{number:06}Z-x--cancelled-abcdef") for number in range(12)]
    mine, elsewhere = make("mine"), place.root / "elsewhere"
    elsewhere.mkdir()
    (root / "20260101T000000Z-link-abcdef").symlink_to(elsewhere)
    ran = place.exec(*WELL, command=program(place, FAILS))
    new = Path(ran.report["bundle"])
    left = set(root.iterdir())
    assert aged not in left and new in left and mine in left and elsewhere.is_dir()
    assert set(cancelled) & left == set(cancelled[-10:])  # they drive out none that explains a failure
    kept = set(young) & left
    assert kept == set(young[-len(kept) :]) and 45 <= len(kept) < 50


def test_a_bundle_for_a_full_disk_goes_elsewhere(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    disk = place.root / "disk"
    place.mounts(f"mkdir {disk}; mount -t tmpfs -o size=2m none {disk}")
    place.env |= {"CACHEWATCH_STATE": str(disk / "state"), "XDG_RUNTIME_DIR": "/dev/shm"}
    place.cache = disk / "cache"
    source = f"""
file = open('{place.cache}/x', 'wb', 0)
try:
    while True: file.write(bytes(4096))
except OSError as error: print(error, flush=True)
time.sleep(3600)
"""
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "disk_full"), ran.said
    bundle = Path(ran.report["bundle"])
    try:
        assert not bundle.is_relative_to(disk) and (bundle / "report.html").exists()
        assert any("in trouble" in note for note in ran.report["notes"])
    finally:
        shutil.rmtree(bundle)


def test_a_bundle_whose_place_hangs_does_not_hold_up_the_end(place: Place) -> None:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    (mount := place.root / "mount").mkdir()
    server, pid_file = Path(__file__).with_name("fuse_daemon.py"), place.root / "fuse.pid"
    script = f'{sys.executable} {server} {mount} memory {pid_file} && mkdir {mount}/cache && exec "$@"'
    place.before = ["unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]
    place.env["CACHEWATCH_STATE"] = str(mount / "cache")
    # Process 1 is the command itself.
    command = ["sh", "-c", f"kill -USR1 $(cat {pid_file}); kill -INT 1; exec sleep 3600"]
    ran = place.exec(*WELL, command=command)
    assert ran.status == 130, ran.stderr
    assert (ran.report["outcome"], ran.report["bundle"], ran.report["diagnosis"]) == ("cancelled", None, None)
