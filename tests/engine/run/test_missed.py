"""When a whole cache counts as not used, and what is said of it: rules over figures, and the records between runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from prefect_cachewatch.measure.growth import Rewriting
from prefect_cachewatch.run import missed as missed_module
from prefect_cachewatch.run.missed import (
    LEAST_BYTES,
    RunFacts,
    exchange_facts,
    judge,
    note_begun,
    note_ended,
    note_unfinished,
)

GIB = 1 << 30
LAST = RunFacts(
    "2026-01-02T03:04:05.000+00:00", ["/c"], GIB, 100, ["gen", "--port", "1"], ["dtype=bf16"], {"VLLM_HOST": "a"}, {"vllm": "1"}
)  # fmt: skip
NOTHING = Rewriting(100, 100, GIB, 100, GIB)
ANEW = NOTHING._replace(
    rewritten_files=100, rewritten_bytes=GIB, same_bytes=GIB, largest=[("/c/a.bin", 9), ("/c/b.bin", 8)]
)
BESIDE = NOTHING._replace(present_bytes=2 * GIB, new_files=101, new_bytes=GIB + 5, largest=[("/c/new/a.bin", 9)])
GONE = NOTHING._replace(new_files=100, new_bytes=GIB)  # under other names, in place of the old ones


@pytest.mark.parametrize(("found", "how"), [(ANEW, "rewritten"), (BESIDE, "beside"), (GONE, "beside")])
def test_a_whole_cache_that_was_written_anew_is_missed(found: Rewriting, how: str) -> None:
    missed = judge(found, LAST, LAST)
    assert missed is not None
    assert (missed.how, missed.known_by, missed.differs, missed.found_bytes) == (how, "last_run", (), GIB)
    assert missed.written_bytes == (GIB if how == "rewritten" else found.new_bytes)
    assert missed.sentence.startswith(
        "cache_missed: a whole cache was there (1.00 GiB in 100 files) and was not used: "
    )


def test_a_cache_of_one_file_is_told_as_one() -> None:
    missed = judge(ANEW._replace(start_files=1), None, LAST)
    assert (
        missed is not None
        and "what looked like a whole cache was there (1.00 GiB in 1 file) and was not used: 1.00 GiB was"
        in missed.sentence
    )


@pytest.mark.parametrize(
    ("found", "before", "why"),
    [
        (NOTHING, LAST, "used"),
        (NOTHING._replace(rewritten_files=60, rewritten_bytes=GIB // 3), LAST, "an index is written in each run"),
        (NOTHING._replace(present_bytes=2 * GIB, new_bytes=GIB // 3), LAST, "it grows by a part"),
        (BESIDE._replace(new_bytes=3 * GIB), LAST, "much more than before is another cache"),
        (ANEW, replace(LAST, bytes_present=2 * GIB), "only half of it was there: it is begun again, or resumed"),
        (ANEW, replace(LAST, identity=["dtype=fp16"]), "another key"),
        (BESIDE, replace(LAST, identity=["dtype=fp16"]), "another key"),
        (BESIDE, None, "another model's, as far as is known"),
        (ANEW._replace(present_bytes=2 * GIB), None, "it grew: what was there was a part"),
        (
            ANEW._replace(present_bytes=GIB + GIB // 19),
            None,
            "95 of its 100 files were there: it was cut, and begun again",
        ),
        (ANEW._replace(same_bytes=GIB // 3), None, "the sizes differ: what was there was cut"),
        (BESIDE, replace(LAST, identity=None, env=None), "a manifest says nothing of what else is written there"),
        (ANEW._replace(start_bytes=LEAST_BYTES - 1), replace(LAST, bytes_present=9), "so small a file is an index"),
    ],
)
def test_a_cache_that_was_used_or_was_not_whole_or_is_another_one_is_not_missed(
    found: Rewriting, before: RunFacts | None, why: str
) -> None:
    assert judge(found, before, LAST) is None, why


def test_what_differs_is_named() -> None:
    now = replace(
        LAST,
        command=["gen", "--port", "2"],
        env={"VLLM_HOST": "b", "TT_X": "1"},
        versions={"vllm": "2"},
        programs={"/gen.py": "2 2"},
    )
    missed = judge(ANEW, replace(LAST, programs={"/gen.py": "1 1"}), now)
    assert missed is not None
    assert missed.differs == (
        "the command is without '1' and with '2'",
        "TT_X was not set and is '1'",
        "VLLM_HOST was 'a' and is 'b'",
        "the version of vllm was '1' and is '2'",
        "/gen.py was changed",
    )
    assert missed.sentence.endswith(
        f"What differs from the last run (ended {LAST.ended_at}): {'; '.join(missed.differs)}."
    )
    assert "(a.bin, b.bin and 98 more)" in missed.sentence


def test_without_a_record_what_differs_is_not_known_and_by_a_manifest_the_command_is() -> None:
    unknown = judge(ANEW, None, LAST)
    assert unknown is not None
    assert (unknown.known_by, unknown.differs) == ("sizes", None)
    assert unknown.sentence.endswith("What differs from the last run is not known: there is no record of it.")
    known = judge(ANEW, replace(LAST, identity=None, env=None, command=["build"]), replace(LAST, versions={}))
    assert known is not None
    assert (known.known_by, known.differs) == (
        "manifest",
        ("the command is without 'build' and with 'gen --port 1'", "the version of vllm was '1' and is not set"),
    )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "caches"


def test_a_record_is_read_by_the_next_run_and_no_other_user_reads_it(records: Path, tmp_path: Path) -> None:
    (tmp_path / "gen.py").write_text("1")
    before, first = exchange_facts(LAST, ["gen.py"], str(tmp_path))
    assert before is None
    assert list(first.programs) == [str(tmp_path / "gen.py")]
    (record,) = records.iterdir()
    assert record.stat().st_mode & 0o77 == 0
    again, _ = exchange_facts(replace(LAST, ended_at="later"), [], "/")
    assert again == first
    assert exchange_facts(replace(LAST, cache_dirs=["/d"]), [], "/")[0] is None


_WRONG: list[dict[str, object]] = [
    {"bytes_present": "x"}, {"env": "x"}, {"env": [1]}, {"env": {"A": 1}}, {"programs": [1]}, {"versions": 3},
    {"command": [1]}, {"identity": "x"}, {"ended_at": 1},
]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a": 1}', *(json.dumps({**asdict(LAST), **wrong}) for wrong in _WRONG)]
)
def test_a_damaged_record_counts_as_none(records: Path, text: str) -> None:
    exchange_facts(LAST, [], "/")
    (record,) = records.iterdir()
    record.write_text(text)
    assert exchange_facts(LAST, [], "/")[0] is None
    assert exchange_facts(LAST, [], "/")[0] == LAST


def test_a_run_that_was_killed_leaves_no_whole_cache_and_the_next_that_completes_does(records: Path) -> None:
    exchange_facts(LAST, [], "/")
    note_begun(["/c"])
    assert exchange_facts(LAST, [], "/")[0] == LAST
    for ended in (note_ended, note_unfinished):
        note_begun(["/c"])
        ended(["/c"])
        note_ended(["/c"])  # once more is no fault
    assert exchange_facts(LAST, [], "/")[0] != LAST
    note_begun(["/c"])
    note_begun(["/c"])  # the one before was killed
    before, _ = exchange_facts(LAST, [], "/")
    assert before is not None and judge(ANEW, before, LAST) is None
    assert exchange_facts(LAST, [], "/")[0] == LAST
    assert len(list(records.iterdir())) == 1


def test_records_are_bounded_in_number(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_module, "_RECORDS_MAX", 3)
    for number in range(6):
        exchange_facts(replace(LAST, cache_dirs=[f"/c{number}"]), [], "/")
    assert len(list(records.iterdir())) == 3


def test_a_manifest_with_an_endless_size_counts_as_none(records: Path, tmp_path: Path) -> None:
    meta = tmp_path / "c/.cachewatch"
    meta.mkdir(parents=True)
    told = '{"mode": "store", "argv": [], "finished_at": "x", "totals": {"bytes": 1e999, "files": 1}}'
    (meta / "manifest.json").write_text(told)
    assert exchange_facts(replace(LAST, cache_dirs=[str(tmp_path / "c")]), [], "/")[0] is None


def test_the_time_of_the_last_run_is_escaped() -> None:
    missed = judge(ANEW, replace(LAST, identity=None, ended_at="\x1b[2J"), LAST)
    assert missed is not None and "(ended \\x1b[2J)" in missed.sentence
