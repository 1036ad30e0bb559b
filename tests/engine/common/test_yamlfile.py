"""The one YAML reader: whatever a file holds, the answer is quick and one sentence."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_cachewatch.common.yamlfile import read_yaml
from prefect_cachewatch.errors import InputError

BOMB = (
    "a0: &a0 {"
    + ", ".join(f"k{n}: {n}" for n in range(9))
    + "}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
)
LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
LONG = f"a: &a {'x' * 500_000}\nb: &b [{', '.join(['*a'] * 400)}]\nc: [{', '.join(['*b'] * 400)}]\n"
CHAIN = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 3000))
HOSTILE = {
    "merge keys": (BOMB, "stand for more values than anybody writes"),
    "billion laughs": (LAUGHS, "stand for more values than anybody writes"),
    "long text by aliases": (LONG, "stand for more values than anybody writes"),
    "deep lists": ("[" * 5000, "line 1: nested deeper than 64"),
    "deep by aliases": (CHAIN, "nested deeper than 64"),
    "itself": ("a: &a [*a]\n", "line 1: it refers to itself"),
    "itself by merge": ("a: &a {<<: *a}\n", "line 1: it refers to itself"),
    "no such anchor": ("a: *b\n", "line 1: found undefined alias"),
    "NUL": ("a: b\0c\n", "not text in UTF-8, or has control characters"),
    "no UTF-8": (b"a: \xff\xfe\n", "not text in UTF-8, or has control characters"),
    "written twice": ("a: 1\nb: 2\na: 3\n", "line 3: a is written twice"),
    "a number of a million digits": ("a: " + "1" * 1_000_000, "line 1: a number of 1000000 characters"),
    "a tag": ("a: !!python/object/apply:os.system [id]\n", "line 1: could not determine a constructor"),
    "a list as a key": ("? [a]\n: b\n", "line 1: found unhashable key"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2: but found another document"),
    "half a character": ('a:\n  ["\\ud800"]\n', "line 2: \\ud800 to \\udfff are halves of characters"),
    "no such time": ("a: !!timestamp soon\n", "line 1: soon is no such value"),
    "no such day": ("a: 1\nb: 2020-99-99\n", "line 2: 2020-99-99 is no such value"),
    "an open bracket": ("a: [1\n", "correct the YAML"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_at_once_in_one_sentence(tmp_path, data, says):
    path = tmp_path / "x.yaml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    began_s = time.process_time()
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    assert time.process_time() - began_s < 10
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_a_large_file_is_refused_unread(tmp_path):
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match="larger than 4 MiB"):
        read_yaml(path)
    with pytest.raises(InputError, match="it is no regular file"):
        read_yaml(Path("/dev/zero"))
    with pytest.raises(InputError, match="Is a directory"):
        read_yaml(tmp_path)


def test_what_people_write_with_anchors_and_merges_is_read(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "defaults: &d {stall: {stall_after_s: 300}, retry: {attempts: 2}, env: {A: '1', B: '2'}}\njobs:\n"
        + "".join(f"  - {{<<: *d, name: job-{n}, priority: {n}}}\n" for n in range(500))
    )
    data = read_yaml(path)
    assert len(data["jobs"]) == 500
    assert data["jobs"][7] == {**data["defaults"], "name": "job-7", "priority": 7}
    path.write_text("")
    assert read_yaml(path) is None
    path.write_text("a: 12:30:45\nb: 1_000\nc: 2026-01-01\n")
    assert read_yaml(path)["a"] == 45045


@pytest.mark.parametrize(
    "words", [["plan"], ["fleet", "--check"], ["automations", "apply"]], ids=lambda words: words[0]
)
def test_every_command_that_reads_yaml_refuses_a_bomb(tmp_path, words):
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMB)
    argv = [sys.executable, "-m", "prefect_cachewatch.cli.main", *words, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 125, done.stderr
    assert done.stderr.count("\n") == 1
    assert "stand for more values than anybody writes" in done.stderr
