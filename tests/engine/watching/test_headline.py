"""The sentence that begins a message: job, verdict, cause, for how long; and what is read back from it."""

from __future__ import annotations

import pytest

from prefect_cachewatch.watching.headline import (
    how_it_ended,
    how_long,
    make_headline,
    named_cause,
    put_first,
    split_message,
)
from prefect_cachewatch.watching.sections import Diagnosis

LOCK = Diagnosis("waiting_for_lock", "pid 7 (python3) waits for a lock on /c/.build.lock, held by pid 9 (convert.py)")
FACTS = "Tensor cache generation stalled: no disk write activity detected for 5 minutes in /c (1.5 KiB in 1 file)."


@pytest.mark.parametrize(
    ("diagnosis", "said", "cause"),
    [
        (LOCK, f"llama stalled: {LOCK.summary}. No growth for 6 minutes.", LOCK.summary),
        (
            Diagnosis("deadlocked", "its threads wait for one another: a deadlock", confidence="medium"),
            "llama stalled, probably: its threads wait for one another: a deadlock. No growth for 6 minutes.",
            "its threads wait for one another: a deadlock",
        ),
        (
            Diagnosis("unknown", "pid 7 (gen) sleeps; the cause is not known", confidence="low"),
            "llama stalled: pid 7 (gen) sleeps; the cause is not known. No growth for 6 minutes.",
            "",
        ),
        (None, "llama stalled: no growth for 6 minutes.", ""),
    ],
)
def test_the_cause_stands_before_the_numbers_and_is_read_back(diagnosis, said, cause):
    told = make_headline("llama", "stalled", diagnosis, how_long("no_growth", 360.4))
    assert told == said
    message = put_first(told, FACTS)
    assert split_message(message) == (said, FACTS)
    assert named_cause(message) == cause


@pytest.mark.parametrize("name", ["a. b", "x failed: y", "Tensor cache generation"])
def test_a_job_may_have_any_name(name):
    message = put_first(make_headline(name, "stalled", LOCK, how_long("no_growth", 360.4)), FACTS)
    assert split_message(message)[1] == FACTS
    assert named_cause(message).endswith(LOCK.summary)


@pytest.mark.parametrize(
    "message", ["", FACTS, "no growth for 5 min", "Tensor cache generation completed in 5 s: 1 B."]
)
def test_a_message_without_a_headline_names_no_cause_and_stays_whole(message):
    assert split_message(message) == (message, "")
    assert named_cause(message) == ""


def test_a_failure_begins_with_the_generators_own_reason():
    last = Diagnosis("generator_failed", "it ended", ("log: layer 7", "log: no such layer"), confidence="medium")
    said = make_headline("llama", "failed", last, how_it_ended(1, None))
    assert said == "llama failed: no such layer (its last line). Exit code 1."
    memory = Diagnosis("host_out_of_memory", "memory ran out: MemoryError")
    said = make_headline("llama", "failed", memory, how_it_ended(None, "SIGKILL"))
    assert said == "llama failed: memory ran out: MemoryError. Killed by SIGKILL."


def test_the_length_is_that_of_the_kind():
    assert how_long("filesystem_unresponsive", 72.4) == "No answer for 72 s"
    assert how_long("no_growth", 1.44) == "No growth for 1.4 s"
    assert make_headline("llama", "deadline_exceeded", LOCK, how_long(None, 7200)).endswith(". It ran for 2 h.")
