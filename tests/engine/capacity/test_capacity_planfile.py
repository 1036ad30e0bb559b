"""PLAN.yaml: what people write, and the one sentence they get when it is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from prefect_cachewatch.capacity.model.profile import parse_rate
from prefect_cachewatch.capacity.planfile import read_plan, read_storage
from prefect_cachewatch.capacity.presets import LINKS, STORAGES, link_preset, storage_preset
from prefect_cachewatch.errors import InputError

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "planner").glob("*.yaml"))
GOOD = """
storage: {preset: efs-one-zone}
link: 10G
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return path


def test_units_are_read_as_people_write_them(tmp_path: Path) -> None:
    given = read_plan(written(tmp_path, GOOD + "policy: {stall_window_s: 5m}\n"))
    assert given.workloads[0].burst_bytes == 2e9
    assert given.workloads[0].think_s == 10
    assert given.policy.stall_window_s == 300
    assert given.link.bytes_per_s == 1.25e9
    assert given.storage.basis == "vendor ceiling"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("125MiB/s", 125 * 2**20),
        ("15GB/s", 15e9),
        ("10Gbit/s", 1.25e9),
        ("800 Mbit/s", 1e8),
        ("5000", 5000),
        ("80bit/s", 10),
    ],
)
def test_rates_are_bytes_or_bits_a_second(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, GOOD.replace("2GB", "2e9"))).workloads[0].burst_bytes == 2e9


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_read(path: Path) -> None:
    assert read_plan(path).workloads


def test_there_are_examples_for_builds_cold_starts_and_training() -> None:
    assert {path.stem for path in EXAMPLES} >= {"nightly", "cold-start", "shared-cluster"}


def test_a_profile_is_looked_for_beside_the_plan_and_can_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "nfs-a.yaml").write_text(
        "name: nfs-a\nbasis: measured\nsmall_file_s: 4ms\nsequential_write:\n  points:\n"
        "    - {n: 1, throughput_bytes_per_s: 100MB/s}\n    - {n: 4, throughput_bytes_per_s: 250MB/s}\n"
    )
    plain = read_plan(written(tmp_path, GOOD.replace("{preset: efs-one-zone}", "nfs-a.yaml"))).storage
    assert (plain.name, plain.measured_n, plain.small_file_s) == ("nfs-a", 4, 0.004)
    changed = GOOD.replace("{preset: efs-one-zone}", "{profile: nfs-a.yaml, small_file_s: 9ms}")
    assert read_plan(written(tmp_path, changed)).storage.small_file_s == pytest.approx(0.009)
    assert read_storage(tmp_path / "nfs-a.yaml") == plain


def test_a_codec_can_be_named_that_the_probe_measured(tmp_path: Path) -> None:
    codec = "codecs: [{name: zstd, ratio: 1.4, compress_cpu_s_per_gb: 2, decompress_cpu_s_per_gb: 1}]"
    text = GOOD.replace("one-zone}", "one-zone, " + codec + "}").replace("10s}", "10s, codec: zstd}")
    assert read_plan(written(tmp_path, text)).workloads[0].wire_bytes == pytest.approx(2e9 / 1.4)
    with pytest.raises(InputError, match=r"codec 'zst' is not among the storage's codecs: did you mean zstd\?"):
        read_plan(written(tmp_path, text.replace("codec: zstd", "codec: zst")))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("burst_bytes", "burst_byte", r"workloads\[0\]\.burst_byte is not known: did you mean burst_bytes\?"),
        ("workloads:", "workload:", r"workload is not known: did you mean workloads\?"),
        ("10s", "ten", r"workloads\[0\]\.think_s: 'ten' is not a duration"),
        ("10s", "-1", r"workloads\[0\]\.think_s = -1: input should be greater than or equal to 0"),
        ("2GB", "0", r"workloads\[0\]\.burst_bytes = 0: input should be greater than 0"),
        ("2GB", "2 furlongs", "is not a size"),
        ("2GB", ".nan", r"workloads\[0\]\.burst_bytes = nan"),
        (", burst_bytes: 2GB", "", r"workloads\[0\]\.burst_bytes is missing: Bytes of one burst"),
        ("10G", "10GbE", r"link preset '10GbE' is not known: did you mean 10G\?"),
        ("10G", "{preset: 10G, bytes_per_s: 5}", "contradict"),
        ("10G", "{bytes_per_s: 10 parsec/s}", "is not a rate"),
        ("efs-one-zone", "efs-onezone", r"did you mean efs-one-zone\?"),
        ("{preset: efs-one-zone}", "{preset: efs-one-zone, profile: x.yaml}", "keep one"),
        ("{preset: efs-one-zone}", "{preset: filestore-zonal}", "give storage.provisioned_tib"),
        ("{preset: efs-one-zone}", "{preset: efs-one-zone, provisioned_tib: 4}", "leave out storage.provisioned_tib"),
        ("{preset: efs-one-zone}", "{preset: filestore-zonal, provisioned_tib: -4}", "must be above 0"),
        ("{preset: efs-one-zone}", "{preset: filestore-zonal, provisioned_tib: many}", "not a number of TiB"),
        ("{preset: efs-one-zone}", "{name: x}", "has no curve"),
        ("{preset: efs-one-zone}", "nowhere.yaml", "nowhere.yaml cannot be read"),
        (
            "{preset: efs-one-zone}",
            "{name: x, sequential_write: {points: [{n: 1, throughput_bytes_per_s: 5}]}}",
            "one point is no curve",
        ),
        (
            "{preset: efs-one-zone}",
            "{name: x, sequential_write: {points: [{n: 4, throughput_bytes_per_s: 5}, {n: 2, throughput_bytes_per_s: 5}]}}",
            "sort the points",
        ),
        (
            "{preset: efs-one-zone}",
            "{name: x, sequential_write: {per_stream_bytes_per_s: 9, aggregate_bytes_per_s: 5}}",
            "exchange the two numbers",
        ),
        (
            "{preset: efs-one-zone}",
            "{name: x, sequential_write: {aggregate_bytes_per_s: 5, points: "
            "[{n: 1, throughput_bytes_per_s: 5}, {n: 2, throughput_bytes_per_s: 5}]}}",
            "contradict",
        ),
        ("link: 10G", "link: 10G\nlink: 40G", "line 4: link is written twice"),
        ("workloads:", "workloads: [\n", "correct the YAML"),
        ("10s}", "10s, files_per_burst: 3000000}", "a file has one byte"),
        ("10s}", "10s, files_per_burst: 0}", "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_one_sentence_with_file_and_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    text = GOOD.replace(old, new, 1)
    if "files_per_burst: 3000000" in text:
        text = text.replace("2GB", "1MB")
    with pytest.raises(InputError, match=told) as caught:
        read_plan(written(tmp_path, text))
    assert "\n" not in caught.value.message
    assert "plan.yaml" in caught.value.message or "nowhere.yaml" in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "just words\n", "storage: &a {x: *a}\n", "\x00", "a: " + "[" * 1200]
)
def test_what_is_no_plan_at_all_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(written(tmp_path, text))
    assert "\n" not in caught.value.message


def test_an_enormous_file_is_not_read_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="larger than 4 MiB"):
        read_plan(written(tmp_path, "#" * (4 * 2**20 + 1)))


def test_a_plan_does_not_build_python_objects(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_plan(written(tmp_path, "storage: !!python/object/apply:os.system ['true']\n"))


@pytest.mark.parametrize("name", sorted(STORAGES))
def test_every_preset_is_called_a_vendor_ceiling_and_has_source_and_date(name: str) -> None:
    profile = storage_preset(name, 10 if STORAGES[name].per_tib else None)
    assert profile.name.endswith("(vendor ceiling)")
    assert profile.basis == "vendor ceiling"
    assert profile.source
    assert profile.date is not None
    assert profile.measured_n is None


def test_links_are_their_line_rates() -> None:
    assert {name: link_preset(name).bytes_per_s for name in LINKS} == {
        "10G": 1.25e9,
        "25G": 3.125e9,
        "40G": 5e9,
        "100G": 12.5e9,
    }


def test_rated_by_capacity_means_times_capacity() -> None:
    profile = storage_preset("fsx-lustre-250", 4.8)
    assert profile.sequential_write is not None
    assert profile.sequential_write.aggregate_bytes_per_s == pytest.approx(1.2e9)


def test_a_profile_survives_being_written_and_read(tmp_path: Path) -> None:
    profile = storage_preset("efs-regional")
    path = written(tmp_path, yaml.safe_dump(profile.model_dump(mode="json", exclude_none=True)))
    assert read_storage(path) == profile


def test_without_numpy_the_planner_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from prefect_cachewatch.capacity import StorageProfile, Policy\n"
        "from prefect_cachewatch.errors import InputError\n"
        "try:\n    from prefect_cachewatch.capacity import plan\n"
        "except InputError as error:\n    print(error.message)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "the planner needs numpy, which is not installed: pip install 'prefect-cachewatch[planner]'\n"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import prefect_cachewatch.capacity as capacity

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = capacity.nothing
    assert capacity.__all__ == sorted(capacity.__all__)
    assert all(getattr(capacity, name) is not None for name in capacity.__all__)
