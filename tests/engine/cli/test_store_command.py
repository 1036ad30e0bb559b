"""`cachewatch store` as operators type it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.written import write_safetensors, write_torch

from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe


def cachewatch(*words):
    command = [sys.executable, "-m", "prefect_cachewatch.cli.main", "store", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture
def builds(tmp_path):
    store, policy, made = CacheStore(tmp_path), PublishPolicy(store=tmp_path), []
    for number in range(3):
        with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
            Path(build.path, "a.bin").write_text("x" * (number + 1))
            build.publish(policy, findings=build.check(policy))
        store.activate("c")
        made.append(build)
    return made


def test_list_shows_states_newest_first(tmp_path, builds):
    done = cachewatch("list", tmp_path, "c")
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert rows == [[b.build_id, s] for b, s in zip(builds[::-1], ["active", "published", "published"], strict=True)]
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    listed = json.loads(cachewatch("list", tmp_path, "c", "--json").stdout)
    assert [b["total_bytes"] for b in listed] == [3, 2, 1]


def test_verify_exits_1_for_a_cache_that_is_not_whole(tmp_path, builds):
    done = cachewatch("verify", tmp_path, "c")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "whole: 3 B in 1 file, every digest agrees with the manifest\n"
    Path(builds[-1].path, "a.bin").write_text("abc")
    assert cachewatch("verify", tmp_path, "c", "--quick").returncode == 0
    done = cachewatch("verify", tmp_path, "c")
    assert done.returncode == 1 and "a.bin has other contents than the manifest says" in done.stderr
    body = json.loads(cachewatch("verify", tmp_path, "c", "--json").stdout)
    assert body["whole"] is False and body["problems"] == ["a.bin has other contents than the manifest says"]
    assert cachewatch("verify", tmp_path, "c", "--build", builds[0].build_id).returncode == 0


@pytest.fixture
def publish(tmp_path):
    """Publishes and activates a build of these files."""

    def publish(**files):
        policy = PublishPolicy(store=tmp_path, ignore=["*.log"], on_broken_content="ignore")
        with CacheStore(tmp_path).begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
            for name, data in files.items():
                path = Path(build.path, name.replace("_", "/", 1).replace("_", "."))
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
            build.publish(policy, findings=build.check(policy))
        CacheStore(tmp_path).activate("c")

    return publish


TENSOR = write_safetensors({"t": ("F32", [3], b"x" * 12)})


def test_verify_content_names_what_was_published_broken_and_exits_1(tmp_path, publish):
    publish(a_x_safetensors=TENSOR[:-1], a_z_safetensors=TENSOR, a_run_log=b"")
    done = cachewatch("verify", tmp_path, "c", "--content")
    assert done.returncode == 1
    assert done.stdout == "content: 1 whole, 1 broken, 0 suspicious, 0 unknown\n"
    first, *others = done.stderr.splitlines()
    assert first.startswith("cachewatch: a/x.safetensors is cut off: the tensor 't' should end at byte ")
    assert others == ["cachewatch: broken files agree with the manifest: generate the cache again"]
    [build] = CacheStore(tmp_path).list_builds("c")
    assert build.status == "damaged" and build.why.startswith("a/x.safetensors is cut off")
    body = json.loads(cachewatch("verify", tmp_path, "c", "--content", "--json").stdout)
    assert body["whole"] is False and len(body["problems"]) == 1
    assert [(each["path"], each["verdict"]) for each in body["content"]] == [
        ("a/x.safetensors", "broken"),
        ("a/z.safetensors", "whole"),
    ]


def test_verify_content_warns_of_what_is_suspicious(tmp_path, publish):
    publish(a_x_safetensors=write_torch([b"x"]))
    done = cachewatch("verify", tmp_path, "c", "--quick", "--content")
    assert done.returncode == 0 and "1 suspicious" in done.stdout
    assert done.stderr.startswith("cachewatch: warning: a/x.safetensors is named like safetensors, and is zip")


def test_activate_rollback_and_gc(tmp_path, builds):
    first, second, third = (build.build_id for build in builds)
    assert cachewatch("rollback", tmp_path, "c").stdout.startswith(f"rolled back to {second}")
    assert cachewatch("activate", tmp_path, "c", first).returncode == 0
    assert os.readlink(tmp_path / "c/current") == f"builds/{first}"
    dry = cachewatch("gc", tmp_path, "c", "--keep", "2", "--grace", "0", "--dry-run")
    assert f"{third}  would remove" in dry.stdout and Path(builds[2].path).exists()
    done = cachewatch("gc", tmp_path, "c", "--keep", "2", "--grace", "0s")
    assert done.stdout.splitlines()[-1] == "1 of 3 builds removed, 3 B"
    assert not Path(builds[2].path).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "/nowhere", "c"], "the store /nowhere does not exist"),
        (["list", "{root}", "../c"], "is not a single directory name"),
        (["activate", "{root}", "c", "20260131T235959123Z-0a1b2c3d"], "there is no build"),
        (["gc", "{root}", "c", "--keep", "0"], "--keep"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_125(tmp_path, builds, words, sentence):
    done = cachewatch(*(word.replace("{root}", str(tmp_path)) for word in words))
    assert done.returncode == 125 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("cachewatch: ") and sentence in done.stderr


def test_verify_against_another_build_says_what_differs(tmp_path):
    store, policy, made = CacheStore(tmp_path), PublishPolicy(store=tmp_path), []
    for files in ({"a": "1", "b": "2", "\x1b": "3"}, {"a": "1", "b": "2", "\x1b": "3"}, {"a": "x", "b": "22", "d": ""}):
        with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
            for name, text in files.items():
                Path(build.path, name).write_text(text)
            os.symlink("a" if "d" not in files else "b", f"{build.path}/link")
            build.publish(policy, findings=build.check(policy.model_copy(update={"allow_empty": ["d"]})))
        store.activate("c")
        made.append(build.build_id)
    first, second, third = made
    done = cachewatch("verify", tmp_path, "c", "--build", second, "--against", first)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == f"equal to {first}: every file and link"
    done = cachewatch("verify", tmp_path, "c", "--against", first, "--quick")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "whole: 3 B in 3 files, names and sizes agree with the manifest",
        f"not equal to {first}: 5 differences",
    ]
    assert done.stderr.splitlines() == [
        "cachewatch: \\x1b is missing",
        "cachewatch: a has other contents",
        f"cachewatch: b has 2 bytes, and 1 in {first}",
        f"cachewatch: d is only in {third}",
        "cachewatch: link is a link that is missing or leads elsewhere in one of them",
    ]
    body = json.loads(cachewatch("verify", tmp_path, "c", "--against", first, "--quick", "--json").stdout)
    assert body["whole"] is True and body["against"] == first
    assert [each["kind"] for each in body["differences"]] == ["missing", "digest", "size", "unexpected", "link"]
    wrong = cachewatch("verify", tmp_path, "c", "--against", "20260101T000000000Z-00000000")
    assert wrong.returncode == 125 and "there is no build" in wrong.stderr and wrong.stderr.count("\n") == 1
