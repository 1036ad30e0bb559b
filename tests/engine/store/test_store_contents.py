"""What the files' own formats say, before a build is published and before a retry resumes it."""

import json
import os
import time
from pathlib import Path

from tests.written import write_safetensors

from prefect_cachewatch.store import staged
from prefect_cachewatch.store.contents import find_broken
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.staged import BuildRecipe
from prefect_cachewatch.store.store import CacheStore

TENSOR = write_safetensors({"t": ("F32", [3], b"x" * 12)})


def begin(root, **fields):
    policy = PublishPolicy(store=root, **fields)
    return CacheStore(root).begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)), policy


def marker(*files, **more):
    """As `mark_weight_cache_complete` of tt-metal writes it."""
    return json.dumps(
        {"format_version": 3, "model_name": "m", "cache_files": files, "weights": {"w": [[1], "x"]}} | more
    ).encode()


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
    real = staged.inspect_build
    monkeypatch.setattr(staged, "inspect_build", lambda *given: reads.append(1) or real(*given))
    build, policy = begin(tmp_path)
    with build:
        file = Path(build.path, "a.safetensors")
        file.write_bytes(TENSOR)
        assert build.check(policy) == build.check(policy, [])
        assert len(reads) == 1
        file.write_bytes(TENSOR[:-1])
        assert [each.category for each in build.check(policy)] == ["broken_content"]
