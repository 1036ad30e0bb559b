"""A whole cache that the generator writes anew, and what looks like it, with real generators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch import CacheJob, StallPolicy, StopPolicy, watch
from support import Ran, assert_none_left, eventually, exec_argv, mostly_apart, new_tag, run_exec, running

# Writes four files of half a MiB, as its last word says.
GENERATES = """
import os, sys, time
cache, how = sys.argv[1], sys.argv[-1]
def write(name, size=1 << 19):
    os.makedirs(os.path.dirname(f"{cache}/{name}"), exist_ok=True)
    with open(f"{cache}/{name}.tmp", "wb") as file:
        file.write(os.urandom(size))
    os.replace(f"{cache}/{name}.tmp", f"{cache}/{name}")
names = [f"layer{number}.bin" for number in range(4)]
for name in names:
    if how == "half" and name == "layer2.bin":
        time.sleep(600)
    if how in ("anew", "half") or (how in ("resume", "index") and not os.path.exists(f"{cache}/{name}")):
        write(name)
        if len(sys.argv) > 3 and sys.argv[2] == name:
            time.sleep(0.3)
            sys.exit(7)
    elif how == "hashed":  # as vLLM does: a directory for each hash of its environment
        write(f"{os.environ.get('VLLM_HOST', 'x')}/{name}")
    elif how == "touch":
        os.utime(f"{cache}/{name}")
if how == "index":
    write("index.json", 1000)
time.sleep(0.3)
"""


class Cache:
    """A cache directory, and runs of a generator into it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path, self.script = tmp_path / "cache", tmp_path / "gen.py"
        self.script.write_text(GENERATES)

    def run(self, how: str, *words: str, options: tuple[str, ...] = (), **more: Any) -> Ran:
        command = [sys.executable, "-I", str(self.script), str(self.path), *words, how]
        ran = run_exec(self.path, "--poll", "0.1s", *options, command=command, **more)
        assert ran.report is not None, ran.stderr
        assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
        return ran

    def missed(self, how: str, *words: str, **more: Any) -> dict[str, Any] | None:
        report = self.run(how, *words, **more).report
        assert report is not None
        found: dict[str, Any] | None = report["cache_missed"]
        assert ("cache_missed" in report["message"]) == (found is not None)
        return found


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_a_cache_that_is_written_anew_is_told_in_the_terminal_and_the_json(cache: Cache) -> None:
    assert cache.missed("anew") is None
    ran = cache.run("anew", options=("--json", "--env", "TT_MODE=2", "--env", "TT_TOKEN=hunter22hunter22"))
    missed = json.loads(ran.stdout.splitlines()[-1])["cache_missed"]
    assert ran.report is not None
    assert ran.report["cache_missed"] == missed
    assert (missed["found_bytes"], missed["written_bytes"], missed["written_files"]) == (1 << 21, 1 << 21, 4)
    assert (missed["how"], missed["known_by"]) == ("rewritten", "last_run")
    assert missed["differs"] == ["TT_MODE was not set and is '2'", "TT_TOKEN was not set and is '***'"]
    assert sorted(missed["files"]) == [str(cache.path / f"layer{number}.bin") for number in range(4)]
    assert ran.last_line.endswith(missed["sentence"])
    assert "hunter22" not in ran.stderr + json.dumps(ran.report)


# Each is a secret by its name, its option, its shape or its place in a URL; and where it was put once more, a path among others.
SECRETS = {
    "by-name": "zz9plural8z", "by-shape": "hf_abcdefabcdefabcdef", "by-option": "correcthorse9", "joined": "batterystaple8",
    "user-info": "pa55wordinurl", "query": "q7uerysecret1",
}  # fmt: skip


def test_no_secret_is_in_the_state_directory_or_in_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("CACHEWATCH_STATE", str(state))
    said = ""
    place = tmp_path / SECRETS["by-name"]
    place.mkdir()
    cache = Cache(place)
    for number in (1, 2):  # in the second run each one is another, so that it differs
        told = {name: f"{value}{number}" for name, value in SECRETS.items()}
        monkeypatch.setenv("TT_API_KEY", SECRETS["by-name"])
        monkeypatch.setenv("HF_TOKEN", told["by-name"])
        monkeypatch.setenv("VLLM_X", told["by-shape"])
        monkeypatch.setenv("VLLM_ENDPOINT", f"https://me:{told['user-info']}@host/v?token={told['query']}&a=b")
        words = ["--token", told["by-option"], f"--password={told['joined']}", told["by-name"]]
        words += [f"s3://me:{told['user-info']}@b/w", f"https://h/w?api_key={told['query']}"]
        monkeypatch.setenv("TT_MODE", f"m{number}")
        ran = cache.run("anew", *words, options=("--env", f"DB_PASSWORD={told['by-name']}", "--json"))
        assert ran.report is not None
        said += ran.stderr + json.dumps(ran.report) + ran.stdout
    assert "cache_missed: " in said and "TT_MODE was 'm1' and is 'm2'" in said, "it has said what differs"
    written = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    (record,) = (state / "caches").iterdir()
    assert b'"HF_TOKEN": "***"' in written[record] and b'"--token", "***"' in written[record]
    for name, secret in SECRETS.items():
        assert secret not in record.read_text(), name
        assert secret not in record.name, name
        # The cache lies below a directory of such a name, by which this test finds it: its path is said in a message of exec.
        assert secret not in json.dumps(json.loads(ran.stdout.splitlines()[-1])["cache_missed"]), name
        if name != "by-name":
            assert secret not in said, name
            assert not [path for path, data in written.items() if secret.encode() in data], name


def test_a_changed_script_is_named(cache: Cache) -> None:
    cache.run("anew")
    cache.script.write_text(GENERATES + "\n")
    missed = cache.missed("anew")
    assert missed is not None
    assert missed["differs"] == [f"{cache.script} was changed"]


def test_a_cache_beside_the_old_one_is_missed_and_the_variable_is_named(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST", "10.0.0.1")
    assert cache.missed("hashed") is None
    monkeypatch.setenv("VLLM_HOST", "10.0.0.2")
    missed = cache.missed("hashed")
    assert missed is not None
    assert (missed["how"], missed["differs"]) == ("beside", ["VLLM_HOST was '10.0.0.1' and is '10.0.0.2'"])


@pytest.mark.campaign
def test_without_a_record_it_is_missed_by_its_sizes(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.run("anew")
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "elsewhere"))
    missed = cache.missed("anew")
    assert missed is not None
    assert (missed["known_by"], missed["differs"], missed["last_run_at"]) == ("sizes", None, None)


@pytest.mark.parametrize("how", mostly_apart(["resume", "index", "touch"], ["touch"]))
def test_a_cache_that_is_used_is_not_missed(cache: Cache, how: str) -> None:
    cache.run("resume")
    assert cache.missed(how) is None
    assert cache.missed(how) is None


@pytest.mark.campaign
def test_a_partial_cache_that_is_resumed_or_begun_again_is_not_missed(cache: Cache) -> None:
    cache.run("anew")
    for how in ("resume", "anew"):
        (cache.path / "layer0.bin").unlink()
        (cache.path / "layer1.bin").unlink()
        assert cache.missed(how) is None


@pytest.mark.campaign
def test_after_a_run_that_failed_while_it_wrote_anew_no_whole_cache_is_said_to_have_been_there(cache: Cache) -> None:
    cache.run("anew")
    for name in ("layer1.bin", "layer3.bin"):
        command = [sys.executable, "-I", str(cache.script), str(cache.path), name, "anew"]
        assert run_exec(cache.path, "--poll", "0.1s", command=command).status == 7
    assert cache.missed("anew") is None
    assert cache.missed("anew") is not None


@pytest.mark.campaign
def test_after_a_run_that_was_killed_while_it_wrote_anew_no_whole_cache_is_said_to_have_been_there(
    cache: Cache,
) -> None:
    cache.run("anew")
    tag, last = new_tag(), cache.path / "layer1.bin"
    before = last.stat().st_ino
    command = [sys.executable, "-I", str(cache.script), str(cache.path), tag, "half"]
    with running(exec_argv(cache.path, "--poll", "0.1s", command=command)) as process:
        assert eventually(lambda: last.stat().st_ino != before)
        process.kill()
    assert_none_left(tag)
    assert eventually(lambda: not list(cache.path.glob("*.tmp")))
    assert cache.missed("anew") is None
    assert cache.missed("anew") is not None


@pytest.mark.campaign
def test_what_a_launcher_sets_for_each_run_differs_in_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("1", "2"):
        for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "VLLM_PORT", "NCCL_COMM_ID", "VLLM_HOST_IP"):
            monkeypatch.setenv(name, run)
        missed = cache.missed("anew")
    assert missed is not None
    assert missed["differs"] == []


@pytest.mark.campaign
def test_another_command_makes_another_cache(cache: Cache) -> None:
    cache.run("anew", "--dtype", "bf16")
    assert cache.missed("anew", "--dtype", "fp16") is None
    assert cache.missed("anew", "--dtype", "fp16") is not None


@pytest.mark.campaign
def test_another_program_in_the_same_directory_makes_another_cache_though_a_part_of_its_key_is_known(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.path))
    monkeypatch.setenv("VLLM_HOST", "a")
    assert cache.missed("hashed", "--dtype", "bf16", "--task", "a") is None
    monkeypatch.setenv("VLLM_HOST", "b")
    assert cache.missed("hashed", "--dtype", "bf16", "--task", "b") is None


@pytest.mark.campaign
def test_of_a_known_generator_the_key_says_whether_it_is_the_same_cache(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "bin/trtllm-build"
    server.parent.mkdir()
    server.write_text(f"#!{sys.executable} -I\n{GENERATES}".replace("sys.argv[1], sys.argv[-1]", "sys.argv[1], 'anew'"))
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(server.parent), prepend=":")

    def run(*words: str) -> dict[str, Any] | None:
        command = ["trtllm-build", str(cache.path), "--checkpoint_dir", "/c", *words]
        report = run_exec(cache.path, "--poll", "0.1s", command=command).report
        assert report is not None
        found: dict[str, Any] | None = report["cache_missed"]
        return found

    assert run("--max_batch_size", "8") is None
    assert run("--max_batch_size", "16") is None
    missed = run("--max_batch_size", "16", "--log_level", "info")
    assert missed is not None
    assert missed["differs"] == ["the command is with '--log_level info'"]


@pytest.mark.campaign
def test_a_state_directory_that_cannot_be_written_changes_nothing(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "file/state"))
    cache.run("anew")
    missed = cache.missed("anew")
    assert missed is not None
    assert missed["differs"] is None


def test_the_function_tells_it_too(cache: Cache) -> None:
    job = CacheJob(
        name="m", cache_dirs=[cache.path], command=[sys.executable, str(cache.script), str(cache.path), "anew"]
    )
    policy = StallPolicy(poll_s=0.1)
    assert watch(job, policy, StopPolicy()).cache_missed is None
    missed = watch(job, policy, StopPolicy()).cache_missed
    assert missed is not None
    assert missed.differs == ()
