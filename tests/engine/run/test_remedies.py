"""What follows an attempt, by its cause: the table, the decision and the changes, as values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.postmortem.crash_table import CRASH_CATEGORIES
from prefect_cachewatch.postmortem.diagnosis import CATEGORIES
from prefect_cachewatch.run.remedies import (
    KERNEL_CACHES,
    REMEDIES,
    Means,
    Step,
    check_causes,
    choose_steps,
    find_remedy,
)
from prefect_cachewatch.run.retry import RetryDecision, decide_retry, describe_next, last_traceback
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.learned import LearnedWindows
from prefect_cachewatch.watching.sections import Diagnosis

PAGE = (Path(__file__).parents[3] / "docs" / "retries.md").read_text()
PAUSES = {None: "", 0: "none"}
THRICE = RetryPolicy(attempts=3, backoff_s=30, jitter=0)
TRACE = 'Traceback (most recent call last):\n  File "/a/b.py", line 7, in f\n    g(x)\nValueError: '


def ended(cause: str | None = None, confidence: str = "high", present: int = 0, **more: Any) -> Outcome:
    diagnosis = Diagnosis(cause, "it is so", (), "", confidence) if cause is not None else None
    growth = Growth(present, present, present, present, present, 1)
    given: dict[str, Any] = {
        "name": "failed", "kind": None, "message": "", "exit_code": 1, "signal": None, "started_at": 0.0, "duration_s": 1.0,
        "growth": growth, "diagnosis": diagnosis, "learned": LearnedWindows(),
    }  # fmt: skip
    fields = Outcome.__dataclass_fields__
    empty = {name: () for name in fields if name not in given and name not in more}
    return Outcome(**{**empty, **given, **more})


def decide(*outcomes: Outcome, policy: RetryPolicy = THRICE, tracebacks: tuple[str, ...] = ()) -> RetryDecision:
    return decide_retry(policy, outcomes, 0, 4096, tracebacks)


def test_every_category_has_a_remedy_and_no_other() -> None:
    assert list(REMEDIES) == list(dict.fromkeys((*CATEGORIES, *CRASH_CATEGORIES)))


def test_the_page_has_the_same_table() -> None:
    rows = [
        f"| `{name}` | {'yes' if one.again else 'no'} | {PAUSES.get(one.pause_s, f'{one.pause_s} s')} | "
        f"{', '.join(f'`{change}`' for change in one.change)} | {one.why} | {'yes' if one.outside else ''} |"
        for name, one in REMEDIES.items()
    ]
    assert [line for line in PAGE.splitlines() if re.match(r"\| `\w+` \| (yes|no) \|", line)] == rows


@pytest.mark.parametrize(
    "cause",
    ["disk_full", "quota_exceeded", "missing_module", "waiting_for_input", "bad_argument", "permission_denied",
     "wrong_architecture", "access_denied_hub"],
)  # fmt: skip
def test_where_nothing_can_have_changed_there_is_no_further_attempt(cause: str) -> None:
    decision = decide(ended(cause, present=10_000))
    assert (decision.again, decision.reason, decision.category) == (False, REMEDIES[cause].why, cause)
    # A guess does not keep it from being tried again.
    assert decide(ended(cause, "low", present=10_000)).again


def test_the_user_has_the_last_word() -> None:
    policy = RetryPolicy(attempts=3, by_cause={"disk_full": {"again": True, "pause_s": "1m", "change": ["reset"]}})
    decision = decide(ended("disk_full"), policy=policy)
    assert (decision.again, decision.pause_s, decision.change) == (True, 60.0, ("reset",))
    never = RetryPolicy(attempts=3, by_cause={"download_error": {"again": False}})
    assert decide(ended("download_error"), policy=never).reason == "retry.by_cause.download_error says so"
    # What is left out stays as in the table.
    slow = RetryPolicy(by_cause={"stale_lock": {"pause_s": 5}})
    assert find_remedy(Diagnosis("stale_lock", "s"), slow.by_cause)[1].change == ("unlock",)
    # Exit codes that are named are tried again whatever the cause; stalls and codes that are not are not.
    assert decide(ended("missing_module", exit_code=3), policy=RetryPolicy(retry_exit_codes=[3])).again
    assert not decide(ended("unknown", exit_code=4), policy=RetryPolicy(retry_exit_codes=[3])).again
    stalled = ended("stale_lock", name="stalled", exit_code=None)
    assert not decide(stalled, policy=RetryPolicy(retry_stalls=False)).again
    kept = RetryPolicy(retry_stalls=False, by_cause={"stale_lock": {"again": True}})
    assert decide(stalled, policy=kept).again


def test_a_cause_that_is_none_names_the_nearest() -> None:
    check_causes(RetryPolicy(by_cause={"disk_full": {}}))
    with pytest.raises(InputError, match=r"retry\.by_cause: disk_ful is no cause: did you mean disk_full\?"):
        check_causes(RetryPolicy(by_cause={"disk_ful": {}}))


def test_the_same_traceback_twice_without_growth_ends_the_attempts() -> None:
    first, second = ended("python_error", present=10_000), ended("python_error", present=10_000)
    same = (last_traceback(TRACE + "layer 3 at 0x7f"), last_traceback("more\n" + TRACE + "layer 4 at 0x9e\nend\n"))
    assert same[0] == same[1] != ""
    assert decide(first, second, tracebacks=same).reason == (
        "it failed with the same traceback as before, and the cache did not grow"
    )
    assert decide(first, second, tracebacks=("", "")).again
    assert decide(first, second, tracebacks=(same[0], same[0].replace("7", "8"))).again
    # A cache that grew has come further; and what fails outside fails at the same place.
    assert decide(first, ended("python_error", present=20_000), tracebacks=same).again
    net = (ended("download_error", present=10_000), ended("download_error", present=10_000))
    assert decide(*net, tracebacks=same).again


def test_a_chained_traceback_is_known_by_its_last_part() -> None:
    chained = (
        TRACE + "a\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE.replace("7", "9")
    )
    assert last_traceback(chained + "b") == '  File "/a/b.py", line 9\nValueError'
    assert last_traceback("Traceback (most recent call last):\n  File") == ""


MEANS = Means({"TT_METAL_CACHE": "/k", "HF_HUB_DISABLE_XET": "0"}, ["/c"], before_retry=["tt-smi", "-r"])


def test_changes_that_cannot_be_made_are_left_out() -> None:
    wanted = ("reset", "kernel_cache", "no_xet", "unlock", "clean")
    assert [step.change for step in choose_steps(wanted, MEANS)] == ["kernel_cache", "no_xet", "reset"]
    none = Means({"HF_HUB_DISABLE_XET": "true"}, ["/c"], in_container=True)
    assert choose_steps(wanted, none) == ()
    all_of_them = Means({}, ["/c"], stale_locks=["/c/a.lock"], can_clean=True)
    assert choose_steps(("clean", "unlock"), all_of_them) == (
        Step("unlock", "without the stale lock /c/a.lock", ("/c/a.lock",)),
        Step("clean", "without the files of this attempt"),
    )


@pytest.mark.parametrize(
    ("directory", "renewed"),
    [("/c", False), ("/c/", False), ("/c/kernels", False), ("/", False), ("/c-kernels", False), ("/c-other", True)],
)
def test_a_variable_that_names_what_is_watched_keeps_its_value(directory: str, renewed: bool) -> None:
    (step,) = choose_steps(("kernel_cache",), Means({"TRITON_CACHE_DIR": directory}, ["/c", "/c-kernels"]))
    assert ("TRITON_CACHE_DIR" in step.names) == renewed
    assert set(KERNEL_CACHES) - {"TRITON_CACHE_DIR"} <= set(step.names)


@pytest.mark.parametrize(
    ("name", "watched"),
    [
        ("TRITON_CACHE_DIR", "/home/me/.triton"),
        ("TT_METAL_CACHE", "/home/me/.cache/tt-metal-cache"),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_me"),
    ],
)
def test_nor_does_one_that_is_not_set_where_its_usual_directory_is_watched(name: str, watched: str) -> None:
    (step,) = choose_steps(("kernel_cache",), Means({"HOME": "/home/me", "USER": "me"}, [watched]))
    assert set(step.names) == set(KERNEL_CACHES) - {name}


def test_a_hang_of_xet_turns_it_off_whatever_the_category() -> None:
    found = Diagnosis("deadlocked", "pid 7 (hf) waits", ("python: xet_get (huggingface_hub/file_download.py:639)",))
    remedy = find_remedy(found, {})[1]
    assert (remedy.change, remedy.why) == (("reset", "no_xet"), "the download by xet failed")
    assert "no_xet" not in find_remedy(Diagnosis("deadlocked", "exetera"), {})[1].change


def test_the_sentence_says_pause_changes_and_reason() -> None:
    decision = RetryDecision(True, "attempt 1 of 3 ended stalled", "waiting_for_network", ("no_xet",))
    steps = choose_steps(("no_xet", "reset"), MEANS)
    told = describe_next(decision, THRICE, 1, "its peer may answer", steps, 0.5)
    assert told.sentence == "again after 30 s, with HF_HUB_DISABLE_XET=1, after tt-smi -r, because its peer may answer"
    assert (told.pause_s, told.change) == (30.0, ("no_xet", "reset"))
    at_once = describe_next(RetryDecision(True, "", "stale_lock", (), 0), THRICE, 1, "it is so", (), 0.5)
    assert at_once.sentence == "again at once, because it is so"
    no = describe_next(RetryDecision(False, "the disk is as full as before", "disk_full"), THRICE, 1, "", (), 0.5)
    assert (no.again, no.sentence, no.pause_s) == (False, "no further attempt: the disk is as full as before", None)
    extra = describe_next(RetryDecision(True, "the window was learned", extra=True), THRICE, 0, "", (), 0.5)
    assert (extra.again, extra.sentence, extra.pause_s) == (True, "again at once, because the window was learned", 0.0)
