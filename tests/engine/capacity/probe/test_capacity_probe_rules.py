"""The probe's rules over plain values: no disk is measured here."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.capacity.probe.checks import Sample, find_effects, spread_of, summarise
from prefect_cachewatch.capacity.probe.disks import Disk
from prefect_cachewatch.capacity.probe.fio import FioError, read_fio_json
from prefect_cachewatch.capacity.probe.run import levels_up_to


def sample(phase="write", n=1, rate=100, latency_s=None, elapsed_s=1.0):
    """One repetition at `rate` operations a second of 1 MiB, obeying Little's law unless told otherwise."""
    operations = int(rate * elapsed_s)
    return Sample(phase, n, operations * 2**20, operations, elapsed_s, latency_s or n / rate)


def job(ios, mean_ns, runtime_ms, error=0, ddir="write"):
    side = {
        "io_bytes": ios * 2**20,
        "total_ios": ios,
        "runtime": runtime_ms,
        "lat_ns": {"mean": mean_ns},
        "clat_ns": {"percentile": {"99.000000": 4 * mean_ns}},
    }
    return {"error": error, ddir: side}


@given(st.integers(1, 4096))
def test_levels_are_powers_of_two_and_end_at_the_cap(cap):
    levels = levels_up_to(cap)
    assert levels[-1] == cap
    assert levels[0] == 1
    assert levels == sorted(set(levels))
    assert all(level & (level - 1) == 0 for level in levels[:-1])
    assert all(high <= 2 * low for low, high in itertools.pairwise(levels))


def test_medians_stand_for_the_repetitions_and_their_spread_is_told():
    level = summarise([sample(rate=90), sample(rate=100), sample(rate=140)])
    assert level.rate_per_s == 100
    assert level.rate_bytes_per_s == 100 * 2**20
    assert level.spread == 0.5
    assert level.repetitions == 3


def test_small_files_are_counted_by_file_not_by_byte():
    files = [Sample("metadata", 1, 4096 * n, n, 1.0, 1 / n) for n in (100, 200, 300)]
    assert summarise(files).spread == 1.0


@pytest.mark.parametrize(("latency_s", "obeys"), [(0.040, True), (0.0364, True), (0.0350, False), (0.0450, False)])
def test_x_times_latency_must_be_n_within_ten_percent(latency_s, obeys):
    assert summarise([sample(n=4, rate=100, latency_s=latency_s)]).obeys_little is obeys


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=9))
def test_a_spread_is_never_negative_and_zero_only_for_equal_values(values):
    assert spread_of(values) >= 0
    assert (spread_of(values) == 0) == (min(values) == max(values))


def test_reads_far_above_fresh_writes_are_named_a_cache():
    effects = find_effects([sample("write", rate=100), sample("read", rate=301)])
    assert len(effects) == 1
    assert effects[0].startswith("reads reach 301 MiB/s, 3.0 x the fresh writes")


def test_reads_as_fast_as_writes_are_no_effect():
    assert find_effects([sample("write", rate=100), sample("read", rate=290)]) == []


def test_a_second_pass_faster_than_the_first_is_named():
    effects = find_effects([sample("random_read", 2, 100), sample("random_read", 2, 160)])
    assert any("random reads at n = 2 got 1.6 x faster after the first pass" in effect for effect in effects)


def test_memory_is_said_to_be_no_storage_even_where_o_direct_opens():
    assert find_effects([], "tmpfs", memory=True, disk=Disk(True, virtual=True, network="x")) == [
        "tmpfs is memory: O_DIRECT opens there and bypasses nothing: figures of RAM, not of storage"
    ]


def test_reads_without_o_direct_are_not_to_be_trusted():
    (effect,) = find_effects([], "fuse.sshfs", direct=False)
    assert "page cache" in effect
    assert "trust the writes" in effect


def test_a_virtual_disk_is_named():
    (effect,) = find_effects([], "ext4", disk=Disk(True, virtual=True))
    assert "not the host's" in effect
    assert "a network behind it would not be seen" in effect


def test_a_disk_behind_a_network_is_named():
    (effect,) = find_effects([], "ext4", disk=Disk(True, virtual=True, network="NBD (nbd0)"))
    assert effect == "behind a network, NBD (nbd0): the curves contain it, so a plan with them has no link"


def test_repetitions_far_apart_are_named_with_the_worst_place():
    effects = find_effects([sample(n=8, rate=100), sample(n=8, rate=150)])
    assert any(effect.startswith("repetitions differ by up to 40% (fresh writes, n = 8)") for effect in effects)


def test_a_breach_of_littles_law_is_named_with_its_place_and_number():
    effects = find_effects([sample(n=4, rate=100, latency_s=0.030), sample("read", 2, 100, 0.017)])
    (effect,) = [effect for effect in effects if "X x latency" in effect]
    assert effect.startswith("X x latency is 3.00 where n = 4 (fresh writes, and 1 more)")


def test_fio_jobs_are_one_sample_that_lasts_as_long_as_the_slowest():
    output = "note: a warning first\n" + json.dumps({"jobs": [job(10, 100e6, 1000), job(30, 50e6, 2000)]})
    got = read_fio_json(output, "write", 2)
    assert (got.done_bytes, got.operations, got.elapsed_s) == (40 * 2**20, 40, 2.0)
    assert got.mean_latency_s == pytest.approx((10 * 0.1 + 30 * 0.05) / 40)
    assert got.p99_latency_s == pytest.approx(0.4)


def test_random_reads_are_looked_for_on_fios_read_side():
    assert read_fio_json(json.dumps({"jobs": [job(5, 1e6, 900, ddir="read")]}), "random_read", 1).operations == 5


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "could not be read"),
        ("fio: no json here", "could not be read"),
        ('{"jobs": 3}', "could not be read"),
        ('{"jobs": [{"error": 0}]}', "could not be read"),
        (json.dumps({"jobs": []}), "could not be read"),
        (json.dumps({"jobs": [job(5, 1e6, 900, error=28)]}), "No space left on device"),
        (json.dumps({"jobs": [job(0, 0, 900)]}), "without a single operation"),
    ],
)
def test_what_fio_did_not_do_is_one_sentence(output, said):
    with pytest.raises(FioError, match=said) as caught:
        read_fio_json(output, "write", 1)
    assert "\n" not in caught.value.message


def test_the_error_number_of_fio_is_kept_for_the_sentence_about_a_full_disk():
    with pytest.raises(FioError) as caught:
        read_fio_json(json.dumps({"jobs": [job(5, 1e6, 900, error=28)]}), "write", 1)
    assert caught.value.data["errno"] == 28
