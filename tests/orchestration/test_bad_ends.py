"""Each bad end of each flow reaches the notification's trigger once, and its message says cause, next step and link."""

from __future__ import annotations

import ast
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.server.events.actions import SendNotification
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.server.utilities.user_templates import render_user_template_sync

from prefect_cachewatch.cli.automation_files import read_automations
from prefect_cachewatch.run.bad_ends import BAD_ENDS, GENERATION_FLOW, NEXT_STEPS, BadEnd
from prefect_cachewatch.watching.outcomes import ENDINGS

ROOT = Path(__file__).resolve().parents[2]
NOTIFY = read_automations(["notify"])
FLOWS = {
    "generation.py": "generate-cache",
    "deployment.py": "deploy-cache",
    "flow.py": "generate-fleet",
    "follow_up.py": "follow-up-stall",
    "capacity.py": "plan-capacity",
}
FACTS = "Tensor cache generation stalled: no disk write activity detected for 6 minutes in /c (1 GiB in 4 files)."
STALL = f"llama-3-70b stalled: pid 17187 (python3) waits for the lock .build.lock held by pid 17045. No growth for 6 minutes. {FACTS}"


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


@pytest.mark.parametrize("end", BAD_ENDS, ids=lambda end: f"{end.flow}-{end.state}")
def test_a_bad_end_reaches_exactly_one_automation_and_has_a_next_step(end: BadEnd) -> None:
    assert len(reached(event_of(end.flow, end.state, end.type))) == 1
    assert NEXT_STEPS[end.state]


@pytest.mark.parametrize("flow", sorted({end.flow for end in BAD_ENDS}))
def test_a_good_end_and_a_run_under_way_reach_nobody(flow: str) -> None:
    good = [ending.state for ending in ENDINGS if not ending.failure and ending.state not in ("Cancelled", "Detached")]
    for state in (*good, "Ready", "Completed"):
        assert reached(event_of(flow, state, "COMPLETED")) == []
    for state, kind in (("Cancelled", "CANCELLED"), ("AwaitingRetry", "SCHEDULED"), ("Running", "RUNNING")):
        assert reached(event_of(flow, state, kind)) == []


def test_the_list_has_every_state_of_type_failed_that_the_flows_name() -> None:
    known = {(end.flow, end.state) for end in BAD_ENDS}
    for path in [*(ROOT / "flows").glob("*.py"), *(ROOT / "flows" / "fleet").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Failed", "Crashed"):
                names = [word.value for word in node.keywords if word.arg == "name"]
                for name in names:
                    if isinstance(name, ast.Constant):
                        assert (FLOWS[path.name], name.value) in known, (path.name, name.value)
    for ending in ENDINGS:
        if ending.failure:
            assert ("generate-cache", ending.state) in known
            assert ("deploy-cache", ending.state) in known
    every_flow = {
        GENERATION_FLOW if isinstance(name := decorator.keywords[0].value, ast.Name) else ast.literal_eval(name)
        for path in (ROOT / "flows").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "flow"
    }
    assert every_flow == {end.flow for end in BAD_ENDS}, "a new flow has bad ends too"


def test_only_a_generation_waits_for_whoever_counts_it() -> None:
    alone = [one for one in NOTIFY if trigger(one).posture.value == "Proactive"]
    assert [one.name for one in alone] == ["cachewatch: tell about a generation that failed"]
    waits = trigger(alone[0])
    assert waits.starts_after("prefect.flow-run.Stalled") and not waits.expects("prefect.flow-run.Stalled")
    assert waits.expects("cachewatch.run.counted") and not waits.starts_after("cachewatch.run.counted")


def message_of(event: ReceivedEvent, labels: dict[str, str] | None = None) -> tuple[str, str]:
    (name,) = reached(event)
    (action,) = next(one for one in NOTIFY if one.name == name).body["actions"]
    SendNotification.validate_template(action["subject"], "subject")  # and registers the filters
    run = SimpleNamespace(labels=labels) if labels is not None else None
    context = {"event": event, "flow_run": run}
    body = action["body"].replace("flow_run | ui_url", "'http://ui/run'")
    return render_user_template_sync(action["subject"], context), render_user_template_sync(body, context)


@pytest.mark.parametrize("end", BAD_ENDS, ids=lambda end: f"{end.flow}-{end.state}")
def test_a_message_has_the_cause_within_80_characters_the_next_step_and_the_link(end: BadEnd) -> None:
    subject, body = message_of(event_of(end.flow, end.state, end.type, "the volume is gone"), {})
    assert subject == f"llama-3-70b is {end.state}: the volume is gone"
    assert subject.index("the volume is gone") + len("the volume is gone") <= 80
    lines = body.splitlines()
    assert lines[:2] == [f"Next: {NEXT_STEPS[end.state]}", "http://ui/run"]
    assert lines[3] == f"{end.state}: the volume is gone"


def test_the_message_of_a_stall_begins_with_its_cause_and_has_the_run_s_own_next_step() -> None:
    subject, body = message_of(
        event_of("generate-cache", "Stalled", "FAILED", STALL), {"cachewatch.next": "Stop pid 17045, which holds it."}
    )
    assert subject[
        :80
    ] == "llama-3-70b stalled: pid 17187 (python3) waits for the lock .build.lock held by " and subject.endswith(
        "No growth for 6 minutes"
    )
    assert body.splitlines()[0] == "Next: Stop pid 17045, which holds it."
    assert FACTS in body
    long = f"{'x' * 90} stalled: a lock. No growth for 6 minutes. {FACTS}"
    subject, _ = message_of(event_of("generate-cache", "Stalled", "FAILED", long, name="x" * 90))
    assert "stalled: a lock" in subject[:80]
    for name in ("cachewatch-test", "watch-dog"):
        told, _ = message_of(
            event_of("generate-cache", "Stalled", "FAILED", STALL.replace("llama-3-70b", name), name=name)
        )
        assert told.startswith(f"{name} stalled: pid 17187")


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
