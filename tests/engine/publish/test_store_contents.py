"""What the files' own formats say, before a build is published and before a retry resumes it."""

import os
import time
from pathlib import Path

import pytest
from tests.written import write_safetensors

from prefect_cachewatch.publish.checks import Finding, refusals, spare_others
from prefect_cachewatch.publish.contents import find_broken
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

TENSOR = write_safetensors({"t": ("F32", [3], b"x" * 12)})
ZEROS = write_safetensors({"t": ("F32", [1 << 19], bytes(4 << 19))})


def begin(root, **fields):
    policy = PublishPolicy(store=root, **fields)
    return CacheStore(root).begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)), policy


def found(root, files, **fields):
    build, policy = begin(root, **fields)
    with build:
        for name, data in files.items():
            Path(build.path, name).write_bytes(data)
        findings = build.check(policy)
        return findings, (None if refusals(findings) else build.publish(policy, findings=findings))


def test_a_file_that_contradicts_its_format_refuses_the_build(tmp_path):
    findings, manifest = found(tmp_path, {"a.safetensors": TENSOR[:-1], "b.safetensors": TENSOR, "c.bin": b"x"})
    assert manifest is None
    [finding] = findings
    assert (finding.category, finding.severity, finding.paths) == ("broken_content", "refuse", ("a.safetensors",))
    assert finding.message.startswith("a.safetensors is cut off: ")


@pytest.mark.parametrize(("setting", "warnings"), [("warn", 1), ("ignore", 0)])
def test_it_is_a_warning_or_nothing_where_the_policy_says_so(tmp_path, setting, warnings):
    _, manifest = found(tmp_path, {"a.safetensors": TENSOR[:-1]}, on_broken_content=setting)
    assert len(manifest.warnings) == warnings


def test_ignored_files_are_not_read_and_a_suspicious_one_is_a_warning(tmp_path):
    files = {"a.safetensors": TENSOR, "b.safetensors": ZEROS, "run.safetensors": b"cut"}
    findings, manifest = found(tmp_path, files, ignore=["run.*"])
    assert [(each.category, each.severity, each.paths) for each in findings] == [
        ("suspicious_content", "warn", ("b.safetensors",))
    ]
    assert "repeats one value" in manifest.warnings[0]


def test_a_broken_file_that_no_run_made_is_a_warning():
    broken = Finding("broken_content", "a is cut off; b is cut off", paths=("a", "b"))
    [ours, theirs] = spare_others([broken], {"a"})
    assert (ours.severity, ours.paths, theirs.severity, theirs.paths) == ("refuse", ("a",), "warn", ("b",))
    assert spare_others([broken], {"a", "b"}) == [broken]


def test_a_retry_removes_what_is_provably_cut_however_long_ago_it_was_written(tmp_path):
    build, policy = begin(tmp_path)
    with build:
        build.note_growth()
        Path(build.path, "cut.safetensors").write_bytes(TENSOR[:-1])
        Path(build.path, "whole.safetensors").write_bytes(TENSOR)
        time.sleep(0.05)
        # As the watch does when it sees growth: what is older than the window counts as whole from now on.
        build.note_growth()
        Path(build.path, "last.bin").write_bytes(b"x")
        broken = find_broken(build.path, policy.ignore)
        gone = build.prepare_resume(policy, window_s=0.0, broken=broken)
    assert {suspect.path: suspect.reason for suspect in gone}["cut.safetensors"] == "broken"
    assert os.path.exists(f"{build.path}/whole.safetensors") and not os.path.exists(f"{build.path}/cut.safetensors")
