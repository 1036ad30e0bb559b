"""The number that a plan recommends, and what it says and does not say beyond the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefect_cachewatch.capacity import LinkProfile, Policy, ServiceCurve, StorageProfile, WorkloadClass, plan
from prefect_cachewatch.capacity.charts import latency_chart, shares_chart
from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.limits import ClassSearch
from prefect_cachewatch.capacity.model.together import Together
from prefect_cachewatch.capacity.model.usl import fit_usl, service_rates
from prefect_cachewatch.capacity.page import COLUMNS, plan_sections
from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.rollout import decide_limit
from prefect_cachewatch.errors import InputError

NIGHTLY = Path(__file__).parents[4] / "examples" / "planner" / "nightly.yaml"
RISING = [(1, 180e6), (2, 330e6), (4, 560e6), (8, 760e6), (16, 800e6)]


def curve(points: list[tuple[int, float]], **more: Any) -> ServiceCurve:
    return ServiceCurve(points=[{"n": n, "throughput_bytes_per_s": rate} for n, rate in points], **more)


def nfs(times: float = 1.0, **more: Any) -> StorageProfile:
    fields = {"name": "nfs", "basis": "measured", "sequential_write": curve([(n, x * times) for n, x in RISING])}
    return StorageProfile(**fields | more)


def builds(**more: Any) -> WorkloadClass:
    return WorkloadClass(**{"name": "builds", "burst_bytes": 2e9, "think_s": 10, "bursts_per_job": 80} | more)


@pytest.mark.parametrize("jobs", [1, 7, 40])
@pytest.mark.parametrize("times", [1.0, 2.0])
def test_no_smaller_number_is_as_fast_as_the_recommended_one(jobs: int, times: float) -> None:
    policy = Policy(max_slowdown=2.5, beyond_measured=True)
    answer = plan(nfs(times), LinkProfile(), [builds(jobs=jobs)], policy)
    search = ClassSearch(Scenario(nfs(times), LinkProfile(), (builds(jobs=jobs),), policy), 0)
    rows = {n: search.mine(n) for n in range(1, answer.most + 1)}
    lasts = {n: row.batch_s if jobs > 1 else 1 / row.throughput_per_s for n, row in rows.items()}
    assert lasts[answer.limit] <= 1.02 * min(lasts.values())
    assert all(lasts[n] > 1.02 * min(lasts.values()) for n in range(1, answer.limit))
    assert answer.limit < answer.most


def test_the_last_jobs_of_a_batch_run_at_their_own_rate() -> None:
    search = ClassSearch(Scenario(nfs(), LinkProfile(), (builds(jobs=40),), Policy(max_slowdown=5)), 0)
    assert search.mine(29).batch_s == pytest.approx(search.mine(29).job_s + search.mine(11).job_s)
    assert search.mine(20).batch_s == pytest.approx(2 * search.mine(20).job_s)
    assert search.mine(29).batch_s < 0.75 * 2 * search.mine(29).job_s  # what whole rounds would say


def test_the_first_line_says_from_where_on_bursts_wait() -> None:
    answer = plan(nfs(), LinkProfile(), [builds()], Policy(max_slowdown=2.5))
    search = ClassSearch(Scenario(nfs(), LinkProfile(), (builds(),), Policy(max_slowdown=2.5)), 0)
    assert answer.slower_n is not None
    assert answer.doubled_n is not None
    for n, factor in ((answer.slower_n, 1.1), (answer.doubled_n, 2.0)):
        assert search.mine(n).burst_s >= factor * search.mine(1).burst_s > search.mine(n - 1).burst_s
    first = f"nfs: latency is 10 % up at {answer.slower_n} generations, doubled at {answer.doubled_n}; "
    most = f"{answer.most} ({answer.low}-{answer.high}) is the most that the slowdown rule admits"
    assert answer.answer.startswith(first + most)
    assert answer.answer.endswith(f"Recommended: {answer.limit} at once, {answer.reason}")


def test_the_doubling_is_found_where_the_policy_stops_before_it() -> None:
    answer = plan(nfs(), LinkProfile(), [builds(think_s=0)], Policy(max_slowdown=1.1))
    assert answer.doubled_n is not None
    assert answer.doubled_n > answer.most


@pytest.mark.parametrize(
    ("policy", "n", "reason"),
    [
        ({"aim": "knee"}, 7, "no more than the knee, 7.8"),
        ({"aim": "most"}, 16, "the rules admit 19, but no more than 16 were measured"),
        (
            {"aim": "most", "beyond_measured": True},
            19,
            "as many as the rules admit, beyond the n = 16 that were measured",
        ),
        ({"max_burst_s": 20}, 7, "the smallest number within 2 % of the highest throughput"),
    ],
)
def test_the_policy_says_what_is_aimed_at_and_the_plan_says_which_rule_bound(
    policy: dict[str, Any], n: int, reason: str
) -> None:
    answer = plan(nfs(), LinkProfile(), [builds()], Policy(**{"max_slowdown": 2.5} | policy))
    assert (answer.limit, answer.reason) == (n, reason)
    assert (answer.binding == "latency") is ("max_burst_s" in policy)


def test_a_deadline_is_kept_by_the_number_recommended() -> None:
    loose, tight = (
        plan(nfs(), LinkProfile(), [builds(jobs=40, deadline_s=f"{hours}h")], Policy(max_slowdown=2.5, aim="knee"))
        for hours in (20, 3.1)
    )
    assert tight.limit > loose.limit  # the knee alone would be too late
    assert tight.table[0][0].batch_s > 3.1 * 3600


def test_plan_and_what_is_set_are_one_number() -> None:
    loads = WorkloadClass(name="loads", kind="inference", burst_bytes=6e9, think_s=5)
    both = nfs(sequential_read=nfs().sequential_write)
    for classes in ([builds()], [builds(), loads], [builds(), loads, builds(name="always", running=4)]):
        answer = plan(both, LinkProfile(), classes, Policy(max_slowdown=2.5))
        decision = decide_limit(answer)
        assert decision.slots == answer.slots
        assert answer.limit == decision.slots // decision.weights["builds"]
        most = max(decision.slots // weight for weight in decision.weights.values())
        assert most + (4 if len(classes) == 3 else 0) <= 16  # no more at once than were measured
        assert f"Recommended: {answer.limit} at once, {answer.reason}" in answer.answer
        assert decision.sentence.endswith(answer.reason)


def test_a_shared_limit_is_the_smallest_near_the_best_of_each_class_alone_and_of_all_at_once() -> None:
    classes = (builds(jobs=40), builds(name="others", jobs=20, burst_bytes=5e8))
    policy = Policy(max_slowdown=6, beyond_measured=True)
    answer = plan(nfs(), LinkProfile(), classes, policy)
    admitted = plan(nfs(), LinkProfile(), classes, policy.model_copy(update={"aim": "most"})).slots
    occupy = [entry.occupy for entry in answer.classes]
    assert answer.slots < admitted
    whole = Scenario(nfs(), LinkProfile(), classes, policy)
    together, searches = Together(whole, (0, 1), occupy, admitted), [ClassSearch(whole, c) for c in (0, 1)]
    took = {
        n: [together.batch_s(n), *(s.mine(n // w).batch_s for s, w in zip(searches, occupy, strict=True))]
        for n in range(max(occupy), admitted + 1)
    }
    best = [min(each) for each in zip(*took.values(), strict=True)]
    behind = {n: max(t / b for t, b in zip(each, best, strict=True)) for n, each in took.items()}
    most = 1.02 * min(behind.values())
    assert f"takes over {100 * (most - 1):.0f} % longer than it could" in answer.reason
    assert behind[answer.slots] <= most
    assert all(behind[n] > most for n in behind if n < answer.slots)


def test_the_shared_limit_of_the_example_lets_its_batches_run_at_once() -> None:
    given = read_plan(NIGHTLY.with_name("shared-cluster.yaml"))
    answer = plan(given.storage, given.link, given.workloads, given.policy)
    assert (answer.slots, [entry.occupy for entry in answer.classes], answer.limit) == (52, [2, 5], 26)


def test_small_batches_do_not_make_a_shared_limit_small() -> None:
    """Five jobs of a class need five slots, and five of each of two classes need ten."""
    classes = [builds(jobs=5), builds(name="others", jobs=5)]
    answer = plan(nfs(), LinkProfile(), classes, Policy(max_slowdown=4))
    assert [entry.limit for entry in answer.classes] == [5, 5]
    assert answer.slots == 10 * answer.classes[0].occupy


def test_of_one_class_its_batch_together_is_its_batch_alone() -> None:
    whole = Scenario(nfs(), LinkProfile(), (builds(jobs=40),), Policy(max_slowdown=5))
    search, together = ClassSearch(whole, 0), Together(whole, (0,), (1,), 20)
    assert together.batch_s(20) == pytest.approx(search.mine(20).batch_s)
    assert together.batch_s(16) < search.mine(16).batch_s * 1.001  # the last eight begin while others still run


def test_where_the_mixes_are_too_many_the_shared_limit_is_what_the_rules_admit() -> None:
    classes = [builds(name=f"c{i}", jobs=50) for i in range(4)]
    two = ServiceCurve(per_stream_bytes_per_s=1e9, aggregate_bytes_per_s=2e10)
    answer = plan(StorageProfile(name="s", sequential_write=two), LinkProfile(), classes, Policy(max_slowdown=3))
    assert any("the mixes are too many" in line for line in answer.assumptions)
    assert answer.slots == 45
    assert answer.reason == "its share of 45 slots, which 4 classes have together; alone 50 would be recommended"


def test_a_plan_says_why_nothing_is_set_for_a_storage_that_was_not_measured() -> None:
    two = ServiceCurve(per_stream_bytes_per_s=1e8, aggregate_bytes_per_s=1e9)
    answer = plan(StorageProfile(name="v", sequential_write=two), LinkProfile(), [builds()], Policy())
    assert any("sets no limit by this plan: v was not measured" in section.text for section in plan_sections(answer))
    with pytest.raises(InputError, match="was not measured"):
        decide_limit(answer)
    assert decide_limit(answer, force=True).slots == answer.limit


def test_no_decline_is_assumed_beyond_data_that_still_rise() -> None:
    fit = fit_usl([n for n, _ in RISING], [rate for _, rate in RISING])
    assert fit.beta > 0  # the fit itself would go down from n = 17 on
    rates = service_rates(curve(RISING), 64)
    assert (np.diff(rates.alpha[15:]) >= 0).all()
    answer = plan(nfs(), LinkProfile(), [builds()], Policy(max_slowdown=2.5))
    assert any("extrapolated, without a decline, since none was measured" in line for line in answer.assumptions)
    fallen = [(n, 1e9 * n / (1 + 0.02 * (n - 1) + 0.02 * n * (n - 1))) for n in (1, 2, 4, 8, 16, 32)]
    assert (np.diff(service_rates(curve(fallen), 64).alpha[32:]) < 0).all()


@pytest.mark.parametrize(
    "more", [{"through": "network"}, {"source": "cachewatch probe with fio-3.33, nfs4, O_DIRECT, 1.00 GiB at once"}]
)
def test_a_link_is_not_counted_twice(more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"would count that network twice: leave out link; .*through: local") as caught:
        plan(nfs(**more), LinkProfile(bytes_per_s=1.25e9), [builds()], Policy())
    assert "\n" not in caught.value.message
    answer = plan(nfs(**more), LinkProfile(), [builds()], Policy())
    assert "the network is in the measured curves" in answer.assumptions
    assert plan(nfs(**more | {"through": "local"}), LinkProfile(bytes_per_s=1.25e9), [builds()], Policy()).limit


def test_the_example_of_a_measured_storage_counts_its_link_once() -> None:
    given = read_plan(NIGHTLY)
    assert given.storage.contains_link
    assert given.link.bytes_per_s is None


def test_a_ceiling_of_operations_bounds_what_small_requests_move() -> None:
    disk = ServiceCurve(per_stream_bytes_per_s=1e9, aggregate_bytes_per_s=15e9)
    chassis = StorageProfile(name="chassis", sequential_read=disk, random_read=disk, ops_per_s="1M")
    small = WorkloadClass(
        name="samples", kind="training", access="random", burst_bytes=40_960_000, op_bytes="4KiB", think_s=0.1
    )
    large = small.model_copy(update={"op_bytes": 2**20})
    free = Policy(derate=0, max_slowdown=20, stall_window_s=86400)
    few, many = (plan(chassis, LinkProfile(), [w], free) for w in (small, large))
    assert few.table[-1][0].throughput_per_s == pytest.approx(100, rel=0.03)  # 10,000 reads a burst, 1M a second
    assert few.bottleneck.startswith("the operations (of chassis)")
    assert many.table[-1][0].throughput_per_s > 2 * few.table[-1][0].throughput_per_s
    assert "chassis serves 1,000,000 operations/s, and a burst of samples is 10,000 of 4.00 KiB" in few.assumptions
    both = demands_of(Scenario(chassis, LinkProfile(), (small, large.model_copy(update={"name": "big"})), free), 4)
    assert both.stations == ("operations", "storage")
    assert both.demands_s[:, 0] == pytest.approx([0.01, 40_960_000 / 2**20 / 1e6])


@pytest.mark.parametrize("value", ["many", "-1", "0", "1Mreads", "nan"])
def test_operations_are_a_number_above_zero(tmp_path: Path, value: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(NIGHTLY.read_text().replace("  free_bytes: 12TB", f"  ops_per_s: {value}"))
    with pytest.raises(InputError, match=r"plan\.yaml: storage\.ops_per_s") as caught:
        read_plan(path)
    assert "\n" not in caught.value.message


def test_table_and_charts_have_the_same_units_and_the_band_a_legend() -> None:
    answer = plan(nfs(), LinkProfile(), [builds()], Policy(max_slowdown=2.5))
    assert all("MiB/s" in COLUMNS["bytes/s"](row[0]) for row in answer.table)
    drawn = shares_chart(answer)
    assert ">600 MiB/s<" in drawn
    assert " MB/s" not in drawn
    assert "band: rates 25% lower and higher" in latency_chart(answer)
    assert COLUMNS["band"](answer.table[-1][0]).endswith(" s")
