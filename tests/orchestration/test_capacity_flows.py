"""The planner's flows on a Prefect server: the limit that is set, and the loop back to it; and the slots of a storage."""

import base64
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

from prefect_cachewatch.capacity import PlanInput, plan
from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.capacity.planning import expected_burst_s
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.capacity import check_capacity, plan_capacity
from prefect_cachewatch.tasks.prefect_api.storage_slots import storage_slot
from prefect_cachewatch.tasks.run_records import store_run_record

pytestmark = [pytest.mark.usefixtures("prefect_harness"), pytest.mark.timeout(180)]

LOGGER = logging.getLogger("tests.capacity")
BURST = 2_000_000_000
CACHES = {"name": "caches", "burst_bytes": BURST, "think_s": 10, "bursts_per_job": 5, "jobs": 20}
LOADS = {"name": "loads", "kind": "inference", "burst_bytes": BURST, "think_s": 1, "bursts_per_job": 5, "jobs": 9}


def measured(name, *workloads, upto=8, rate=200e6, basis="measured", **policy):
    """A plan on a storage measured up to `upto` streams, of which each alone moves half of what all together do."""
    points = [{"n": n, "bytes_per_s": min(n, 2) * rate / 2} for n in (1, 2, 4, 8, 16) if n <= upto]
    storage = {"name": name, "basis": basis, "write": {"points": points}, "read": {"points": points}}
    return PlanInput.model_validate({"storage": storage, "workloads": list(workloads or [CACHES]), "policy": policy})


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
    name = "Dry <b>"
    result = plan_capacity(given=measured(name))
    assert limit_of(name) is None
    said = f"The limit of {name} would change from no limit to {result['limits'][name]}; this is a dry run: apply=True sets it."
    assert result["changes"] == [said]
    page = latest_artifact("cachewatch-plan-dry-b")
    assert "would change from no limit to" in page
    assert "By hand: " in page
    assert "### " not in page
    (picture,) = re.findall(r"\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", page)
    assert base64.b64decode(picture).startswith(b"<svg")


def test_applying_sets_the_limit_and_says_from_what_to_what():
    first = plan_capacity(given=measured("applied"), apply=True)
    assert limit_of("applied") == first["limits"]["applied"] == plan(measured("applied")).answers[0].n
    assert "was changed from no limit to" in first["changes"][0]
    set_limit("applied", 17)
    again = plan_capacity(given=measured("applied"), apply=True)
    assert f"was changed from 17 to {first['limits']['applied']}" in again["changes"][0]
    same = plan_capacity(given=measured("applied"), apply=True)
    assert f"stays at {first['limits']['applied']}" in same["changes"][0]


def test_isolated_classes_get_a_limit_each():
    given = measured("apart", CACHES, LOADS, isolated=True)
    result = plan_capacity(given=given, apply=True)
    assert {name: limit_of(name) for name in result["limits"]} == result["limits"]
    assert set(result["limits"]) == {"apart-caches", "apart-loads"}
    assert limit_of("apart") is None


def test_a_limit_never_goes_beyond_what_was_measured():
    given = measured("beyond", CACHES | {"think_s": 0.1}, upto=1)
    lowered = plan_capacity(given=given, apply=True)
    assert limit_of("beyond") == lowered["limits"]["beyond"] == 1


def test_figures_that_were_not_measured_are_planned_with_but_not_applied():
    given = measured("ceiling", basis="vendor")
    dry = plan_capacity(given=given)
    assert dry["changes"] == ["No limit would be set for ceiling: its figures were not measured: run cachewatch probe."]
    state = plan_capacity(given=given, apply=True, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert "run cachewatch probe" in state.message
    assert limit_of("ceiling") is None


def test_a_storage_where_even_one_job_is_beyond_what_was_measured_is_never_set_to_zero():
    given = measured("slow", CACHES, LOADS | {"name": "always", "jobs": None, "think_s": 0, "running": 12})
    state = plan_capacity(given=given, apply=True, return_state=True)
    assert state.name == "Refused"
    assert "not even one job is within what was measured" in state.message
    assert limit_of("slow") is None


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"given": measured("x"), "plan_file": "/nonexistent/plan.yaml"}, "give either plan_file or a plan here"),
        ({"plan_file": "/nonexistent/plan.yaml"}, "/nonexistent/plan.yaml cannot be read"),
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


def history(storage):
    """Store five runs one after another, as fast as the plan says."""
    length_s = 50 * (10 + expected_burst_s(measured(storage), 1))
    first_s = time.time() - 3600 * 20
    for i in range(5):
        began_s = first_s + i * length_s
        record = {
            "storage": storage, "job": "llama", "started_s": began_s - 30, "slot_wait_s": 30.0,
            "ended_s": began_s + length_s, "bytes_written": 50 * BURST,
        }  # fmt: skip
        generate(storage, record)


def checked(storage):
    (check,) = check_capacity(given=measured(storage), window_s="1d")
    return check


def test_runs_as_fast_as_planned_are_found_ok_by_what_they_stored():
    history("as-planned")
    check = checked("as-planned")
    assert (check["verdict"], check["runs"]) == ("ok", 5)
    assert check["law"]["slot_wait_s"] == pytest.approx(30, abs=0.1)
    page = latest_artifact("cachewatch-check-as-planned")
    assert page.startswith("## as-planned: ok")
    assert "over 5 runs at 1 at once" in page
    assert "data:image/svg+xml;base64," in page


def test_runs_that_stored_nothing_count_by_what_prefect_knows_of_them():
    generate("bare")
    generate("bare", fails=True, return_state=True)
    check = checked("bare")
    assert (check["law"]["runs"], check["verdict"]) == (2, "insufficient data")


def test_artifacts_that_are_no_records_are_passed_over():
    @flow(name="generate-cache")
    def odd(storage):
        for markdown in ("nonsense", "```json\n{]\n```", '{"cachewatch_run_record": 1, "started_s": "x"}'):
            create_markdown_artifact(key="cachewatch-run-odd", markdown=markdown)

    odd("odd")
    assert checked("odd")["law"]["runs"] == 1


def test_without_a_plan_there_is_nothing_to_check():
    state = check_capacity(return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert state.message == "there is no plan to compare with: give plan_files, or a plan here"


@pytest.mark.parametrize(
    ("limit", "weight", "said"),
    [(0, 1, "is 0, so nothing would ever run"), (2, 3, "occupies 3 slots of .* wait for ever")],
)
def test_a_wait_that_could_never_end_is_refused(limit, weight, said):
    name = f"never-{limit}-{weight}"
    set_limit(name, limit)
    with pytest.raises(InputError, match=said), storage_slot(name, weight, LOGGER):
        pytest.fail("ran unprotected")


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
