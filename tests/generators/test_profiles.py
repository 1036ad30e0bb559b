"""Profiles with the real packages on a CPU: they write where the profile looks, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.generators.guarded import SCRIPTS, GuardedRun, run_guarded
from tests.generators.hub_server import REPO, serve_hub

pytestmark = [pytest.mark.generators, pytest.mark.timeout(900)]


def by_profile(profile: str, command: list[str], cache_dir: Path, *options: str) -> GuardedRun:
    return run_guarded("exec", command, cache_dir, ["--profile", profile, *options], by_profile=True)


def completed(run: GuardedRun) -> None:
    assert (run.exit_code, run.report["outcome"]) == (0, "completed"), run.errors
    growth = run.report["growth"]
    assert growth["bytes_written"] >= growth["bytes_present"] > 0
    assert run.left == {}


def test_torch_compile_writes_into_the_profiles_directory(torch_python: str, cache_dir: Path, tmp_path: Path) -> None:
    command = [torch_python, str(SCRIPTS / "torch_plain.py")]
    run = by_profile(f"torch-compile,cache_dir={cache_dir}", command, cache_dir, "--env", f"TMPDIR={tmp_path}/tmp")
    completed(run)
    assert list(cache_dir.rglob("*.so"))
    assert (cache_dir / "fxgraph").is_dir()
    assert list((tmp_path / "tmp").glob("torchinductor_*")) == []


def test_aotinductor_grows_in_the_cache_and_ends_in_its_package(
    torch_python: str, cache_dir: Path, tmp_path: Path
) -> None:
    package = tmp_path / "packages" / "block.pt2"
    profile = f"torch-compile,cache_dir={cache_dir},package_dir={package.parent}"
    run = by_profile(profile, [torch_python, str(SCRIPTS / "torch_plain.py"), str(package)], cache_dir)
    completed(run)
    assert package.stat().st_size > 10_000
    assert run.report["cache_dirs"] == [str(cache_dir), str(package.parent)]


def test_openvino_writes_its_blobs_where_the_profile_looks(openvino_python: str, cache_dir: Path) -> None:
    command = [openvino_python, str(SCRIPTS / "openvino_blobs.py"), str(cache_dir)]
    run = by_profile(f"openvino,cache_dir={cache_dir}", command, cache_dir, "--poll", "0.2s")
    completed(run)
    assert len(list(cache_dir.glob("*.blob"))) == 3
    assert run.report["growth"]["files_present"] == 3


FILES = {"config.json": b"{}", "model.safetensors": os.urandom(6_000_000), "tokenizer.json": b'{"a": 1}' * 1000}


@pytest.fixture
def hub_program(hub_python: str) -> str:
    return str(Path(hub_python).with_name("hf"))


def test_a_download_lands_in_the_hubs_cache_and_is_counted(hub_program: str, cache_dir: Path) -> None:
    with serve_hub(FILES) as endpoint:
        profile = f"hf-download,home={cache_dir},repo={REPO}"
        run = by_profile(
            profile, [hub_program, "download", REPO], cache_dir,
            "--poll", "0.2s", "--env", f"HF_ENDPOINT={endpoint}", "--env", "NO_PROXY=127.0.0.1",
        )  # fmt: skip
    completed(run)
    snapshot = cache_dir / "hub" / "models--org--model" / "snapshots"
    assert {path.name: path.read_bytes() for path in snapshot.glob("*/*")} == FILES
    assert run.report["growth"]["bytes_written"] >= sum(map(len, FILES.values()))
    assert run.report["cache_dirs"] == [str(cache_dir / "hub"), str(cache_dir / "xet")]


def test_a_download_whose_server_falls_silent_is_a_stall_with_the_incomplete_file_named(
    hub_program: str, cache_dir: Path
) -> None:
    with serve_hub(FILES, hang_after_bytes=2_000_000) as endpoint:
        run = by_profile(
            f"hf-download,home={cache_dir}", [hub_program, "download", REPO], cache_dir,
            "--stall-after", "4s", "--first-write-within", "60s", "--poll", "0.5s", "--no-bundle",
            "--env", f"HF_ENDPOINT={endpoint}", "--env", "NO_PROXY=127.0.0.1",
        )  # fmt: skip
    assert (run.exit_code, run.report["outcome"], run.report["stall"]["kind"]) == (124, "stalled", "no_growth"), (
        run.errors
    )
    # It got something, and not all of it.
    assert 0 < run.report["growth"]["bytes_written"] < 6_000_000
    assert [name for name in run.flagged("temporary") if name.endswith(".incomplete")]
    assert run.report["stop"]["survivors"] == []
    assert run.left == {}
