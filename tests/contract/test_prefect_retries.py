"""Attempts of a run on a real Prefect server: what is tried again, after which pause, on what, and what is not.

All runs are started once, side by side; each test reads what they have left.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.on_prefect import HANGS, WRITES, Runs, artifact, kinds, once, task_states
from tests.prefect_server import Server
from tests.support import assert_none_left, leave_behind

FAILS = WRITES + "sys.exit(3)\n"
RESUMES = (
    "import os, sys\nhave = len(os.listdir(sys.argv[1]))\n"
    "open(os.path.join(sys.argv[1], f'layer{have}.bin'), 'wb').write(bytes(20_000))\nsys.exit(0 if have == 2 else 1)\n"
)
# It fails by itself unless the attempt before was cleaned up.
FROM_SCRATCH = (
    "import os, sys\nnew = os.path.join(sys.argv[1], 'new')\nos.makedirs(new)\n"
    "open(os.path.join(new, 'layer.bin'), 'wb').write(bytes(20_000))\nsys.exit(4)\n"
)
FULL = WRITES + "raise OSError(28, 'No space left on device', os.path.join(sys.argv[1], 'b.bin'))\n"
WAITS_FOR_LOCK = """
import os, sys, time
path = os.path.join(sys.argv[1], ".locks", "model.lock")
while os.path.exists(path):
    print(f"Still waiting to acquire lock on {path}", flush=True)
    time.sleep(0.2)
"""
ONCE_WELL = "import os, sys\nif os.path.exists(sys.argv[2]): sys.exit(4)\nopen(sys.argv[2], 'w').close()\nsys.exit(3)\n"
FREEZES = WRITES + "time.sleep(600)\n"
THRICE = {"attempts": 3, "backoff_s": 0}


def chains_of(runs: Runs) -> list[list[dict[str, Any]]]:
    leave_behind(runs.cache("lock") / ".locks" / "model.lock")
    (runs.cache("clean") / "old").mkdir(parents=True)
    (runs.cache("clean") / "old" / "kept.bin").write_bytes(b"k" * 9000)
    reset = ["sh", "-c", "echo resetting for $CACHEWATCH_CAUSE before attempt $CACHEWATCH_ATTEMPT"]
    broken = ["sh", "-c", "echo no device; exit 7"]
    outputs = {"report": str(runs.folder / "resume.json"), "record": str(runs.folder / "run.jsonl")}
    run = runs.run
    return [
        [run("frozen", FREEZES, last="stalled", stall=HANGS, retry={"attempts": 2, "backoff_s": 0})],
        [run("lock", WAITS_FOR_LOCK, last="stalled", stall={**HANGS, "first_write_within_s": 4}, retry=THRICE)],
        [run("resume", RESUMES, last="completed", retry={"attempts": 3, "backoff_s": 2}, outputs=outputs)],
        [run("clean", FROM_SCRATCH, last="failed", retry={**THRICE, "on_retry": "clean"})],
        [run("full", FULL, last="failed", retry=THRICE)],
        [run("nothing-new", "{}['layer']", last="failed", retry={"attempts": 9, "backoff_s": 0})],
        [run("other-code", FAILS, last="failed", retry={**THRICE, "retry_exit_codes": [5]})],
        [run("no-stalls", FREEZES, last="stalled", stall=HANGS, retry={**THRICE, "retry_stalls": False})],
        [run("reset", FAILS, last="failed", retry={"attempts": 2, "backoff_s": 0, "before_retry": reset})],
        [run("reset-fails", FAILS, last="failed", retry={**THRICE, "before_retry": broken})],
        [run("prefects", ONCE_WELL, runs.folder / "mark", last="failed", flow_retries=1)],
    ]


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Prefect has of each run, and the report of its last attempt, by its key."""

    def make(folder: Path) -> dict[str, Any]:
        server: Server = request.getfixturevalue("server")
        runs = Runs(folder)
        with runs.started(server, chains_of(runs)) as finish:
            looks = finish()
        assert_none_left(str(folder), 60)
        return {"folder": str(folder), **looks}

    found: dict[str, Any] = once(tmp_path_factory, "prefect-retries", make)
    return found


# By run: the name of its state; how many attempts were made; the category and the start of what is said of the next.
TABLE: dict[str, tuple[str, int, str, str]] = {
    "resume": ("Completed", 3, "", ""),
    "clean": ("GeneratorFailed", 3, "generator_failed", "no further attempt: attempt 3 of 3 was the last"),
    "frozen": ("Stalled", 2, "unknown", "no further attempt: attempt 2 of 2 was the last"),
    "full": ("GeneratorFailed", 1, "disk_full", "no further attempt: the disk is as full as before"),
    "lock": ("Stalled", 1, "stale_lock", "no further attempt: the lock that it waited for has no living holder"),
    "nothing-new": ("GeneratorFailed", 2, "python_error", "no further attempt: it failed with the same traceback"),
    "other-code": ("GeneratorFailed", 1, "generator_failed", "no further attempt: "),
    "no-stalls": ("Stalled", 1, "unknown", "no further attempt: "),
    "reset": ("GeneratorFailed", 2, "generator_failed", "no further attempt: attempt 2 of 2 was the last"),
    "reset-fails": ("GeneratorFailed", 1, "generator_failed", "again at once, after sh -c"),
}


@pytest.mark.parametrize("key", TABLE)
def test_each_attempt_is_two_tasks_an_end_and_a_reason_for_what_follows(ran: dict[str, Any], key: str) -> None:
    state, attempts, category, sentence = TABLE[key]
    look = ran[key]
    assert look["state"][1] == state, look["message"]
    numbers = range(1, attempts + 1)
    assert sorted(look["tasks"]) == sorted(f"{task}-{number}" for task in ("generate", "monitor") for number in numbers)
    assert kinds(look).count("started") == attempts
    ends = [event["payload"]["attempt"] for event in look["events"] if "exit_code" in event["payload"]]
    assert ends == [*numbers]
    assert look["report"]["attempt"] == attempts
    following = look["report"]["retry"]
    assert following is None if state == "Completed" else following["category"] == category
    assert following is None or following["sentence"].startswith(sentence), following


def test_an_attempt_resumes_after_its_pause_and_the_states_of_those_before_stay(ran: dict[str, Any]) -> None:
    look = ran["resume"]
    assert (look["result"]["attempts"], look["result"]["files_present"]) == (3, 3)
    assert task_states(look) == {
        **{f"generate-{n}": "GeneratorFailed" for n in (1, 2)},
        **{f"monitor-{n}": "Completed" for n in (1, 2)},
        "generate-3": "Completed",
        "monitor-3": "Completed",
    }
    times = {name: [datetime.fromisoformat(task[at].replace("Z", "+00:00")) for at in ("start_time", "end_time")] for name, task in look["tasks"].items()}  # fmt: skip
    pauses = [(times[f"generate-{n + 1}"][0] - times[f"generate-{n}"][1]).total_seconds() for n in (1, 2)]
    assert min(pauses) >= 1  # half of the pause at least
    said = [message for _, _, message in look["log"] if message.startswith("attempt ")]
    assert [line.partition(" ended ")[0] for line in said] == ["attempt 1 of 3", "attempt 2 of 3"]


def test_the_events_of_all_attempts_are_recorded_in_one_file(ran: dict[str, Any]) -> None:
    events = [json.loads(line) for line in Path(ran["folder"], "run.jsonl").read_text().splitlines()]
    told = [one["event"] for one in events if one["event"] not in ("progress", "suspected", "cleared", "note")]
    attempt = ["attempt_wanted", "started", "gone", "report"]
    assert told == ["ready", *[*attempt, "retry"] * 2, *attempt, "bye"]
    assert [one["n"] for one in events if one["event"] == "started"] == [1, 2, 3]


def test_a_clean_attempt_finds_what_was_there_before_the_run_and_nothing_of_the_last(ran: dict[str, Any]) -> None:
    cache = Path(ran["folder"], "clean", "cache")
    assert "exit code 4" in ran["clean"]["message"]
    assert sorted(str(path.relative_to(cache)) for path in cache.rglob("*.bin")) == ["new/layer.bin", "old/kept.bin"]


def test_two_stalls_leave_one_listing_and_one_page_each(ran: dict[str, Any]) -> None:
    look = ran["frozen"]
    for what in ("listing", "report"):
        keys = {one["key"] for one in look["artifacts"] if f"-{what}" in one["key"]}
        assert keys == {f"cachewatch-frozen-{what}", f"cachewatch-frozen-{what}-02"}
        assert [artifact(look, key)["description"][:14] for key in (what, f"{what}-02")] == [
            "Attempt 1 of 2",
            "Attempt 2 of 2",
        ]
    assert kinds(look) == ["started", "suspected", "stalled"] * 2
    assert artifact(look, "report-02")["data"].startswith("## frozen, attempt 2 of 2: Stalled")
    assert json.loads(artifact(look, "listing-02")["data"])[1]["file"] == "layer.bin"
    bundles = {event["payload"]["bundle"] for event in look["events"] if event["event"].endswith(".stalled")}
    assert len(bundles) == 2 and all(Path(bundle).is_dir() for bundle in bundles)


def test_a_lock_that_nobody_living_holds_is_left_to_a_person(ran: dict[str, Any]) -> None:
    assert Path(ran["folder"], "lock", "cache", ".locks", "model.lock").exists()
    assert ran["lock"]["report"]["stall"]["kind"] == "never_started"
    assert ran["lock"]["labels"]["cachewatch.cause"] == "stale_lock"


def test_a_cause_that_lasts_is_a_label_of_the_run(ran: dict[str, Any]) -> None:
    same = "it failed with the same traceback as before, and the cache did not grow"
    for key, wanted in (("full", ("disk_full", "the disk is as full as before")), ("nothing-new", ("python_error", same))):  # fmt: skip
        labels = ran[key]["labels"]
        assert (labels["cachewatch.cause"], labels["cachewatch.lasting"]) == wanted


def test_the_command_before_an_attempt_is_told_the_cause_and_one_that_fails_ends_the_run(ran: dict[str, Any]) -> None:
    said = [message for _, _, message in ran["reset"]["log"]]
    assert "sh: resetting for generator_failed before attempt 2" in said
    assert any(line.startswith("attempt 1 of 2 ended failed: again at once, after sh -c") for line in said)
    ends = "No further attempt: the command before it, sh -c echo no device; exit 7, ended with exit code 7: no device."
    look = ran["reset-fails"]
    assert look["message"].endswith(ends) and look["report"]["message"] == look["message"]


def test_prefects_own_retries_run_the_flow_again_and_end_in_the_named_state(ran: dict[str, Any]) -> None:
    look = ran["prefects"]
    assert (look["state"], look["run_count"]) == (["FAILED", "GeneratorFailed"], 2)
    between = [name for name in look["states"] if name not in ("Pending", "Running", "Retrying")]
    assert between == ["AwaitingRetry", "GeneratorFailed"]
    assert "exit code 4" in look["message"]
