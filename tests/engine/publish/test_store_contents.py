"""What the files' own formats say, before a build is published and before a retry resumes it."""

import json
import os
import time
from pathlib import Path

import pytest
from tests.written import write_safetensors

from prefect_cachewatch.publish import target
from prefect_cachewatch.publish.checks import refusals
from prefect_cachewatch.publish.contents import find_broken
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

TENSOR = write_safetensors({"t": ("F32", [3], b"x" * 12)})
TRAILING = b"\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n12"


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
    files = {"a.safetensors": TENSOR, "b.npy": TRAILING, "run.safetensors": b"cut"}
    findings, manifest = found(tmp_path, files, ignore=["run.*"])
    assert [(each.category, each.severity, each.paths) for each in findings] == [
        ("suspicious_content", "warn", ("b.npy",))
    ]
    assert "has 1 bytes behind its elements" in manifest.warnings[0]


def marker(*files, **more):
    """As `mark_weight_cache_complete` of tt-metal writes it."""
    return json.dumps(
        {"format_version": 3, "model_name": "m", "cache_files": files, "weights": {"w": [[1], "x"]}} | more
    ).encode()


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (marker("l.0/a.bin"), None),
        (marker("l.0/a.bin", "b.tensorbin", "\x1b[2Jc.tensorbin"),
         ("broken_content", "lists 2 files that are not there, the first 'b.tensorbin'")),
        (marker("l.0/a.bin")[:-9], ("broken_content", "is cut off or no JSON, and should list the files of the cache")),
        (b"[]", ("broken_content", "is cut off or no JSON, and should list the files of the cache")),
        (marker(format_version=2, cache_files=None),
         ("suspicious_content", "vouches for a whole cache and lists no files (before format 3)")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [".weights_complete", ".weights_complete.3f2a90b1c4d5"])
def test_a_marker_of_tt_metal_must_list_what_is_there(tmp_path, name, data, finding):
    build, policy = begin(tmp_path)
    with build:
        Path(build.path, "n300/l.0").mkdir(parents=True)
        for path, written in (("n300/l.0/a.bin", b"\0"), (f"n300/{name}", data), ("n300/.host_weights.pt", b"x")):
            Path(build.path, path).write_bytes(written)
        findings = [each for each in build.check(policy) if f"n300/{name}" in each.paths]
        assert [(each.category, each.message.partition("; ")[0]) for each in findings] == (
            [(finding[0], f"n300/{name} {finding[1]}")] if finding else []
        )
        assert (f"n300/{name}" in find_broken(build.path)) is bool(finding and finding[0] == "broken_content")


def test_a_marker_may_list_links_and_files_that_are_no_part_of_the_cache(tmp_path):
    build, _policy = begin(tmp_path)
    with build:
        Path(build.path, "a.bin").write_bytes(b"x")
        Path(build.path, "b.bin").symlink_to("a.bin")
        Path(build.path, "c.log").write_bytes(b"x")
        Path(build.path, ".weights_complete").write_bytes(marker("a.bin", "b.bin", "c.log"))
        assert find_broken(build.path, ["*.log"]) == set()
        Path(build.path, "c.log").unlink()
        assert find_broken(build.path, ["*.log"]) == {".weights_complete"}


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


def test_files_are_read_again_only_if_one_has_changed(tmp_path, monkeypatch):
    reads = []
    real = target.inspect_build
    monkeypatch.setattr(target, "inspect_build", lambda *given: reads.append(1) or real(*given))
    build, policy = begin(tmp_path)
    with build:
        file = Path(build.path, "a.safetensors")
        file.write_bytes(TENSOR)
        assert build.check(policy) == build.check(policy, [])
        assert len(reads) == 1
        file.write_bytes(TENSOR[:-1])
        assert [each.category for each in build.check(policy)] == ["broken_content"]
