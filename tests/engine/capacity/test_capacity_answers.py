"""Plans whose answers are computed by hand in the row's own comment, and what a plan must never say."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from prefect_cachewatch.capacity import LimitPlan, PlanInput, plan
from prefect_cachewatch.capacity.results import Answer
from prefect_cachewatch.capacity.wording import answer_lines, text_lines
from prefect_cachewatch.errors import InputError

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
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
EXACT: dict[str, Any] = {"policy": {"derate": 0}}
ISOLATED: dict[str, Any] = {"policy": {"isolated": True}}


def vendor(one: str, most: str, **more: Any) -> dict[str, Any]:
    """A storage by two numbers, which hold for each kind of access."""
    curve = {"one_bytes_per_s": one, "all_bytes_per_s": most}
    return {"name": "nas", "write": curve, "read": curve, "random_read": curve} | more


def measured(*rates: float) -> dict[str, Any]:
    """A curve at 1, 2, 4, ... streams, in GB/s."""
    return {"points": [{"n": 2**i, "bytes_per_s": rate * 1e9} for i, rate in enumerate(rates)]}


NAS = vendor("250MB/s", "600MB/s")
ONE = vendor("1GB/s", "1GB/s")
CHASSIS = vendor("3.75GB/s", "15GB/s", name="chassis", ops_per_s="1M",
                 random_read={"one_bytes_per_s": "1GB/s", "all_bytes_per_s": "15GB/s"})  # fmt: skip
NVME = {
    "name": "nvme", "basis": "measured", "write": measured(2, 3, 3.2, 3.2, 3.2, 3.2), "read": measured(3, 5, 6, 6.5, 6.5, 6.5),
    "random_read": measured(1, 2, 4, 5, 5),
}  # fmt: skip
MIXED = {"name": "nas", "write": {"one_bytes_per_s": "180MB/s", "all_bytes_per_s": "680MB/s"},
         "random_read": {"one_bytes_per_s": "200MB/s", "all_bytes_per_s": "2GB/s"}}  # fmt: skip


def planned(storage: dict[str, Any], *workloads: dict[str, Any], **more: Any) -> LimitPlan:
    return _planned(json.dumps({"storage": storage, "workloads": list(workloads), **more}))


@functools.cache  # the same plan is asked for several things, and takes half a second
def _planned(given: str) -> LimitPlan:
    return plan(PlanInput.model_validate_json(given))


def batch_s(answer: Answer, n: int) -> float:
    found = answer.at(n).batch_s
    assert found is not None
    return found


def said(answer: LimitPlan) -> str:
    return "\n".join(line for each in answer.answers for line in answer_lines(answer, each))


def job(think_s: Any, burst: Any, bursts: int = 1, jobs: int | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "w", "burst_bytes": burst, "think_s": think_s, "bursts_per_job": bursts, "jobs": jobs} | more


def reads(**more: Any) -> dict[str, Any]:
    return {"name": "r", "kind": "inference", "burst_bytes": "1GB", "think_s": 0} | more


# Storage, classes, link and policy, jobs at once (None: those to run), seconds of the batch.
BY_HAND: list[tuple[Any, ...]] = [
    # 20 x 40 x 2 GB = 1.6 TB at 0.85 x 600 MB/s = 510 MB/s: 52.3 min of bytes.
    (NAS, [CACHES], {"link": "10G"}, None, 52.3 * MINUTE),
    # At 5, (10 + 9.4) / 3.9 = 4.9 fill it, so it idles now and then: four rounds of 40 x (10 + 12.9) s = 61 min.
    (NAS, [CACHES], {"link": "10G"}, 5, 61 * MINUTE),
    # 64 x 30 x 4.7 GB = 9.02 TB at 0.85 x 15 GB/s: 708 s, whatever the link.
    *((CHASSIS, [LOADS], {"link": {"bytes_per_s": link, "hosts": 16}}, None, 11.8 * MINUTE) for link in ("10G", "20Gbit/s", "40G")),
    # 1.6 TB at 2.72 GB/s: 588 s; (10 + 1.2) / 0.74 = 15.2 jobs fill it, so 20 keep it busy for 96 % of the time, and a first pause
    # of 10 s and a last one of 5 s: 628 s. Ten at once have two rounds of 40 x (10 + 1.9) s.
    (NVME, [CACHES], {}, 20, 10.5 * MINUTE),
    (NVME, [CACHES], {}, 10, 15.9 * MINUTE),
    # Trainers read 4 x 256 MB every 0.8 + 0.2 s = 1.02 of 5.5 GB/s: 19 % of its time. 1.6 TB / (0.81 x 2.72 GB/s) = 727 s.
    (NVME, [CACHES, TRAINING | {"access": "sequential", "think_s": "800ms", "running": 4}], {}, None, 12.1 * MINUTE),
    # Ten bursts after 30 s each: 10 x (30 + 1.2) s = 312 s. Pauses vary by half, so jobs differ by 30 s x 0.29 x sqrt(10) = 27 s,
    # and the slowest of 20 is 1.9 x 27 s later.
    (NVME, [CACHES | {"think_s": "30s", "bursts_per_job": 10}], {}, 20, 363),
    # A burst of t alone takes 5.9 ms, so 16 of them are 16 x 5.9 / 15.9 = 5.9 streams, 7 beside 3 of c: of 10 streams each of c has
    # 578 MB/s / 10, and a burst takes 35 s. 40 / 3 rounds of 80 x (10 + 35) s.
    (MIXED, [CACHES | {"name": "c", "bursts_per_job": 80, "jobs": 40}, TRAINING | {"burst_bytes": "1MB", "think_s": "10ms", "running": 16}],
     {"link": "10G"}, 3, 13.3 * HOUR),
    # 10 Gbit/s x 0.85 = 1.06 GB/s of the chassis's own port for 9.02 TB.
    (CHASSIS | {"port_bytes_per_s": "10G"}, [LOADS], {"link": {"bytes_per_s": "40G", "hosts": 16}}, None, 142 * MINUTE),
    # Nobody waits: 100 x (60 + 2.5) s, and the slowest of 48 is 2.2 x 60 s x 0.29 x 10 later.
    (vendor("200MiB/s", "1GiB/s"), [job("1m", "500MiB", 100, 48)], EXACT, 48, 6630),
    # 3.6 TB of one job and 100 GB of tiny bursts, at 1 GB/s.
    (ONE, [job(0, "3.6TB", 1, 1), job(1, "1MB", 100, 1000, name="tiny")], EXACT, None, 3700),
    # Of 19 streams 10 are of the batch: 1 TB at 10/19 of 1 GB/s.
    (ONE, [job(0, "10GB", 10, 10), reads(running=9)], EXACT, 10, 1900),
    # 64 x 1000 x 256 MB at 1M x 4 KiB = 4.1 GB/s; operations are no larger than bursts: 400,000 of 10 kB at 1,000/s.
    (CHASSIS, [TRAINING | {"op_bytes": "4KiB", "bursts_per_job": 1000, "jobs": 64}], EXACT, None, 4000),
    (vendor("2GB/s", "15GB/s", ops_per_s=1000), [job("10ms", "10kB", 10_000, 40, op_bytes="1MB")], EXACT, None, 400),
    # 100 x (1 GB / 2 GB/s + 10,000 files / 2,000/s).
    (vendor("500MB/s", "2GB/s", files_per_s=2000, small_file_s="2ms"), [job(5, "1GB", 10, 10, files_per_burst=10_000)], EXACT, 10, 550),
    # A compression that makes 20 MB/s: 10 x (5 + 500) s.
    (vendor("500MB/s", "2GB/s"), [job(5, "10GB", 10, 10, compression={"ratio": 4, "bytes_per_s": "20MB/s"})], EXACT, 10, 5050),
    # A disk that falls from 200 to 150 MB/s at 2: bursts of 50 and 133 s, pauses of 50. Of the chain's states 1 : 2 : 2.67 the
    # last two move 200 and 150 MB/s: 141 MB/s for 2 TB.
    ({"name": "hdd", "write": measured(0.2, 0.15, 0.08, 0.04)}, [job(50, "10GB", 10, 20)], EXACT, 2, 14_200),
    # A storage that is slower with 4 and 8 streams than with one, and the fastest with 16: 3.2 TB at 1.5 GB/s.
    ({"name": "odd", "write": measured(1, 1, 0.9, 0.9, 1.5)}, [job(0, "10GB", 10, 32)], EXACT, None, 2133),
    # 2 TB written at 1 GB/s and 4 TB read at 2.
    ({"name": "nas", "write": vendor("500MB/s", "1GB/s")["write"], "read": vendor("1GB/s", "2GB/s")["write"]},
     [job(5, "10GB", 20, 10), job(5, "20GB", 20, 10, name="l", kind="inference")], EXACT, None, 4000),
    # Two jobs a host, pause as long as a burst on a link of 125 MB/s: of the states 1 : 2 : 2 of a host a burst takes 96 s, so
    # 10 x (64 + 96) s, and the slowest of 128 is 2.5 x 64 s x 0.29 x sqrt(10) later.
    (vendor("3GB/s", "400GB/s"), [job(64, "8GB", 10, 128)], EXACT | {"link": {"bytes_per_s": "1Gbit/s", "hosts": 64}}, 128, 1750),
    # 100,000 jobs, 10 TB at 1 GB/s; 1M jobs of 40 bursts of 2 GB at 0.85 x 60 GB/s.
    (vendor("100MB/s", "1GB/s"), [job(9, "100MB", 1, 100_000)], EXACT, None, 10_000),
    (vendor("250MB/s", "60GB/s"), [CACHES | {"jobs": 1_000_000}], {}, None, 1.57e6),
    # 300 that always read 1 byte: a burst has 1/301 of 850 MB/s, 47 min. 20 x (30 days + 47 min), and the slowest of ten is
    # 1.5 x 30 days x 0.29 x sqrt(20) later.
    (vendor("100MB/s", "1GB/s"), [job("30d", "8GB", 20, 10), reads(burst_bytes=1, running=300)], {}, 10, 660 * DAY),
    # Of 961 + 999 streams 961 are of the batch: 1.6 PB at 0.49 of 850 MB/s.
    (vendor("100MB/s", "1GB/s"), [job(30, "8GB", 20, 10_000), reads(running=999)], {}, None, 44.4 * DAY),
    # 2,000 bursts of 10 MB / 1 GB/s and 10 files / 50/s.
    (vendor("100MB/s", "1GB/s", files_per_s=50), [job(2, "10MB", 20, 100, files_per_burst=10)], EXACT, None, 420),
]  # fmt: skip


@pytest.mark.parametrize(("storage", "classes", "more", "n", "seconds"), BY_HAND)
def test_a_batch_takes_as_long_as_by_hand(
    storage: dict[str, Any], classes: list[dict[str, Any]], more: dict[str, Any], n: int | None, seconds: float
) -> None:
    answer = planned(storage, *classes, **more).answers[0]
    assert batch_s(answer, n or answer.n) == pytest.approx(seconds, rel=0.1)
    assert answer.row.batch_s >= answer.by_hand.least_s * (1 - 1e-6)


def test_loads_and_training_beside_each_other_on_a_chassis() -> None:
    # A load: 1.5 s + 4.7 GB / (0.85 x 3.75 GB/s) = 3.0 s a cycle, 4 of them 6.3 GB/s. A trainer: 0.25 s + 256 MB / 0.85 GB/s
    # = 0.55 s, 4 of them 1.9 GB/s. Together 8.2 GB/s of the 12.75, if nobody ever waits: a little less is right.
    loads, link = LOADS | {"jobs": None}, {"bytes_per_s": "40G", "hosts": 8}
    (answer,) = planned(CHASSIS, loads, TRAINING | {"running": 4}, link=link).answers
    assert 0.9 * 8.2e9 <= answer.at(4).bytes_per_s <= 8.3e9


def test_a_burst_beside_others_and_its_slowest_take_as_long_as_by_hand() -> None:
    # The third row of a mix above: 35 s, with hardly any spread since each burst sees thousands of small ones.
    rows = planned(MIXED, CACHES | {"name": "c", "bursts_per_job": 80, "jobs": 40},
                   TRAINING | {"burst_bytes": "1MB", "think_s": "10ms", "running": 16}, link="10G").answers[0].rows  # fmt: skip
    assert next(row for row in rows if row.n == 3).classes[0].burst_s == pytest.approx(35, rel=0.05)
    assert all(row.classes[0].burst_p99_s <= 1.2 * row.classes[0].burst_s for row in rows)
    first = planned(NAS, CACHES).answers[0].rows[0]
    assert (first.n, first.classes[0].burst_p99_s) == (1, pytest.approx(first.classes[0].burst_s))


def test_jobs_are_not_streams_and_what_caps_the_number_is_said() -> None:
    # Twenty jobs that mostly think are never 16 streams; with 0.5 s of thinking nearly every job is one.
    (answer,) = planned(NVME | {"write": measured(2, 3, 3.2, 3.2, 3.2)}, CACHES | {"think_s": "30s"}).answers
    assert (answer.n, answer.reason) == (20, "jobs")
    assert answer.row.streams_p99 <= 16
    capped = planned(NVME | {"write": measured(0.5, 1, 2, 4, 8)}, CACHES | {"think_s": "500ms", "jobs": 60})
    assert 14 <= capped.answers[0].n <= 18
    assert "Not more, since beyond the 16 streams that were measured nothing is known" in " ".join(text_lines(capped))


def test_the_number_is_as_good_as_the_best_row_of_its_own_table() -> None:
    for plan_ in (planned(NAS, CACHES, link="10G"), planned(NVME, CACHES), planned(CHASSIS, LOADS)):
        (answer,) = plan_.answers
        times = [row.batch_s for row in answer.rows if row.batch_s]
        assert batch_s(answer, answer.n) <= 1.02 * min(times)
        assert all(row.batch_s > 1.02 * min(times) for row in answer.rows if row.n < answer.n and row.batch_s)


ZSTD = {"name": "zstd", "ratio": 2, "bytes_per_s": "500MB/s", "used": False}
FILES = NAS | {"small_file_s": "4ms"}
HOST = {"link": "10G"}


@pytest.mark.parametrize(
    ("storage", "classes", "more", "change", "faster"),
    [
        (NAS, [CACHES], {}, "twice the storage", 2),
        (NAS, [CACHES | {"jobs": 1}], {}, "twice the storage", 1),
        # One host with 10G: 1.06 GB/s of a chassis of 12.75; 40G gives 4.25, two hosts twice as much.
        (CHASSIS, [LOADS | {"jobs": 16}], HOST, "a link of 40G", 4),
        (CHASSIS, [LOADS | {"jobs": 16}], HOST, "twice the link", 2),
        (CHASSIS, [LOADS | {"jobs": 16}], HOST, "twice the hosts", 2),
        (CHASSIS, [LOADS | {"jobs": 16}], HOST, "twice the storage", 1),
        # 2,000 files of 4 ms / 0.85 are 9.4 s on top of 10 s and of the 9.4 s that the bytes take.
        (FILES, [CACHES | {"jobs": 1}], {}, "files of 1 MB", 19.4 / 28.8),
        (FILES, [CACHES | {"jobs": 1, "files_per_burst": 2000}], {}, "one file a burst", 28.8 / 19.4),
        (NAS, [CACHES | {"compression": ZSTD}], {}, "with zstd", 2),
        (NAS, [CACHES | {"compression": ZSTD | {"used": True}}], {}, "without zstd", 0.5),
        # 1.6 TB / 2.72 GB/s = 10.5 min with ramps, and together with 9.02 TB / 5.53 GB/s 37 min.
        (NVME, [CACHES, LOADS], {}, "caches alone", 37 / 10.5),
        (NVME, [CACHES, LOADS], ISOLATED, "all on one storage", 10.5 / 37),
        # 800 GB of two classes do not fit into 500, nor do 2 TB without a compression into one.
        (NAS | {"free_bytes": "500GB"}, [job(10, "2GB", 10, 20), job(10, "2GB", 10, 20, name="b")], ISOLATED, "all on one storage", 0),
        (NAS | {"free_bytes": "1TB"}, [CACHES | {"compression": ZSTD | {"used": True}}], {}, "without zstd", 0),
    ],
)  # fmt: skip
def test_a_change_makes_the_batch_as_much_faster_as_by_hand(
    storage: dict[str, Any], classes: list[dict[str, Any]], more: dict[str, Any], change: str, faster: float
) -> None:
    answer = planned(storage, *classes, **more)
    row = next(each for each in answer.answers[0].alternatives if each.change == change)
    assert row.faster == pytest.approx(faster, rel=0.1)
    assert faster > 0 or re.search(f"{change} +- +does not fit +space", "\n".join(text_lines(answer)))


def test_a_slower_link_is_never_told_to_be_faster() -> None:
    both = planned(
        CHASSIS | {"write": NAS["write"]}, CACHES, LOADS | {"jobs": 16}, link={"bytes_per_s": "40G", "hosts": 8}
    )
    faster = {each.change: each.faster for each in both.answers[0].alternatives}
    assert max(faster["a link of 10G"], faster["a link of 25G"]) <= 1.001
    assert faster["a link of 100G"] >= 0.999


def test_isolated_classes_have_a_number_a_limit_and_a_storage_each() -> None:
    both = planned(NVME | {"free_bytes": "2TB"}, CACHES, LOADS, **ISOLATED)
    assert [(answer.name, answer.classes) for answer in both.answers] == [
        ("nvme-caches", ("caches",)), ("nvme-loads", ("loads",)),
    ]  # fmt: skip
    assert both.answers[1].n == planned(NVME, LOADS).answers[0].n
    assert "links of its own, with 2 TB free on each, 4 TB together." in both.notes[0]


def test_free_space_is_that_of_all_storages_side_by_side() -> None:
    # 20 x 40 x 2 GB = 1.6 TB, and 2 x 900 GB are free.
    assert planned(NAS | {"free_bytes": "900GB", "units": 2}, CACHES).answers
    with pytest.raises(InputError, match=r"they leave 1\.6 TB and 900 GB are free, so 700 GB are missing"):
        planned(NAS | {"free_bytes": "900GB"}, CACHES)


def test_files_are_a_part_of_what_a_pencil_computes() -> None:
    # A burst: 2 GB / 510 MB/s + 2,000 files / (0.85 x 1,000/s) = 3.92 + 2.35 = 6.27 s at the ceilings; alone 9.41 + 2.35 s.
    # All: 1.6 TB / 510 MB/s + 1.6M files / 850/s = 3137 + 1882 s = 83.7 min.
    answer = planned(NAS | {"files_per_s": 1000}, CACHES | {"files_per_burst": 2000})
    hand = answer.answers[0].by_hand
    assert (hand.demand_s, hand.burst_s, hand.least_s) == pytest.approx((6.27, 11.8, 5020), rel=0.01)
    assert said(answer).endswith("By hand: 52.3 min + 31.4 min = 83.7 min at least; (Z + R) / D = 3.47 jobs.")
    assert "D = 6.3 s for one at 510 MB/s and 850 files/s (storage)" in " ".join(" ".join(text_lines(answer)).split())


def test_figures_of_a_vendor_run_from_contention_to_the_roofline() -> None:
    # Contention at 10: 10 x 250 / (1 + 9 x 250/600) MB/s = 526 MB/s instead of 600.
    (answer,) = planned(NAS, CACHES).answers
    assert answer.batch_range_s is not None
    low, high = answer.batch_range_s
    assert low == pytest.approx(batch_s(answer, answer.n), rel=0.02)
    assert 1.05 * low < high < 1.5 * low
    assert not planned(NAS, CACHES).measured


WIDE = vendor("1GB/s", "100TB/s", name="wide")


@pytest.mark.parametrize(
    ("storage", "classes", "told"),
    [
        # At 8 streams the disk moves 3 GB/s, at 32 only 1.
        (NVME | {"write": measured(1, 2, 3, 3, 2, 1)}, [CACHES | {"think_s": 1, "jobs": 200}], "GB/s, storage): more jobs only wait longer"),
        # 64 jobs come out even with 32, not with 31: the batch of 31 is told as it is, three rounds of 30 x (1.5 + 14) s and more.
        (NAS | {"write": {"one_bytes_per_s": "1.3GB/s", "all_bytes_per_s": "21.6GB/s"}},
         [CACHES | {"think_s": 1.5, "jobs": 64, "burst_bytes": "9.4GB", "bursts_per_job": 30}], "shared: 14 s at 31, all in "),
        # 400 bursts of one job take as long as all of 20 others together.
        (NVME, [CACHES | {"jobs": 1, "bursts_per_job": 400}, CACHES | {"name": "b", "bursts_per_job": 5}], "no faster up to 12 ("),
        # Beside nine that always read, a burst of 10 s takes 100 s at 1, and alone 10.
        (ONE, [job(0, "8.5GB", 10, 10), reads(running=9)], "a burst of 8.5 GB of w takes 100 s, as at 1\n"),
        # No line is cut where one job fills the storage.
        (ONE, [job(0.5, "34GB", 10, 20)], "  1+  full (840 MB/s, storage)                          <- latency ticks up at 2\n"),
        (NAS, [CACHES | {"jobs": 1}], "\nNo faster: twice the storage.\n"),
        (WIDE, [CACHES | {"jobs": None}], "Run 999 at once on wide (no plan looks at more): "),
        (WIDE, [CACHES | {"jobs": None}], "\n  1-999  no waiting: "),
        (WIDE, [CACHES | {"jobs": None}], "Not more, since a plan looks at 999 jobs at once at most."),
        (CHASSIS, [TRAINING], "training: op_bytes is not given, so each read or write is taken for 1 MiB."),
        (NAS | {"free_bytes": "9TB"}, [CACHES | {"jobs": None}], "caches has no end of jobs: free_bytes is held against one of them."),
    ],
)  # fmt: skip
def test_zones_and_notes_say_what_is_so_and_promise_nothing(
    storage: dict[str, Any], classes: list[dict[str, Any]], told: str
) -> None:
    assert told in "\n".join(text_lines(planned(storage, *classes)))


LONG = "a name that nobody can remember, with seventy characters or even more"
ODD: list[tuple[Any, ...]] = [
    (NAS, CACHES | {"jobs": None}), (NAS, CACHES | {"think_s": 0}), (NAS, CACHES | {"jobs": 1}),
    (NAS | {"files_per_s": 100}, CACHES | {"files_per_burst": 999}),
    (NVME | {"write": measured(1, 2, 3, 3, 2, 1)}, CACHES | {"jobs": 64}), (NVME, CACHES, TRAINING | {"burst_bytes": "1MB", "running": 9}),
    (NVME, CACHES, TRAINING | {"running": 4}), (NVME, CACHES, LOADS, ISOLATED),
    (CHASSIS, LOADS, {"link": {"bytes_per_s": "40G", "hosts": 16}}),
    (NVME | {"name": LONG}, CACHES | {"name": LONG, "burst_bytes": "3.33GB"}, LOADS | {"name": LONG.upper()}, HOST),
    (NVME, *(CACHES | {"name": f"caches of kind {i}", "jobs": 2} for i in range(6)), HOST),
    (NVME | {"write": measured(0.5, 1, 2, 4, 8)}, CACHES | {"think_s": "500ms", "jobs": 999_999}),
    (NVME | {"small_file_s": "4ms"}, CACHES | {"compression": {"ratio": 2, "bytes_per_s": "900MB/s"}}, HOST),
    (CHASSIS, TRAINING | {"burst_bytes": 1, "think_s": "9h"}),
]  # fmt: skip


@pytest.mark.parametrize("given", ODD)
def test_an_answer_has_six_lines_of_a_terminal_and_numbers_of_three_digits_that_agree(given: tuple[Any, ...]) -> None:
    classes, more = [each for each in given[1:] if "name" in each], given[-1] if "name" not in given[-1] else {}
    plan_ = planned(given[0], *classes, **more)
    lines = list(text_lines(plan_))
    assert max(map(len, lines)) <= 80
    for answer in plan_.answers:
        shown = answer_lines(plan_, answer)
        assert len(shown) <= 6
        assert re.match("Run .*[.]$|Not even 1 .*[.]$", shown[0])
        assert re.match("By hand: .* jobs[.]$", shown[-1])
        assert given[0].get("name") == LONG or not any("…" in line for line in shown)
        assert all(each.faster >= 1 for each in answer.alternatives if each.change.startswith("twice"))
        assert all(row.held_by == answer.by_hand.ceiling for row in answer.rows if row.full)
        assert (answer.row.batch_s or 1e99) >= answer.by_hand.least_s * (1 - 1e-6)
        assert all("full (" not in line or f", {answer.by_hand.ceiling})" in line for line in shown)
    for number in re.findall(r"(?<![\w.])[0-9][0-9.]*", "\n".join(lines)):
        assert len(number.rstrip(".").replace(".", "").strip("0") or "0") <= 3, number


@pytest.mark.parametrize(
    ("burst", "free", "unit"),
    [("2GB", None, "GB"), ("2GB", "3TiB", "GB"), ("2GiB", "3TB", "GiB"), (2 * 10**9, "3TiB", "GB")],
)
def test_sizes_are_said_in_the_units_that_bursts_are_written_in(burst: Any, free: Any, unit: str) -> None:
    text = "\n".join(text_lines(planned(NAS | {"free_bytes": free}, CACHES | {"burst_bytes": burst})))
    found = set(re.findall(r"[0-9] ([KMGTkm]i?B)", text.replace("files of 1 MB", "")))
    assert found <= {unit, unit.replace("G", "M"), unit.replace("G", "T")}
    assert f" {unit} takes " in text
