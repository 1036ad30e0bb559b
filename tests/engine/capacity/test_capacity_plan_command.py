"""`cachewatch plan` with files that people write: units, profiles, traces; one sentence where something is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.units import parse_per_second, parse_rate
from prefect_cachewatch.cli.main import main

GOOD = """
storage: {name: nas, write: {one_bytes_per_s: 250MB/s, all_bytes_per_s: 600MB/s}}
link: 10G
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s}
"""
STORAGE = "{name: nas, write: {one_bytes_per_s: 250MB/s, all_bytes_per_s: 600MB/s}}"
PROFILE = """
name: nfs-a
basis: measured
small_file_s: 4ms
write:
  points: [{n: 1, bytes_per_s: 100MB/s}, {n: 4, bytes_per_s: 250MB/s}]
"""


class Planner:
    """Runs the command in a directory with `plan.yaml`."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys = place, capsys

    def write(self, text: str, name: str = "plan.yaml") -> Path:
        (self.place / name).write_text(text)
        return self.place / name

    def run(self, *words: object) -> tuple[int, str, str]:
        """Status, what was printed, and the sentence of a refusal."""
        with pytest.raises(SystemExit) as caught:
            main(["plan", str(self.place / "plan.yaml"), *map(str, words)])
        out, err = self.capsys.readouterr()
        return int(caught.value.code or 0), out, err

    def refused(self, *words: object) -> str:
        status, out, err = self.run(*words)
        assert (status, out) == (125, "")
        assert err.startswith("cachewatch: ")
        assert err.count("\n") == 1
        return err

    def answer(self, *words: object) -> Any:
        """The answer as JSON."""
        status, out, err = self.run("--json", *words)
        assert (status, err) == (0, "")
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))


@pytest.fixture
def planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(tmp_path, capsys)


def test_units_are_read_as_people_write_them(planner: Planner) -> None:
    given = read_plan(planner.write(GOOD + "policy: {derate: 0.2}\n"))
    assert (given.workloads[0].burst_bytes, given.workloads[0].think_s, given.policy.derate) == (2e9, 10, 0.2)
    assert (given.link.bytes_per_s, given.link.hosts) == (1.25e9, 1)
    assert [parse_rate(text) for text in ("125MiB/s", "15GB/s", "800 Mbit/s", "5000", "80bit/s")] == [
        125 * 2**20, 15e9, 1e8, 5000, 10,
    ]  # fmt: skip
    assert [parse_rate(name) for name in ("10G", "25G", "40G", "100g")] == [1.25e9, 3.125e9, 5e9, 12.5e9]
    for odd in ("20G", "10G/s", "1000M"):
        with pytest.raises(ValueError, match="may mean bits or bytes"):
            parse_rate(odd)
    assert [parse_per_second(text) for text in ("1M", "250k/s", "1.5e6")] == [1e6, 250e3, 1.5e6]


def test_a_profile_is_looked_for_beside_the_plan(planner: Planner) -> None:
    planner.write(PROFILE, "nfs-a.yaml")
    found = read_plan(planner.write(GOOD.replace(STORAGE, "nfs-a.yaml"))).storage
    assert (found.name, found.basis, found.write and found.write.measured_n) == ("nfs-a", "measured", 4)
    assert found.small_file_s == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("burst_bytes", "burst_byte", r"workloads\[0\]\.burst_byte is not known: did you mean burst_bytes\?"),
        ("10s", "ten", r"workloads\[0\]\.think_s: 'ten' is not a duration"),
        ("2GB", "0", r"workloads\[0\]\.burst_bytes = 0: input should be greater than 0"),
        ("2GB", "1GB/s", "'1GB/s' is not a size"),
        (", burst_bytes: 2GB", "", r"workloads\[0\]\.burst_bytes is missing: Bytes of one burst"),
        ("10G", "10GbE", r"link\.bytes_per_s: '10GbE' is not a rate"),
        ("10G", "10", r"link\.bytes_per_s = 10: input should be greater than or equal to 100000"),
        ("10G", "{bytes_per_s: '9600'}", r"link\.bytes_per_s = 9600\.0: input should be greater than or equal to 100000"),
        ("10G", "yes", "link = True: it is a mapping"),
        ("name: caches", "name: \"a\\tb\"", r"workloads\[0\]\.name: 'a\\tb' has a control character in it: leave it out"),
        ("10G", "{hosts: 0, bytes_per_s: 10G}", r"link\.hosts = 0"),
        (STORAGE, "{name: x}", "has no curve"),
        (STORAGE, "nowhere.yaml", "nowhere.yaml cannot be read"),
        (STORAGE, '"a\\0b.yaml"', "cannot be read"),
        (STORAGE, "plan.yaml", "storage is not known"),
        (STORAGE, "{name: x, write: {points: []}}", "needs points, or"),
        (STORAGE, "{name: x, write: {points: [{n: 2, bytes_per_s: 5}]}}", "no point at n = 1"),
        (STORAGE, "{name: x, write: {points: [{n: 1, bytes_per_s: 5}, {n: 1, bytes_per_s: 5}]}}", "points out of order"),
        (STORAGE, "{name: x, write: {points: [{n: 1, bytes_per_s: 5}], one_bytes_per_s: 5}}", "and not both"),
        (STORAGE, "{name: x, write: {one_bytes_per_s: 9, all_bytes_per_s: 5}}", "exchange the two numbers"),
        (STORAGE, "{name: x, read: {one_bytes_per_s: 5, all_bytes_per_s: 5}}", "no curve for 'caches', a class of generation"),
        ("10s}", "10s, jobs: 5, running: 2}", "'caches' has jobs of a batch and running ones, which always run: keep one of the two"),
        ("10s}", "10s, running: 2}", "every class of workloads has running"),
        ("10s}", "10s}\n  - {name: caches, burst_bytes: 1, think_s: 1}", r"plan\.yaml: two workloads are named 'caches': give each class"),
        ("10s}", "10s}\n  - {name: loads, burst_bytes: 1, think_s: 1}", "several workloads share one limit"),
        ("10s}", "10s}" + "".join(f"\n  - {{name: {name}, burst_bytes: 1, think_s: 1, running: 500}}" for name in ("b", "c")),
         "more than 999 running jobs"),
        ("  - {name: caches, burst_bytes: 2GB, think_s: 10s}", "  []", r"workloads = \[\]: list should have at least 1 item"),
        (GOOD, "", "it = None: it is a mapping: write `name: value` lines below it, of storage, link, workloads"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_one_sentence_with_file_and_field(planner: Planner, old: str, new: str, told: str) -> None:
    planner.write(GOOD.replace(old, new, 1))
    assert re.search(told, planner.refused())


@pytest.mark.parametrize("kind", ["FIFO", "directory", "device", "nothing"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(planner: Planner, kind: str) -> None:
    odd = Path("/dev/null") if kind == "device" else planner.place / "odd"
    if kind != "device":
        {"FIFO": os.mkfifo, "directory": os.mkdir, "nothing": lambda path: None}[kind](odd)
    for text, words in ((GOOD, ["--from-trace", odd]), (GOOD.replace(STORAGE, str(odd)), [])):
        planner.write(text)
        assert re.search("cannot be read|is a directory", planner.refused(*words))
    planner.place.joinpath("plan.yaml").unlink()
    planner.place.joinpath("plan.yaml").symlink_to(odd)
    assert re.search("cannot be read", planner.refused())


def test_what_does_not_fit_is_refused_first_with_the_bytes_that_are_missing(planner: Planner) -> None:
    # 20 caches x 20 GB = 400 GB, and 72 GiB = 77.3 GB are free: 323 GB are missing.
    jobs = "10s, bursts_per_job: 10, jobs: 20"
    planner.write(GOOD.replace("nas,", "nas, free_bytes: 72GiB,").replace("10s", jobs))
    assert planner.refused() == (
        "cachewatch: 20 caches do not fit on nas: they leave 400 GB and 77.3 GB are free, so 323 GB are missing: make room, "
        "or plan fewer jobs\n"
    )


WILD = """
storage:
  name: disk
  small_file_s: 4ms
  files_per_s: 1000
  free_bytes: 12TB
  ops_per_s: 1M
  port_bytes_per_s: 40G
  units: 1
  write:
    points: [{n: 1, bytes_per_s: 180MB/s, spread: 0.1}, {n: 2, bytes_per_s: 330MB/s}, {n: 4, bytes_per_s: 560MB/s}]
link: {bytes_per_s: 10Gbit/s, hosts: 2}
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s, files_per_burst: 8, bursts_per_job: 8, jobs: 4,
    op_bytes: 1MiB, compression: {ratio: 2, bytes_per_s: 400MB/s}}
  - {name: beside, burst_bytes: 1GB, think_s: 5s, running: 2}
policy: {derate: 0.1}
"""
FIELDS = sorted(
    set(re.findall(r"(\w+: [^,{}\[\]\n]+?)(?=[,}\n])", WILD)) - {"name: disk", "name: caches", "name: beside"}
)
VALUES = [".nan", ".inf", "-.inf", "0", "-1", "1e308", "1e-320", "\u0663", "[]", "null", "true", "5GB", "1000"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_nobody_means_is_one_sentence_or_an_answer(planner: Planner, field: str) -> None:
    for value in VALUES:
        planner.write(WILD.replace(field, f"{field.partition(':')[0]}: {value}", 1))
        status, out, err = planner.run("--picture", planner.place / "plan.svg")
        if status:
            assert (status, out, err.count("\n")) == (125, "", 1), value
            continue
        assert not re.search(r"\b(nan|inf)\b", out), value
        assert max(map(len, out.splitlines())) <= 80
        assert (planner.place / "plan.svg").read_text().startswith("<svg")


def test_a_test_of_ones_own_is_held_against_the_plan_and_drawn(planner: Planner) -> None:
    planner.write(GOOD)
    slow, same, odd = (planner.answer("--got", f"4:{took}")["notes"][0] for took in ("60s", "10.9s", "0s"))
    assert re.fullmatch(r"At 4 at once: planned 11 s a burst, got 60 s: slower than planned, by 5\.\d+ times\.", slow)
    assert same.endswith("within 25%.")
    assert odd.endswith("faster than planned, by any number of times.")
    for wrong in ("27s", "5:soon"):
        assert "write it like 10:27s" in planner.refused("--got", wrong)
    status, _, _ = planner.run("--got", "4:60s", "--picture", planner.place / "a.svg")
    assert (status, (planner.place / "a.svg").read_text().count("<circle")) == (0, 1)
    assert "cannot be written" in planner.refused("--picture", planner.place / "no" / "a.svg")


def test_a_picture_has_the_ceilings_of_all_classes_only(planner: Planner) -> None:
    shown = {}
    for name, beside in (("one", ""), ("mix", "  - {name: loads, burst_bytes: 1GB, think_s: 1s, running: 2}\n")):
        planner.write(GOOD + beside)
        planner.run("--picture", planner.place / f"{name}.svg")
        shown[name] = set(re.findall(r">(storage|link|port|operations)<", (planner.place / f"{name}.svg").read_text()))
    assert shown == {"one": {"storage", "link"}, "mix": {"link"}}


def recorded(planner: Planner, *rows: tuple[float, int, int]) -> Path:
    """A run of samples: seconds, megabytes written, files."""
    lines = ['{"event": "started", "protocol": 1, "n": 1, "pid": null}']
    for at_s, size, files in rows[1:]:
        sample = {"at_s": at_s, "bytes_written": size * 10**6, "files_present": files}
        lines.append(json.dumps({"event": "progress", "protocol": 1, **sample}))
    return planner.write("\n".join([*lines, ""]), "run.jsonl")


FAST = """
storage: {name: disk, write: {one_bytes_per_s: 100MB/s, all_bytes_per_s: 100MB/s}}
workloads: [{name: builds, jobs: 40}]
"""
SIX = [(12.0 * i + t, 200 * (i + (t > 0)), i + (t > 0)) for i in range(6) for t in (0, 1)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        # Pauses part bursts, and the cycle is from end to end: 2 MB at 100 MB/s are 20 ms of 12 s.
        ([(0, 0, 0), (5, 1, 1), (6, 2, 2), (16, 3, 3), (17, 4, 4), (18, 4, 4), (28, 5, 5), (29, 6, 6)],
         "3 bursts of 2 MB, one every 12 s, .* think_s: 11.48, files_per_burst: 2, bursts_per_job: 3"),
        # A file that appears whole took its burst before: 200 MB at 100 MB/s are 2 s of the 12 s before it.
        (SIX, "6 bursts of 200 MB, .* burst_bytes: 200000000, think_s: 10, files_per_burst: 1, bursts_per_job: 6"),
        ([(t, 100 * s, s) for t, s in ((0, 0), (1, 9), (2, 9), (3, 18), (4, 18))], "think_s: 0, .*; it wrote faster than disk does"),
        ([(0, 0, 0)], "shows no second burst"),
        ([(i, 10 * i, i // 4) for i in range(21)], "shows no second burst"),
        ([(0, 0, 0), (0, 9, 3)], "shows no second burst"),
    ],
)  # fmt: skip
def test_a_recorded_run_gives_bursts_pauses_and_files(planner: Planner, rows: Any, told: str) -> None:
    planner.write(FAST)
    status, out, err = planner.run("--from-trace", recorded(planner, *rows))
    assert re.search(told, " ".join((out or err).split()))
    assert status == (125 if "shows no" in told else 0)
    assert status or re.match("Run [0-9]+ at once on disk: 40 builds in ", out)  # the other fields of the class stay


@pytest.mark.parametrize(("content", "told"), [("", "nothing was measured"), ("t_s,total_bytes\n", "line 1: no event")])
def test_a_file_that_is_no_recording_is_one_sentence(planner: Planner, content: str, told: str) -> None:
    planner.write(FAST)
    assert told in planner.refused("--from-trace", planner.write(content, "run.jsonl"))
