"""Each bad end of each flow reaches the notification's trigger once, and its message says cause, next step and link."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.server.events.actions import SendNotification
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.server.utilities.user_templates import render_user_template_sync

from prefect_cachewatch.cli.automations import read_automations
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.report.report import GrowthReport, Report, StallReport
from prefect_cachewatch.report.sections import make_headline
from prefect_cachewatch.tasks.prefect_api.labels import short_headline
from prefect_cachewatch.watching.outcomes import ENDINGS

NOTIFY = read_automations(["notify"])
FLOWS = ("generate-cache", "deploy-cache", "generate-fleet", "follow-up-stall", "plan-capacity", "check-capacity")
STATES = sorted(
    {ending.state for ending in ENDINGS if ending.failure}
    | {"Refused", "ActivationFailed", "Unhealthy", "PartlyFailed", "FleetFailed", "Failed", "TimedOut"}
)
FACTS = "Tensor cache generation stalled: no disk write activity detected for 6 minutes in /c (1 GiB in 4 files)."
HEADLINE = "llama-3-70b stalled: pid 17187 (python3) waits for the lock .build.lock held by pid 17045. No growth for 6 minutes."
STALL = f"{HEADLINE} {FACTS}"


def trigger(automation: Any) -> EventTrigger:
    return EventTrigger.model_validate(automation.body["trigger"])


def event_of(flow: str, state: str, kind: str, message: str = "it broke", name: str = "llama-3-70b") -> ReceivedEvent:
    return ReceivedEvent(
        occurred=datetime.now(UTC), event=f"prefect.flow-run.{state}", id=uuid4(), received=datetime.now(UTC),
        resource={
            "prefect.resource.id": f"prefect.flow-run.{UUID(int=7)}", "prefect.resource.name": name,
            "prefect.state-name": state, "prefect.state-type": kind, "prefect.state-message": message,
        },
        related=[{
            "prefect.resource.id": f"prefect.flow.{UUID(int=8)}", "prefect.resource.name": flow, "prefect.resource.role": "flow",
        }],
    )  # fmt: skip


def reached(event: ReceivedEvent) -> list[str]:
    return [one.name for one in NOTIFY if trigger(one).covers(event)]


@pytest.mark.parametrize("flow", FLOWS)
def test_a_bad_end_reaches_exactly_one_automation(flow: str) -> None:
    for state in STATES:
        kind = "CRASHED" if state == "Crashed" else "FAILED"
        assert len(reached(event_of(flow, state, kind))) == 1


@pytest.mark.parametrize("flow", FLOWS)
def test_a_good_end_and_a_run_under_way_reach_nobody(flow: str) -> None:
    good = [ending.state for ending in ENDINGS if not ending.failure and ending.state not in ("Cancelled", "Detached")]
    for state in (*good, "Ready", "Completed"):
        assert reached(event_of(flow, state, "COMPLETED")) == []
    for state, kind in (("Cancelled", "CANCELLED"), ("AwaitingRetry", "SCHEDULED"), ("Running", "RUNNING")):
        assert reached(event_of(flow, state, kind)) == []


def message_of(event: ReceivedEvent, labels: dict[str, str] | None = None) -> tuple[str, str]:
    (name,) = reached(event)
    (action,) = next(one for one in NOTIFY if one.name == name).body["actions"]
    SendNotification.validate_template(action["subject"], "subject")  # and registers the filters
    run = SimpleNamespace(labels=labels) if labels is not None else None
    context = {"event": event, "flow_run": run}
    body = action["body"].replace("flow_run | ui_url", "'http://ui/run'")
    return render_user_template_sync(action["subject"], context), render_user_template_sync(body, context)


@pytest.mark.parametrize("state", STATES)
def test_a_message_has_the_cause_within_80_characters_the_next_step_and_the_link(state: str) -> None:
    kind = "CRASHED" if state == "Crashed" else "FAILED"
    subject, body = message_of(event_of("generate-cache", state, kind, "the volume is gone"), {})
    assert subject == f"llama-3-70b is {state}: the volume is gone"
    assert subject.index("the volume is gone") + len("the volume is gone") <= 80
    lines = body.splitlines()
    assert lines[0].startswith("Next: ") and lines[0] != "Next: Open the run and read the end of its log."
    assert lines[1] == "http://ui/run"
    assert lines[3] == f"{state}: the volume is gone"


def test_the_message_of_a_stall_begins_with_its_headline_and_has_the_run_s_own_next_step() -> None:
    labels = {"cachewatch.next": "Stop pid 17045, which holds it.", "cachewatch.headline": HEADLINE}
    subject, body = message_of(event_of("generate-cache", "Stalled", "FAILED", STALL), labels)
    assert subject == HEADLINE
    assert body.splitlines()[0] == "Next: Stop pid 17045, which holds it."
    assert FACTS in body


@pytest.mark.parametrize("name", ["x", "x" * 90, "a. b stalled: c", "<b>\n"])
def test_a_headline_for_a_subject_names_the_cause_within_80_characters(name: str) -> None:
    cause = Cause("stale_lock", "a lock")
    report = Report(
        "stalled", StallReport(), FACTS, None, 15, name, ["gen"], ["/c"], 1, "2026-11-20T14:00:00+00:00", 60.0,
        GrowthReport(0, 0, 0, 0), headline=make_headline(name, "stalled", cause, "No growth for 6 minutes"),
    )  # fmt: skip
    assert "stalled: a lock" in short_headline(report)[:80]


def test_a_fleet_is_one_message_with_its_failed_jobs_and_their_causes() -> None:
    from prefect_cachewatch.fleet.outcome import fleet_end
    from prefect_cachewatch.fleet.rows import JobRow

    failed = [JobRow(f"job-{n}", "Stalled", "failed", cause=f"cause {n}.") for n in range(3)]
    end = fleet_end("nightly", [JobRow("fine", "Completed", "done"), *failed])
    subject, body = message_of(event_of("generate-fleet", end.state, "FAILED", end.message, name="nightly"), {})
    assert "job-0 is Stalled (cause 0)" in subject
    assert body.splitlines()[3:] == [
        "PartlyFailed: Fleet 'nightly': 1 of 4 caches are there; 3 failed.",
        "- job-0 is Stalled (cause 0)",
        "- job-1 is Stalled (cause 1)",
        "- job-2 is Stalled (cause 2)",
    ]
    many = fleet_end("nightly", [JobRow(f"job-{n:02d}", "Stalled", "failed", cause="c" * 400) for n in range(40)])
    assert many.message.count("; then: ") == 16 and many.message.endswith("; then: 24 more that failed")
