"""Seven plans whose answers are computed by hand in the test's own comment, and what a plan must never say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from prefect_cachewatch.capacity import LimitPlan, PlanInput, plan
from prefect_cachewatch.capacity.planning import expected_burst_s
from prefect_cachewatch.capacity.results import Answer
from prefect_cachewatch.capacity.wording import answer_lines, text_lines

MINUTE = 60.0
CACHES = {"name": "caches", "burst_bytes": "2GB", "think_s": "10s", "bursts_per_job": 40, "jobs": 20}
LOADS = {
    "name": "loads",
    "kind": "inference",
    "burst_bytes": "4.7GB",
    "think_s": "1.5s",
    "bursts_per_job": 30,
    "jobs": 64,
}
TRAINING = {"name": "training", "kind": "training", "access": "random", "burst_bytes": "256MB", "think_s": "250ms"}
NAS = {"name": "nas", "write": {"one_bytes_per_s": "250MB/s", "all_bytes_per_s": "600MB/s"}}
CHASSIS = {
    "name": "chassis", "ops_per_s": "1M",
    "read": {"one_bytes_per_s": "3.75GB/s", "all_bytes_per_s": "15GB/s"},
    "random_read": {"one_bytes_per_s": "1GB/s", "all_bytes_per_s": "15GB/s"},
}  # fmt: skip


def measured(*rates: float) -> dict[str, Any]:
    """A curve at 1, 2, 4, ... streams, in GB/s."""
    return {"points": [{"n": 2**i, "bytes_per_s": rate * 1e9} for i, rate in enumerate(rates)]}


NVME = {
    "name": "nvme", "basis": "measured", "write": measured(2, 3, 3.2, 3.2, 3.2), "read": measured(3, 5, 6, 6.5, 6.5),
    "random_read": measured(1, 2, 4, 5, 5),
}  # fmt: skip


def planned(storage: dict[str, Any], *workloads: dict[str, Any], link: Any = None, **policy: Any) -> LimitPlan:
    given = {"storage": storage, "workloads": list(workloads), "policy": policy}
    return plan(PlanInput.model_validate(given | ({"link": link} if link else {})))


def batch_s(answer: Answer, n: int) -> float:
    found = answer.at(n).batch_s
    assert found is not None
    return found


def said(answer: LimitPlan) -> str:
    return "\n".join(line for each in answer.answers for line in answer_lines(answer, each))


def row_of(answer: LimitPlan, change: str) -> Any:
    return next(each for each in answer.answers[0].alternatives if each.change == change)


def test_a_nas_that_fills_up_at_600_megabytes_a_second() -> None:
    # Bytes: 20 jobs x 40 bursts x 2 GB = 1.6 TB, at 0.85 x 600 MB/s = 510 MB/s: 3137 s = 52.3 min.
    # Alone a burst takes 2 GB / (0.85 x 250 MB/s) = 9.4 s, and at the ceiling 3.9 s: (10 + 9.4) / 3.9 = 4.9 jobs fill it.
    # At 5 the storage idles now and then: four rounds of 40 x (10 + 12.9) s = 61 min.
    (answer,) = planned(NAS, CACHES, link="10G").answers
    assert batch_s(answer, answer.n) == pytest.approx(52.3 * MINUTE, rel=0.1)
    assert batch_s(answer, 5) == pytest.approx(61 * MINUTE, rel=0.05)
    assert answer.n > 5
    assert answer.by_hand.least_s == pytest.approx(3137, rel=0.001)
    assert answer.by_hand.filling_n == pytest.approx(4.95, rel=0.01)
    assert answer.row.held_by == "storage"


def test_a_chassis_serves_64_loads_and_no_link_makes_it_slower() -> None:
    # Bytes: 64 x 30 x 4.7 GB = 9.02 TB, at 0.85 x 15 GB/s = 12.75 GB/s: 708 s = 11.8 min, whatever the link.
    # At 16 over 10G: a host's link gives 1.06 GB/s, so a burst takes 5.9 s at most, and four rounds 4 x 30 x 7.4 s = 14.8 min
    # if the chassis has nothing else to do: it is not full there.
    times = {}
    for link in ("10G", "20Gbit/s", "40G"):
        (answer,) = planned(CHASSIS, LOADS, link={"bytes_per_s": link, "hosts": 16}).answers
        times[link] = batch_s(answer, answer.n)
        assert times[link] == pytest.approx(11.8 * MINUTE, rel=0.1), link
    assert times["40G"] <= 1.02 * times["20Gbit/s"] <= 1.04 * times["10G"]


def test_a_faster_link_is_never_slower_at_the_same_number() -> None:
    for n in (1, 4, 11, 16, 17, 23, 32):
        times_s = [
            expected_burst_s(
                PlanInput.model_validate(
                    {"storage": CHASSIS, "link": {"bytes_per_s": rate, "hosts": 16}, "workloads": [LOADS]}
                ),
                n,
            )
            for rate in ("10G", "20Gbit/s", "40G", "100G")
        ]
        assert times_s == sorted(times_s, reverse=True), n


def test_a_local_disk_takes_all_twenty() -> None:
    # Bytes: 1.6 TB at 0.85 x 3.2 GB/s = 2.72 GB/s: 588 s = 9.8 min. (10 + 1.2) / 0.74 = 15.2 jobs fill it, so 20 keep it busy for
    # 96 % of the time; with a pause of 10 s before the first burst and a last one of 5 s: 588 / 0.96 + 15 s = 628 s = 10.5 min.
    # Ten at once have two rounds of 40 x (10 + 1.9) s = 15.9 min.
    (answer,) = planned(NVME, CACHES).answers
    assert (answer.n, answer.reason) == (20, "jobs")
    assert batch_s(answer, 20) == pytest.approx(10.5 * MINUTE, rel=0.1)
    assert batch_s(answer, 10) == pytest.approx(15.9 * MINUTE, rel=0.1)


def test_four_trainers_beside_the_caches_take_a_fifth_of_the_disk() -> None:
    # The trainers read 4 x 256 MB every 0.8 + 0.2 s = 1.02 GB/s, of the 5.5 GB/s that the disk reads: 19 % of its time.
    # The caches have the other 81 % of 2.72 GB/s: 1.6 TB / 2.2 GB/s = 727 s = 12.1 min.
    trainers = TRAINING | {"access": "sequential", "think_s": "800ms", "running": 4}
    answer = planned(NVME | {name: measured(2, 3, 3.2, 3.2, 3.2, 3.2) if name == "write" else measured(3, 5, 6, 6.5, 6.5, 6.5)
                             for name in ("write", "read")}, CACHES, trainers).answers[0]  # fmt: skip
    assert batch_s(answer, answer.n) == pytest.approx(12.1 * MINUTE, rel=0.1)


def test_loads_and_training_beside_each_other_on_a_chassis() -> None:
    # A load: 1.5 s + 4.7 GB / (0.85 x 3.75 GB/s) = 3.0 s a cycle, 4 of them 6.3 GB/s. A trainer: 0.25 s + 256 MB / 0.85 GB/s
    # = 0.55 s, 4 of them 1.9 GB/s. Together 8.2 GB/s of the 12.75, if nobody ever waits: a little less is right.
    loads = LOADS | {"jobs": None, "running": None}
    (answer,) = planned(CHASSIS, loads, TRAINING | {"running": 4}, link={"bytes_per_s": "40G", "hosts": 8}).answers
    assert 0.9 * 8.2e9 <= answer.at(4).bytes_per_s <= 8.3e9


def test_jobs_are_not_streams_and_sixteen_measured_ones_do_not_cap_twenty_jobs_that_mostly_think() -> None:
    # 10 bursts of 2 GB after 30 s each: a burst takes 0.74 s at the ceiling, so 20 jobs have half a stream too few to fill the
    # disk, and never 16 at once. A job alone takes 10 x (30 + 1.2) s = 312 s. Its pauses vary by half, so jobs differ by
    # 30 s x 0.29 x sqrt(10) = 27 s, and the slowest of 20 is 1.9 x 27 s later: 363 s.
    caches = CACHES | {"think_s": "30s", "bursts_per_job": 10}
    (answer,) = planned(NVME | {"free_bytes": "2TB"}, caches).answers
    assert (answer.n, answer.reason) == (20, "jobs")
    assert answer.row.streams_p99 <= 16
    assert batch_s(answer, 20) == pytest.approx(363, rel=0.1)


def test_where_the_measured_streams_do_cap_the_number_the_first_sentence_says_so() -> None:
    # With 0.5 s of thinking nearly every job is a stream, so at most 16 to 18 jobs are known of.
    answer = planned(NVME | {"write": measured(0.5, 1, 2, 4, 8)}, CACHES | {"think_s": "500ms", "jobs": 60})
    assert answer.answers[0].reason == "measured"
    assert said(answer).startswith(f"Run {answer.answers[0].n} at once on nvme (the most measured): 60 caches in ")
    assert "Not more, since beyond the 16 streams that were measured nothing is known" in " ".join(text_lines(answer))
    assert 14 <= answer.answers[0].n <= 18


def test_the_number_is_as_good_as_the_best_row_of_its_own_table() -> None:
    for plan_ in (planned(NAS, CACHES, link="10G"), planned(NVME, CACHES), planned(CHASSIS, LOADS)):
        (answer,) = plan_.answers
        times = [row.batch_s for row in answer.rows if row.batch_s]
        assert batch_s(answer, answer.n) <= 1.02 * min(times)
        assert all(row.batch_s > 1.02 * min(times) for row in answer.rows if row.n < answer.n and row.batch_s)


def test_with_one_job_the_slowest_burst_is_no_slower_than_a_burst_alone() -> None:
    first = planned(NAS, CACHES).answers[0].rows[0]
    assert first.n == 1
    assert first.classes[0].burst_p99_s == pytest.approx(first.classes[0].burst_s)


def test_twice_the_storage_does_not_make_one_stream_faster() -> None:
    one = CACHES | {"jobs": 1}
    assert row_of(planned(NAS, one), "twice the storage").faster == pytest.approx(1, abs=0.01)
    assert row_of(planned(NAS, CACHES), "twice the storage").faster == pytest.approx(2, rel=0.05)


def test_isolated_classes_have_a_number_and_a_limit_each() -> None:
    both = planned(NVME, CACHES, LOADS, isolated=True)
    assert [(answer.name, answer.classes) for answer in both.answers] == [
        ("nvme-caches", ("caches",)), ("nvme-loads", ("loads",)),
    ]  # fmt: skip
    alone = planned(NVME, LOADS).answers[0]
    assert both.answers[1].n == alone.n
    # Together the two take as long as their bytes: 1.6 TB / 2.72 GB/s + 9.02 TB / 5.53 GB/s = 37 min; alone the caches 10.5.
    assert row_of(planned(NVME, CACHES, LOADS), "caches alone").batch_s == pytest.approx(10.5 * MINUTE, rel=0.1)
    assert row_of(both, "all on one storage").faster < 0.7


def test_small_bursts_beside_a_batch_take_what_they_take_and_no_more() -> None:
    # c alone: 40 x 80 x 2 GB / (0.85 x 680 MB/s) = 3 h 5. A burst of t alone takes 1 MB / (0.85 x 200 MB/s) = 5.9 ms, so 16 of
    # them are 16 x 5.9 / 15.9 = 5.9 streams, 7 beside 3 of c: of 10 streams each of c has 578 MB/s / 10, and a burst takes 35 s.
    # 40 / 3 rounds of 80 x (10 + 35) s = 13.3 h.
    storage = {"name": "nas", "write": {"one_bytes_per_s": "180MB/s", "all_bytes_per_s": "680MB/s"},
               "random_read": {"one_bytes_per_s": "200MB/s", "all_bytes_per_s": "2GB/s"}}  # fmt: skip
    big = CACHES | {"name": "c", "bursts_per_job": 80, "jobs": 40}
    small = TRAINING | {"name": "t", "burst_bytes": "1MB", "think_s": "10ms", "running": 16}
    answer = planned(storage, big, small, link="10G")
    found = answer.answers[0]
    assert batch_s(found, 3) == pytest.approx(13.3 * 60 * MINUTE, rel=0.05)
    assert found.at(3).classes[0].burst_s == pytest.approx(35, rel=0.05)
    assert row_of(answer, "c alone").batch_s == pytest.approx(3.13 * 60 * MINUTE, rel=0.05)
    assert all(row.classes[0].burst_p99_s <= 1.2 * row.classes[0].burst_s for row in found.rows)


def test_files_are_a_part_of_what_a_pencil_computes() -> None:
    # A burst: 2 GB / 510 MB/s + 2,000 files / (0.85 x 1,000/s) = 3.92 + 2.35 = 6.27 s at the ceilings; alone 9.41 + 2.35 s.
    # All: 1.6 TB / 510 MB/s + 1.6M files / 850/s = 3137 + 1882 s = 83.7 min.
    answer = planned(NAS | {"files_per_s": 1000}, CACHES | {"files_per_burst": 2000})
    hand = answer.answers[0].by_hand
    assert (hand.demand_s, hand.burst_s, hand.least_s) == pytest.approx((6.27, 11.8, 5020), rel=0.01)
    assert said(answer).endswith("By hand: 52.3 min + 31.4 min = 83.7 min at least; (Z + R) / D = 3.47 jobs.")
    assert "D = 6.3 s for one at 510 MB/s and 850 files/s (storage)" in " ".join(" ".join(text_lines(answer)).split())
    assert hand.least_s <= batch_s(answer.answers[0], answer.answers[0].n) <= 1.1 * hand.least_s


def test_a_class_of_its_own_storage_is_told_so_with_the_space_on_each() -> None:
    answer = planned(NVME | {"free_bytes": "2TB"}, CACHES, LOADS, isolated=True)
    assert (
        "isolated: each class is planned on a whole nvme and links of its own, with 2 TB free on each."
        in answer.notes[0]
    )
    assert not any("isolated" in note for note in planned(NVME, CACHES, LOADS).notes)


def test_what_was_assumed_of_operations_is_told() -> None:
    told = "training: op_bytes is not given, so each read or write is taken for 1 MiB."
    assert told in planned(CHASSIS, TRAINING).notes
    assert told not in planned(CHASSIS, TRAINING | {"op_bytes": "64KiB"}).notes
    assert told not in planned(NVME, TRAINING).notes


def test_where_no_plan_looks_at_more_jobs_the_first_sentence_says_so() -> None:
    wide = {"name": "wide", "write": {"one_bytes_per_s": "1GB/s", "all_bytes_per_s": "100TB/s"}}
    answer = planned(wide, CACHES | {"jobs": None})
    assert answer.answers[0].reason == "most"
    assert re.match(r"Run 9[0-9]{2} at once on wide \(no plan looks at more\): ", said(answer))
    assert "Not more, since a plan looks at 999 jobs at once at most." in " ".join(text_lines(answer))
    assert planned(NAS, CACHES | {"jobs": None}).answers[0].reason == "best"


@pytest.mark.parametrize(
    ("storage", "jobs", "told"),
    [
        # At 8 streams the disk moves 3 GB/s, at 32 only 1.
        (NVME | {"write": measured(1, 2, 3, 3, 2, 1)}, [{"think_s": 1, "jobs": 200}], "GB/s, storage): more jobs only wait longer"),
        # 64 jobs come out even with 32, not with 31: the batch of 31 is told as it is, three rounds of 30 x (1.5 + 14) s and more.
        (NAS | {"write": {"one_bytes_per_s": "1.3GB/s", "all_bytes_per_s": "21.6GB/s"}},
         [{"think_s": 1.5, "jobs": 64, "burst_bytes": "9.4GB", "bursts_per_job": 30}], "shared: 14 s at 31, all in "),
        # 400 bursts of one job take as long as all of 20 others together.
        (NVME, [{"jobs": 1, "bursts_per_job": 400}, {"name": "b", "bursts_per_job": 5}], "no faster up to 12 ("),
    ],
)  # fmt: skip
def test_zones_say_what_is_so_and_promise_nothing(
    storage: dict[str, Any], jobs: list[dict[str, Any]], told: str
) -> None:
    assert told in said(planned(storage, *(CACHES | job for job in jobs)))


def test_a_port_of_the_storage_is_one_ceiling_for_all_hosts() -> None:
    # 10 Gbit/s x 0.85 = 1.06 GB/s for 64 loads of 141 GB: 9.02 TB / 1.06 GB/s = 142 min.
    (answer,) = planned(CHASSIS | {"port_bytes_per_s": "10G"}, LOADS, link={"bytes_per_s": "40G", "hosts": 16}).answers
    assert answer.row.held_by == "port"
    assert batch_s(answer, answer.n) == pytest.approx(142 * MINUTE, rel=0.05)


def test_small_operations_hold_a_chassis_below_its_bytes() -> None:
    # 1M reads a second x 4 KiB x 0.85 = 3.48 GB/s, of the 12.75 GB/s that it moves in large ones.
    jobs = TRAINING | {"op_bytes": "4KiB", "jobs": None}
    (answer,) = planned(CHASSIS, jobs).answers
    assert answer.row.held_by == "operations"
    assert answer.row.bytes_per_s == pytest.approx(3.48e9, rel=0.03)


def test_small_files_against_one_file_is_one_row() -> None:
    # 2,000 files of 1 MB at 4 ms / 0.85 each are 9.4 s on top of the 9.4 s that a burst's bytes take alone.
    storage = NAS | {"small_file_s": "4ms"}
    one = planned(storage, CACHES | {"jobs": 1})
    assert row_of(one, "files of 1 MB").batch_s / batch_s(one.answers[0], 1) == pytest.approx(
        (10 + 18.8) / (10 + 9.4), rel=0.02
    )
    many = planned(storage, CACHES | {"jobs": 1, "files_per_burst": 2000})
    assert row_of(many, "one file a burst").batch_s == pytest.approx(batch_s(one.answers[0], 1), rel=0.01)


def test_compressed_or_not_is_one_row() -> None:
    # With ratio 2 the full storage moves the batch in half the time: 26 min of bytes.
    zstd = {"name": "zstd", "ratio": 2, "bytes_per_s": "500MB/s", "used": False}
    answer = planned(NAS, CACHES | {"compression": zstd})
    assert row_of(answer, "with zstd").batch_s == pytest.approx(26.1 * MINUTE, rel=0.15)
    used = planned(NAS, CACHES | {"compression": zstd | {"used": True}})
    assert row_of(used, "without zstd").batch_s == pytest.approx(52.3 * MINUTE, rel=0.1)
    # A compression slower than the link is what binds: 2 GB at 50 MB/s are 40 s a burst.
    slow = planned(NAS, CACHES | {"compression": zstd | {"used": True, "bytes_per_s": "50MB/s"}}).answers[0]
    assert slow.rows[0].classes[0].burst_s == pytest.approx(40)


def test_a_faster_link_and_more_hosts_are_rows() -> None:
    # One host with 10G: 1.06 GB/s for a chassis of 12.75: the link binds; 40G gives 4.25 GB/s, two hosts twice as much.
    answer = planned(CHASSIS, LOADS | {"jobs": 16}, link="10G")
    assert answer.answers[0].row.held_by == "link"
    assert row_of(answer, "a link of 40G").faster == pytest.approx(4, rel=0.1)
    assert row_of(answer, "twice the link").faster == pytest.approx(2, rel=0.1)
    assert row_of(answer, "twice the hosts").faster == pytest.approx(2, rel=0.1)
    assert row_of(answer, "twice the storage").faster == pytest.approx(1, rel=0.05)


def test_figures_of_a_vendor_run_from_contention_to_the_roofline() -> None:
    # Contention at 10: 10 x 250 / (1 + 9 x 250/600) MB/s = 526 MB/s instead of 600.
    (answer,) = planned(NAS, CACHES).answers
    assert answer.batch_range_s is not None
    low, high = answer.batch_range_s
    assert low == pytest.approx(batch_s(answer, answer.n), rel=0.02)
    assert 1.05 * low < high < 1.5 * low
    assert not planned(NAS, CACHES).measured


LONG = "a name that nobody can remember, with seventy characters or even more"
ODD: list[tuple[Any, ...]] = [
    (NAS, CACHES | {"jobs": None}), (NAS, CACHES | {"think_s": 0}), (NAS, CACHES | {"jobs": 1}),
    (NAS | {"files_per_s": 100}, CACHES | {"files_per_burst": 999}),
    (NVME | {"write": measured(1, 2, 3, 3, 2, 1)}, CACHES | {"jobs": 64}), (NVME, CACHES, TRAINING | {"burst_bytes": "1MB", "running": 9}),
    (NVME, CACHES, TRAINING | {"running": 4}), (NVME, CACHES, LOADS, {"isolated": True}),
    (CHASSIS, LOADS, {"link": {"bytes_per_s": "40G", "hosts": 16}}),
    (NVME | {"name": LONG}, CACHES | {"name": LONG, "burst_bytes": "3.33GB"}, LOADS | {"name": LONG.upper()}, {"link": "10G"}),
    (NVME, *(CACHES | {"name": f"caches of kind {i}", "jobs": 2} for i in range(6)), {"link": "10G"}),
    (NVME | {"write": measured(0.5, 1, 2, 4, 8)}, CACHES | {"think_s": "500ms", "jobs": 999_999}),
    (NVME | {"small_file_s": "4ms"}, CACHES | {"compression": {"ratio": 2, "bytes_per_s": "900MB/s"}}, {"link": "10G"}),
    (CHASSIS, TRAINING | {"burst_bytes": 1, "think_s": "9h"}),
]  # fmt: skip


@pytest.mark.parametrize("given", ODD)
def test_an_answer_has_six_lines_of_a_terminal_and_numbers_of_three_digits(given: tuple[Any, ...]) -> None:
    classes, policy = [each for each in given[1:] if "name" in each], given[-1] if "name" not in given[-1] else {}
    plan_ = planned(given[0], *classes, **policy)
    lines = list(text_lines(plan_))
    assert max(map(len, lines)) <= 80
    for answer in plan_.answers:
        shown = answer_lines(plan_, answer)
        assert len(shown) <= 6
        assert shown[0].startswith(("Run ", "Not even 1 "))
        assert shown[0].endswith(".")
        assert shown[-1].startswith("By hand: ")
        assert shown[-1].endswith(" jobs.")
        assert given[0].get("name") == LONG or not any("…" in line for line in shown)
    for number in re.findall(r"(?<![\w.])[0-9][0-9.]*", "\n".join(lines)):
        assert len(number.rstrip(".").replace(".", "").strip("0") or "0") <= 3, number


@pytest.mark.parametrize(
    ("burst", "free", "unit"),
    [("2GB", None, "GB"), ("2GB", "3TiB", "GB"), ("2GiB", "3TB", "GiB"), (2 * 10**9, "3TiB", "GB")],
)
def test_sizes_are_said_in_the_units_that_bursts_are_written_in(burst: Any, free: Any, unit: str) -> None:
    storage = {"name": "nas", "write": {"one_bytes_per_s": 2.5e8, "all_bytes_per_s": 6e8}, "free_bytes": free}
    text = "\n".join(text_lines(planned(storage, CACHES | {"burst_bytes": burst})))
    assert set(re.findall(r"[0-9] ([KMGTkm]i?B)", text.replace("files of 1 MB", ""))) <= {
        unit,
        unit.replace("G", "M"),
        unit.replace("G", "T"),
    }
    assert f" {unit} takes " in text


@pytest.mark.parametrize("given", ODD)
def test_what_is_doubled_is_no_slower_and_what_is_full_is_full_of_what_the_pencil_says(given: tuple[Any, ...]) -> None:
    classes, policy = [each for each in given[1:] if "name" in each], given[-1] if "name" not in given[-1] else {}
    plan_ = planned(given[0], *classes, **policy)
    for answer in plan_.answers:
        assert all(each.faster >= 1 for each in answer.alternatives if each.change.startswith("twice"))
        assert all(row.held_by == answer.by_hand.ceiling for row in answer.rows if row.full)
        if answer.row.batch_s:
            assert answer.row.batch_s >= answer.by_hand.least_s * (1 - 1e-6)
        for line in answer_lines(plan_, answer):
            assert "full (" not in line or f", {answer.by_hand.ceiling})" in line


def test_a_slower_link_is_never_told_to_be_faster() -> None:
    both = planned(
        CHASSIS | {"write": NAS["write"]}, CACHES, LOADS | {"jobs": 16}, link={"bytes_per_s": "40G", "hosts": 8}
    )
    assert all(row_of(both, f"a link of {rate}").faster <= 1.001 for rate in ("10G", "25G"))
    assert row_of(both, "a link of 100G").faster >= 0.999
