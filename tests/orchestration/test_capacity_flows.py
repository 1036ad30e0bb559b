"""The planner's flows on a real Prefect server: what they set, read, store and refuse."""

import base64
import datetime
import logging
import re
import threading
import time

import pytest
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
from prefect.concurrency.sync import concurrency
from prefect.runtime import flow_run
from prefect.variables import Variable

from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.capacity.model.inputs import WorkloadClass
from prefect_cachewatch.capacity.model.planning import plan
from prefect_cachewatch.capacity.model.profile import CurvePoint, LinkProfile, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.probe.run import ProbeSettings
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.capacity import check_capacity, plan_capacity
from prefect_cachewatch.tasks.prefect_api.storage_slots import storage_slot, storage_weight
from prefect_cachewatch.tasks.run_records import store_run_record

pytestmark = [pytest.mark.usefixtures("prefect_harness"), pytest.mark.timeout(180)]

LOGGER = logging.getLogger("tests.capacity")


CACHES = WorkloadClass(name="caches", burst_bytes=2e9, think_s=10, bursts_per_job=5, jobs=20)


def measured(name, upto=4, rate=200e6, **changes):
    """A storage measured up to `upto` streams, of which each alone moves half of what all together do."""
    points = [CurvePoint(n=n, throughput_bytes_per_s=min(n, 2) * rate / 2) for n in (1, 2, 4, 8, 16) if n <= upto]
    return StorageProfile(name=name, basis="measured", sequential_write=ServiceCurve(points=points), **changes)


def limit_of(name):
    with get_client(sync_client=True) as client:
        found = {entry.name: entry for entry in client.read_global_concurrency_limits(limit=200)}
    return found[name].limit if name in found else None


def set_limit(name, value):
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(name, value)


def in_use(name):
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(name).active_slots


def latest_artifact(key):
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])), sort=ArtifactSort.CREATED_DESC, limit=1
        )
    return found[0].data


def test_a_dry_run_says_what_would_change_and_changes_nothing():
    result = plan_capacity(storage=measured("dry"), workloads=[CACHES])
    assert limit_of("dry") is None
    assert Variable.get("cachewatch-weights-dry", default=None) is None
    assert result["change"]["applied"] is False
    assert result["change"]["sentence"].startswith(f"The limit of dry would change from no limit to {result['slots']}")
    assert result["change"]["sentence"].endswith("this is a dry run: apply=True sets it")


def test_applying_sets_the_limit_and_says_from_what_to_what():
    first = plan_capacity(storage=measured("applied"), workloads=[CACHES], apply=True, simulate=False)
    assert limit_of("applied") == first["slots"] >= 1
    assert "was changed from no limit to" in first["change"]["sentence"]
    assert storage_weight("applied") == 1
    set_limit("applied", 17)
    again = plan_capacity(storage=measured("applied"), workloads=[CACHES], apply=True, simulate=False)
    assert f"was changed from 17 to {first['slots']}" in again["change"]["sentence"]
    assert limit_of("applied") == first["slots"]
    same = plan_capacity(storage=measured("applied"), workloads=[CACHES], apply=True, simulate=False)
    assert f"stays at {first['slots']}" in same["change"]["sentence"]


def test_a_limit_never_goes_beyond_what_was_measured_unless_forced():
    small = WorkloadClass(name="caches", burst_bytes=1e8, think_s=60, jobs=20)
    storage = measured("beyond", upto=2)
    assert plan(storage, LinkProfile(), [small]).slots == 2 < plan(storage, LinkProfile(), [small]).most
    lowered = plan_capacity(storage=storage, workloads=[small], apply=True, simulate=False)
    assert limit_of("beyond") == 2
    assert "no more than 2 were measured" in lowered["change"]["sentence"]
    forced = plan_capacity(storage=storage, workloads=[small], apply=True, force=True, simulate=False)
    assert limit_of("beyond") == forced["slots"] > 2
    assert "beyond the n = 2 that were measured" in forced["change"]["sentence"]


def test_a_vendors_ceiling_is_planned_with_but_not_applied_unless_forced():
    ceiling = StorageProfile(
        name="ceiling", basis="vendor ceiling",
        sequential_write=ServiceCurve(per_stream_bytes_per_s=1e8, aggregate_bytes_per_s=1e9),
    )  # fmt: skip
    dry = plan_capacity(storage=ceiling, workloads=[CACHES], simulate=False)
    assert "ceiling was not measured" in dry["change"]["sentence"]
    assert dry["limit"] >= 1
    state = plan_capacity(storage=ceiling, workloads=[CACHES], simulate=False, apply=True, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert "run cachewatch probe, or use force" in state.message
    assert limit_of("ceiling") is None
    plan_capacity(storage=ceiling, workloads=[CACHES], simulate=False, apply=True, force=True)
    assert limit_of("ceiling") == dry["slots"]


def test_a_storage_too_slow_for_even_one_job_is_never_set_to_zero():
    slow = measured("slow", rate=2e6)
    state = plan_capacity(storage=slow, workloads=[CACHES], simulate=False, apply=True, return_state=True)
    assert state.name == "Refused"
    assert "no room for even one job" in state.message
    assert limit_of("slow") is None
    plan_capacity(storage=slow, workloads=[CACHES], simulate=False, apply=True, force=True)
    assert limit_of("slow") == 1


def test_several_classes_get_weights_that_a_generation_looks_up():
    heavy = WorkloadClass(name="heavy", burst_bytes=8e9, think_s=5, jobs=20)
    light = WorkloadClass(name="light", burst_bytes=2e8, think_s=60, jobs=20)
    result = plan_capacity(
        storage=measured("mixed", upto=16, rate=2e9), workloads=[heavy, light], apply=True, force=True, simulate=False
    )
    occupy = {entry["name"]: entry["occupy"] for entry in result["plan"]["classes"]}
    assert occupy["heavy"] > occupy["light"] >= 1
    assert storage_weight("mixed", "heavy") == occupy["heavy"]
    assert storage_weight("mixed", "light") == occupy["light"]
    assert storage_weight("mixed") == occupy["heavy"]
    assert storage_weight("mixed", "unheard of") == 1
    assert limit_of("mixed") == result["slots"]


def test_the_plan_is_stored_as_a_page_with_charts_and_as_a_table():
    result = plan_capacity(storage=measured("Paged <b>"), workloads=[CACHES])
    page = latest_artifact("cachewatch-plan-paged-b")
    assert "would change from no limit to" in page
    assert "<b>" not in page
    charts = re.findall(r"\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", page)
    assert len(charts) >= 2
    assert all(base64.b64decode(chart).startswith(b"<svg") for chart in charts)
    assert result["plan"]["simulation"]["agrees"] is True
    assert "### Simulation" in page
    table = latest_artifact("cachewatch-plan-table-paged-b")
    assert '"at once": 1' in table


def test_a_directory_is_probed_first_and_its_profile_kept(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    profile = tmp_path / "storage.yaml"
    result = plan_capacity(
        probe_dir=disk,
        probe_settings=ProbeSettings(
            max_concurrency=2, size_bytes=16 * 2**20, time_s=150, run_s=0.1, engine="direct", keep_free=0
        ),
        profile_path=profile,
        workloads=[CACHES.model_copy(update={"kept_bytes_per_job": 0})],
        simulate=False,
    )
    assert result["plan"]["storage"] == "disk"
    assert result["plan"]["measured_n"] == 2
    assert list(disk.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["storage.yaml"]
    again = plan_capacity(
        profile_path=profile, workloads=[CACHES.model_copy(update={"kept_bytes_per_job": 0})], simulate=False
    )
    assert again["limit"] == result["limit"]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"storage": measured("x")}, "workloads is missing"),
        ({"workloads": [CACHES]}, "storage is missing"),
        ({"plan_file": "/nonexistent/plan.yaml"}, "/nonexistent/plan.yaml cannot be read"),
        ({"workloads": [CACHES], "profile_path": "/nonexistent/s.yaml"}, "/nonexistent/s.yaml cannot be read"),
        ({"workloads": [CACHES], "probe_dir": "/"}, "/ is the root directory"),
    ],
)
def test_input_that_cannot_be_acted_on_is_a_refused_run_with_one_sentence(parameters, said):
    state = plan_capacity(**parameters, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert said in state.message
    assert "\n" not in state.message


@flow(name="generate-cache")
def generate(storage, record=None, fails=False):
    """Stand in for the guarded generation: it stores the record that the real one stores."""
    if record is not None:
        store_run_record(RunRecord(**record | {"run_id": str(flow_run.id)}))
    if fails:
        raise RuntimeError("as wanted")


NOW = datetime.datetime(2030, 1, 2, 12, tzinfo=datetime.UTC)


def history(storage, speed=1.0, count=5, job="llama"):
    """Store `count` runs one after another, as fast as the plan says, times `speed`."""
    limit_plan = plan(measured(storage), LinkProfile(), [CACHES])
    row = limit_plan.table[0][0]
    length_s = 50 * row.n / row.throughput_per_s / speed
    first_s = time.time() - 3600 * 20
    for i in range(count):
        began_s = first_s + i * length_s
        record = {
            "storage": storage, "job": job, "started_s": began_s - 30, "slot_wait_s": 30.0, "ended_s": began_s + length_s,
            "bytes_written": int(50 * CACHES.burst_bytes), "longest_pause_s": 41.0,
        }  # fmt: skip
        generate(storage, record)
    return limit_plan


def checked(storage, **parameters):
    checks = check_capacity(storage=measured(storage), workloads=[CACHES], window_s="1d", **parameters)
    return next(check for check in checks if check["storage"] == storage)


def test_runs_as_fast_as_planned_are_found_ok_by_what_they_stored():
    history("as-planned")
    check = checked("as-planned")
    assert check["verdict"] == "ok"
    assert check["runs"] == 5
    assert check["slot_wait_s"] == pytest.approx(30, abs=0.01)
    assert check["bytes_per_s"] == pytest.approx(check["expected_bytes_per_s"], rel=0.01)
    assert check["derate"] == pytest.approx(0.15, abs=0.02)
    assert check["suggested_stall_window_s"] == 130.0
    assert check["hours"]
    page = latest_artifact("cachewatch-check-as-planned")
    assert page.startswith("## as-planned: ok")
    assert "| hour (UTC) |" in page


def test_runs_slower_than_planned_are_found_slower_with_a_derate_to_plan_with():
    history("slower", speed=0.5)
    check = checked("slower")
    assert check["verdict"] == "slower"
    assert check["derate"] > 0.3
    assert "0.50 x, outside 25%" in check["reason"]


def test_runs_that_stored_nothing_count_by_what_prefect_knows_of_them():
    generate("bare")
    generate("bare", fails=True, return_state=True)
    check = checked("bare")
    assert (check["runs"], check["verdict"]) == (2, "insufficient data")


def test_artifacts_that_are_no_records_are_passed_over():
    @flow(name="generate-cache")
    def odd(storage):
        for markdown in ("nonsense", "```json\n{]\n```", '{"cachewatch_run_record": 1, "started_s": "x"}'):
            create_markdown_artifact(key="cachewatch-run-odd", markdown=markdown)

    odd("odd")
    assert checked("odd")["runs"] == 1


def test_a_storage_that_has_runs_and_no_plan_is_told_too():
    generate("unplanned")
    checks = check_capacity(window_s="1h")
    found = next(check for check in checks if check["storage"] == "unplanned")
    assert "there is no plan for this storage" in found["reason"]


def test_no_history_is_one_sentence():
    state = check_capacity(generation_flow="never-run", return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert "no run of never-run names a storage in the last 7 days" in state.message


def test_a_storage_without_a_limit_is_an_error_that_says_how_to_make_one():
    with (
        pytest.raises(
            InputError, match=r"no concurrency limit for the storage nowhere: create it with prefect gcl create nowhere"
        ),
        storage_slot("nowhere", 1, LOGGER),
    ):
        pytest.fail("ran unprotected")


@pytest.mark.parametrize(
    ("limit", "weight", "said"),
    [
        (0, 1, "is 0, so nothing would ever run"),
        (2, 3, "occupies 3 slots of .* wait for ever"),
        (2, 0, "use a weight of 1"),
    ],
)
def test_a_wait_that_could_never_end_is_refused(limit, weight, said):
    name = f"never-{limit}-{weight}"
    set_limit(name, limit)
    with pytest.raises(InputError, match=said), storage_slot(name, weight, LOGGER):
        pytest.fail("ran unprotected")


def test_a_slot_is_held_meanwhile_and_freed_whatever_ends_the_job():
    set_limit("held", 3)
    with storage_slot("held", 2, LOGGER) as waited_s:
        assert waited_s == 0.0
        assert in_use("held") == 2
    assert in_use("held") == 0
    with pytest.raises(RuntimeError, match="generator"), storage_slot("held", 1, LOGGER):
        raise RuntimeError("generator")
    assert in_use("held") == 0


def test_a_wait_is_logged_and_its_length_returned(caplog):
    caplog.set_level(logging.INFO, logger="tests.capacity")
    set_limit("busy", 1)
    taken, leave = threading.Event(), threading.Event()

    def hold():
        with concurrency("busy", occupy=1):
            taken.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert taken.wait(60)
        threading.Timer(2.0, leave.set).start()
        with storage_slot("busy", 1, LOGGER) as waited_s:
            assert leave.is_set()
            assert in_use("busy") == 1
    finally:
        leave.set()
        holder.join(60)
    assert waited_s >= 1.0
    messages = [record.getMessage() for record in caplog.records if record.name == "tests.capacity"]
    assert messages[0] == "Waiting for 1 of 1 slot of busy: 1 in use by other runs"
    assert messages[-1].startswith("Got 1 of 1 slot of busy after waiting ")


def test_a_wait_beyond_its_timeout_is_one_sentence_and_leaves_no_slot_behind():
    set_limit("timeout", 1)
    with (
        storage_slot("timeout", 1, LOGGER),
        pytest.raises(InputError, match="no 1 of 1 slot of timeout came free within"),
        storage_slot("timeout", 1, LOGGER, timeout_s=1),
    ):
        pytest.fail("two at once")
    assert in_use("timeout") == 0


def test_a_limit_that_is_switched_off_protects_nothing_and_says_so(caplog):
    from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate

    set_limit("off", 1)
    with get_client(sync_client=True) as client:
        client.update_global_concurrency_limit("off", GlobalConcurrencyLimitUpdate(active=False))
    with storage_slot("off", 1, LOGGER) as waited_s:
        assert waited_s == 0.0
    assert "The concurrency limit of off is switched off: nothing protects the storage" in caplog.text


def test_the_weight_of_a_class_is_looked_up_where_none_is_given():
    set_limit("weighted", 10)
    Variable.set("cachewatch-weights-weighted", {"slots": 10, "weights": {"big": 7, "small": 2}}, overwrite=True)
    with storage_slot("weighted", None, LOGGER, workload="small"):
        assert in_use("weighted") == 2
    with storage_slot("weighted", None, LOGGER):
        assert in_use("weighted") == 7
