"""What follows a failed run, as values; and the files of automations, as they are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from prefect_cachewatch.cli.automations import (
    for_deployments,
    read_automations,
    shipped_automations,
)
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.followup import PastEnd, decide_follow_up

FACTS = "Tensor cache generation stalled: no disk write activity detected for 5 minutes in /c."
FULL = f"llama stalled: the disk is full. No growth for 5 minutes. {FACTS}"
STALL, DONE = PastEnd("Stalled", FULL, category="disk_full", told="the disk is full"), PastEnd("Completed")


def test_the_first_stall_is_run_again_once_where_that_was_asked_for():
    decision = decide_follow_up([STALL, DONE, STALL], "once")
    assert (decision.run_again, decision.failures_in_a_row) == (True, 1)
    assert decide_follow_up([STALL], "once").run_again
    assert not decide_follow_up([STALL, DONE], "never").run_again


def test_the_second_stall_in_a_row_needs_a_person_and_says_what_they_share():
    decision = decide_follow_up([STALL, STALL, DONE], "once")
    assert (decision.run_again, decision.failures_in_a_row) == (False, 2)
    assert decision.sentence == (
        "It stalled 2 times in a row with the same cause (the disk is full): it is not run again, a person must look."
    )
    other = PastEnd("Stalled", category="stale_lock", told="a lock")
    assert "same cause" not in decide_follow_up([STALL, other], "once").sentence
    assert "same cause" not in decide_follow_up([PastEnd("Stalled"), PastEnd("Stalled")], "once").sentence
    assert "same cause" not in decide_follow_up([STALL, PastEnd("Stalled")], "once").sentence, "one is not known"
    waits = [PastEnd("Stalled", category="waiting_for_lock", told=f"pid {pid} waits") for pid in (7, 8)]
    assert "with the same cause (waiting_for_lock)" in decide_follow_up(waits, "once").sentence
    assert "same cause" not in decide_follow_up([PastEnd("Stalled", category="unknown")] * 2, "once").sentence


def test_where_nothing_can_have_changed_it_is_not_run_again_and_says_why():
    full = PastEnd("GeneratorFailed", category="disk_full", lasting="the disk is as full as before")
    decision = decide_follow_up([full, DONE], "once")
    assert (decision.run_again, decision.failures_in_a_row) == (False, 1)
    assert decision.sentence == (
        "It failed for the first time in a row: it is not run again, because the disk is as full as before."
    )
    assert decide_follow_up([PastEnd("GeneratorFailed", category="disk_full"), DONE], "once").run_again, "by_cause"
    assert decide_follow_up([full, STALL], "once").sentence.startswith("It failed 2 times in a row")


def test_what_was_run_again_is_not_run_a_third_time():
    # Even where a completed run of another deployment of the job came in between.
    assert not decide_follow_up([PastEnd("Stalled", again=True), DONE], "once").run_again


def test_a_part_of_another_run_is_left_to_that():
    decision = decide_follow_up([PastEnd("Stalled", part_of="nightly fleet"), DONE], "once")
    assert not decision.run_again
    assert decision.sentence == "It is a part of nightly fleet, which decides what follows."


def test_the_shipped_automations_are_read_and_ask_for_no_ids():
    assert list(shipped_automations()) == [
        "follow-up", "late", "missed", "notify", "notify-reported", "one-storage", "silent", "zombies",
    ]  # fmt: skip
    names = [one.name for one in for_deployments(read_automations([]))]
    assert names == [
        "cachewatch: follow up on a stall", "cachewatch: a scheduled run is late",
        "cachewatch: generate-cache/nightly-cache did not complete", "cachewatch: tell about a bad end",
        "cachewatch: tell about a stall that was only reported", "cachewatch: stalls on one storage",
        "cachewatch: a run is Running and measures nothing", "cachewatch: crash zombies",
    ]  # fmt: skip


def test_what_watches_a_deployment_is_made_for_each_one():
    (file,) = read_automations(["missed"])
    one, other = for_deployments([file], ["generate-fleet/nightly", "deploy-cache/weekly"], 7 * 86400)
    assert one.name == "cachewatch: generate-fleet/nightly did not complete"
    assert one.body["description"].startswith("generate-fleet/nightly has completed no run")
    assert other.watched == "deploy-cache/weekly" and other.body["trigger"]["within"] == 7 * 86400
    assert file.watched == "generate-cache/nightly-cache" and file.body["trigger"]["within"] == 93600
    (zombies,) = read_automations(["zombies"])
    assert for_deployments([zombies]) == [zombies] and zombies.watched is None
    for given in (["generate-cache/nightly-cache"], []):
        with pytest.raises(InputError, match="--deployment and --within are for missed"):
            for_deployments([zombies], given, None if given else 3600)


GOOD = {"name": "x", "trigger": {"type": "event"}, "actions": [{"type": "do-nothing"}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", ", line 1: expected the node content, but found '<stream end>': correct the YAML"),
        ("[x]", "an automation is a mapping with a name, a trigger and actions"),
        (yaml.safe_dump({**GOOD, "triger": {}}), "'x' has an unknown key 'triger': did you mean trigger?"),
        (yaml.safe_dump([GOOD, GOOD]), "'x' is in "),
    ],
)
def test_a_file_that_is_no_automation_is_one_sentence(tmp_path: Path, text: str, said: str):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_automations([str(path)])
    assert said in caught.value.message and str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_missing_names_the_nearest_one():
    with pytest.raises(InputError, match=r"zombie is no file and none of the shipped .*: did you mean zombies\?"):
        read_automations(["zombie"])


def test_templates_are_copied_and_never_over_what_is_there(tmp_path: Path):
    command = [sys.executable, "-m", "prefect_cachewatch.cli.main", "templates", str(tmp_path / "mine")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    source = Path(__file__).parents[3] / "deployments"
    for path in ("prefect.yaml", "pools/kubernetes.json", "automations/zombies.yaml"):
        assert (tmp_path / "mine" / path).read_bytes() == (source / path).read_bytes()
    assert not list((tmp_path / "mine").rglob("*.py"))
    mine = tmp_path / "mine" / "prefect.yaml"
    mine.write_text("changed")
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 125 and again.stderr.startswith(f"cachewatch: {tmp_path / 'mine'} has ")
    assert len(again.stderr.splitlines()) == 1 and mine.read_text() == "changed"
