"""PLAN.yaml: what people write, and the one sentence they get when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_cachewatch.capacity.planfile import read_plan, read_storage
from prefect_cachewatch.capacity.units import parse_line_rate, parse_per_second, parse_rate
from prefect_cachewatch.errors import InputError

GOOD = """
storage: {name: nas, write: {one_bytes_per_s: 250MB/s, all_bytes_per_s: 600MB/s}}
link: 10G
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s}
"""
STORAGE = "{name: nas, write: {one_bytes_per_s: 250MB/s, all_bytes_per_s: 600MB/s}}"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return path


def test_units_are_read_as_people_write_them(tmp_path: Path) -> None:
    given = read_plan(written(tmp_path, GOOD + "policy: {stall_window_s: 5m}\n"))
    assert given.workloads[0].burst_bytes == 2e9
    assert given.workloads[0].think_s == 10
    assert given.policy.stall_window_s == 300
    assert (given.link.bytes_per_s, given.link.hosts) == (1.25e9, 1)
    assert not given.binary
    assert read_plan(written(tmp_path, GOOD.replace("2GB", "2GiB"))).binary
    assert read_plan(written(tmp_path, GOOD.replace("2GB", "2e9"))).workloads[0].burst_bytes == 2e9


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("125MiB/s", 125 * 2**20), ("15GB/s", 15e9), ("10Gbit/s", 1.25e9), ("800 Mbit/s", 1e8), ("5000", 5000), ("80bit/s", 10),
    ],
)  # fmt: skip
def test_rates_are_bytes_or_bits_a_second(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


def test_a_line_rate_has_a_name_and_means_bits() -> None:
    assert [parse_line_rate(name) for name in ("10G", "25G", "40G", "100g")] == [1.25e9, 3.125e9, 5e9, 12.5e9]
    with pytest.raises(ValueError, match="may mean bits or bytes"):
        parse_line_rate("20G")
    assert parse_per_second("1M") == 1e6


def test_a_profile_is_looked_for_beside_the_plan_and_can_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "nfs-a.yaml").write_text(
        "name: nfs-a\nbasis: measured\nsmall_file_s: 4ms\nwrite:\n  points:\n"
        "    - {n: 1, bytes_per_s: 100MB/s}\n    - {n: 4, bytes_per_s: 250MB/s}\n"
    )
    plain = read_plan(written(tmp_path, GOOD.replace(STORAGE, "nfs-a.yaml"))).storage
    assert plain.write is not None
    assert (plain.name, plain.write.measured_n, plain.small_file_s) == ("nfs-a", 4, 0.004)
    changed = read_plan(written(tmp_path, GOOD.replace(STORAGE, "{profile: nfs-a.yaml, small_file_s: 9ms}"))).storage
    assert (changed.small_file_s, changed.basis) == (pytest.approx(0.009), "measured")
    assert read_storage(tmp_path / "nfs-a.yaml") == plain


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("burst_bytes", "burst_byte", r"workloads\[0\]\.burst_byte is not known: did you mean burst_bytes\?"),
        ("10s", "ten", r"workloads\[0\]\.think_s: 'ten' is not a duration"),
        ("2GB", "0", r"workloads\[0\]\.burst_bytes = 0: input should be greater than 0"),
        (", burst_bytes: 2GB", "", r"workloads\[0\]\.burst_bytes is missing: Bytes of one burst"),
        ("10G", "10GbE", r"link\.bytes_per_s: '10GbE' is not a rate"),
        ("10G", "{hosts: 0, bytes_per_s: 10G}", r"link\.hosts = 0"),
        (STORAGE, "{name: x}", "has no curve"),
        (STORAGE, "nowhere.yaml", "nowhere.yaml cannot be read"),
        (STORAGE, "{name: x, write: {points: [{n: 2, bytes_per_s: 5}]}}", "no point at n = 1"),
        (STORAGE, "{name: x, write: {one_bytes_per_s: 9, all_bytes_per_s: 5}}", "exchange the two numbers"),
        ("burst_bytes: 2GB", "burst_bytes: 1MB, files_per_burst: 3000000", "a file has one byte"),
        ("10s}", "10s, jobs: 5, running: 2}", "keep one of the two"),
        ("10s}", "10s, running: 2}", "running in every class"),
        ("10s}", "10s}\n  - {name: caches, burst_bytes: 1, think_s: 1}", "the class 'caches' twice"),
        ("  - {name: caches, burst_bytes: 2GB, think_s: 10s}", "  []", "workloads = "),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_one_sentence_with_file_and_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        read_plan(written(tmp_path, GOOD.replace(old, new, 1)))
    assert "\n" not in caught.value.message
    assert "plan.yaml" in caught.value.message or "nowhere.yaml" in caught.value.message
