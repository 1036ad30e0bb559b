"""`cachewatch store audit` with real generators under guard."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

SCRIPT = """
import os, pathlib, sys
print("a line of the generator")
where = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["WHERE"])
for n in range(5):
    (where / f"{n}.bin").write_text(os.environ.get("TEXT", "weights"))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def store(tmp_path):
    script = tmp_path / "gen.py"
    script.write_text(SCRIPT)
    root = tmp_path / "store"
    root.mkdir()
    policy = PublishPolicy(store=root)
    argv = [sys.executable, str(script), "{cache_dir}"]
    with CacheStore(root).begin("c", BuildRecipe.of(argv, policy)) as build:
        subprocess.run([*argv[:2], build.path], check=True, stdout=subprocess.DEVNULL)
        build.publish(policy, findings=build.check(policy))
    CacheStore(root).activate("c")
    return root


def audit(root, *words):
    argv = [sys.executable, "-m", "prefect_cachewatch.cli.main", "store", "audit", str(root), "c", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_the_manifests_own_command_is_run_again_and_the_result_alone_is_on_standard_output(store):
    done = audit(store, "--scratch", os.path.relpath(store))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal: the build ") and done.stdout.count("\n") == 1
    assert "a line of the generator" in done.stderr
    assert sorted(os.listdir(store)) == ["c"]


def test_a_difference_is_exit_1_and_a_doubtful_build(store):
    done = audit(store, "--json", "--env", "TEXT=others")
    assert done.returncode == 1, done.stderr
    body = json.loads(done.stdout)
    assert (body["verdict"], len(body["different"])) == ("different", 5)
    [build] = CacheStore(store).list_builds("c")
    assert build.status == "doubtful"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "CODE=1"], "could not be audited"),
        (["--", "true"], "nothing tells the generator where to write"),
        (["--scratch", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--build", "20260101T000000000Z-00000000"], "there is no build"),
        (["--", "/nowhere/gen", "{cache_dir}"], "/nowhere/gen"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence_and_no_verdict(store, words, said):
    done = audit(store, *words)
    assert done.returncode > 1 and said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [build.status for build in CacheStore(store).list_builds("c")] == [None]
    assert sorted(os.listdir(store)) == ["c"]


def test_a_variable_may_say_where_to_write_and_an_audit_that_was_killed_is_named(store):
    script = Path(store.parent, "gen.py")
    (store / ".cachewatch-audit-old").mkdir()
    done = audit(store, "--cache-dir-env", "WHERE", "--", sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert ".cachewatch-audit-old is of an audit that runs, or was killed" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_the_command_of_another_users_manifest_is_shown_and_not_run(store, tmp_path):
    [manifest] = store.glob("c/builds/*/.cachewatch/manifest.json")
    os.chown(manifest, 65534, 65534)
    done = audit(store)
    assert (done.returncode, done.stdout) == (125, "")
    assert "(uid 65534), and its command is not run with your rights" in done.stderr
    assert f"give it after --: {sys.executable} {tmp_path}/gen.py" in done.stderr and "a line of" not in done.stderr
    assert audit(store, "--", sys.executable, str(tmp_path / "gen.py"), "{cache_dir}").returncode == 0
