"""Command lines as people write them, and the profile that knows each: directories, address, name; and those that none knows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from prefect_cachewatch.config.profiles import recognize_profile
from prefect_cachewatch.errors import InputError

HOME = {"HOME": "/home/u"}
VLLM = "/home/u/.cache/vllm/torch_compile_cache"


def known(command: str, env: dict[str, str] | None = None, cwd: str = "/w") -> tuple[object, ...] | None:
    found = recognize_profile(shlex.split(command), HOME | (env or {}), cwd)
    if found is None:
        return None
    name, settings = found
    assert (settings.env, settings.command, settings.markers) == ({}, (), None)
    return name, settings.name, [str(path) for path in settings.cache_dirs], settings.ready and settings.ready.url


@pytest.mark.parametrize(
    ("command", "env", "name", "job", "dirs", "url"),
    [
        ("vllm serve org/Llama-3.1-8B", {}, "vllm-compile-cache", "Llama-3.1-8B", [VLLM], "127.0.0.1:8000"),
        ("/opt/venv/bin/vllm serve m --host 0.0.0.0 --port 9000", {}, "vllm-compile-cache", "m", [VLLM], "127.0.0.1:9000"),
        ("vllm serve m --host ::1", {}, "vllm-compile-cache", "m", [VLLM], "[::1]:8000"),
        ("nice -n 5 numactl -N 0 timeout -k 5 1h vllm serve m", {}, "vllm-compile-cache", "m", [VLLM], "127.0.0.1:8000"),
        ("env -u A B=c uv run --with x -- vllm serve m", {}, "vllm-compile-cache", "m", [VLLM], "127.0.0.1:8000"),
        ("vllm serve m --host=10.0.0.5 --port=9000", {}, "vllm-compile-cache", "m", [VLLM], "10.0.0.5:9000"),
        ("env VLLM_CACHE_ROOT=/c vllm serve m", {}, "vllm-compile-cache", "m", ["/c/torch_compile_cache"], "127.0.0.1:8000"),
        ("vllm serve m", {"XDG_CACHE_HOME": "/x"}, "vllm-compile-cache", "m", ["/x/vllm/torch_compile_cache"], "127.0.0.1:8000"),
        ("vllm serve m", {"VLLM_CACHE_ROOT": "c"}, "vllm-compile-cache", "m", ["/w/c/torch_compile_cache"], "127.0.0.1:8000"),
        ("python -m vllm.entrypoints.openai.api_server --model org/m", {}, "vllm-compile-cache", "m", [VLLM], "127.0.0.1:8000"),
        ("python3 -m sglang.launch_server --model-path org/m --port 31000", {}, "sglang", "m",
         ["/home/u/.cache/sglang", "/home/u/.cache/deep_gemm"], "127.0.0.1:31000"),
        ("sglang serve --model-path m", {"SGLANG_CACHE_DIR": "/s", "SGLANG_DG_CACHE_DIR": "/s/dg"}, "sglang", "m", ["/s"],
         "127.0.0.1:30000"),
        ("trtllm-build --checkpoint_dir ck --output_dir out/engine", {}, "trtllm-build", "engine", ["/w/out/engine"], None),
        ("trtllm-build --checkpoint-dir=/ck", {}, "trtllm-build", "engine_outputs", ["/w/engine_outputs"], None),
        ("hf download org/m", {}, "hf-download", "m",
         ["/home/u/.cache/huggingface/hub", "/home/u/.cache/huggingface/xet"], None),
        ("huggingface-cli download org/m --local-dir ~/m", {"HF_HOME": "/hf"}, "hf-download", "m", ["/home/u/m", "/hf/xet"], None),
        ("hf download org/m --cache-dir /c", {"HF_XET_CACHE": "/xet"}, "hf-download", "m", ["/c", "/xet"], None),
        ("tt serve Llama-3.1-8B-Instruct", {"HF_HOME": "/hf"}, "tt-serve", "Llama-3.1-8B-Instruct", ["/hf/hub", "/hf/xet"],
         "127.0.0.1:20000"),
        ("tt-model serve ns/m --port 21000", {}, "tt-serve", "m",
         ["/home/u/.cache/huggingface/hub", "/home/u/.cache/huggingface/xet"], "127.0.0.1:21000"),
        ("python3 run.py --model Llama-3.1-8B --tt-device n300 --workflow server --local-server --service-port 7000", {},
         "tt-inference-server", "Llama-3.1-8B", [], "127.0.0.1:7000"),
    ],
)  # fmt: skip
def test_a_command_is_known_by_its_profile(command, env, name, job, dirs, url):
    assert known(command, env) == (name, job, dirs, url and f"http://{url}/health")


@pytest.mark.parametrize(
    "command",
    ["python3 gen.py", "vllm bench throughput", "vllm", "vllm --help", "hf upload org/m", "hf", "python3 -m sglang.bench_serving",
     "python3", "env", "nice -n", "timeout", "", "python3 run.py --model m", "python3 run.py --model m --workflow server --docker-server",
     "sh -c 'vllm serve m'", "vllm serve m --host 'a b'",
     "python3 run.py --model m --tt-device x9 --workflow server --local-server"],
)  # fmt: skip
def test_no_profile_claims_what_it_does_not_know(command):
    assert known(command) is None


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        ("vllm serve m --ssl-certfile=c --ssl-keyfile k --port 9", ("tcp", "127.0.0.1", 9)),
        ("python -m sglang.launch_server --model-path m --ssl-certfile c --host ::1", ("tcp", "::1", 30000)),
    ],
)
def test_a_server_with_tls_is_asked_whether_its_port_takes_connections(command, ready):
    found = recognize_profile(shlex.split(command), HOME, "/w")[1].ready
    assert (found.kind, found.host, found.port) == ready


@pytest.mark.parametrize("option", ["--uds /run/v.sock", "--uds=/run/v.sock", "--headless"])
def test_a_server_of_which_nothing_says_when_it_is_ready_is_refused(option):
    with pytest.raises(InputError, match=r"has no port that says when it is ready: add --ready"):
        known(f"vllm serve m {option}")


def test_a_site_s_profile_knows_its_command_and_a_broken_one_stops_nothing(tmp_path: Path, monkeypatch):
    (tmp_path / "a-broken.toml").write_text("summary = 3")
    (tmp_path / "own.toml").write_text(
        'summary = "Ours."\ncache_dirs = ["/c"]\nrecognize = {commands = ["ours"], cache_dirs = [["$OURS", "--to", "x"]]}'
    )
    monkeypatch.setenv("CACHEWATCH_PROFILES", str(tmp_path))
    assert known("ours --to /t") == ("own", "generator", ["/t"], None)
    assert known("ours --to /t", {"OURS": "/o"})[2] == ["/o"]
    assert known("ours")[2] == ["/w/x"]
    assert known("hf download org/m")[0] == "hf-download"
