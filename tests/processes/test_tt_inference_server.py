"""A server started as run.py of tt-inference-server starts it, by its own code where TT_INFERENCE_SERVER names a checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.generators.derive_tt import DATA, PAGE

from support import CACHEWATCH, Ran, run

SCRIPTS = Path(__file__).parents[1] / "generators" / "scripts"
CHECKOUT = "TT_INFERENCE_SERVER"
MODEL = "Llama-3.1-8B-Instruct"
RUN = f"python3 run.py --model {MODEL} --workflow server --tt-device n300 --local-server --no-auth --tt-metal-home /opt"
ROOT = f"volume_id_tt_transformers-{MODEL}-v0.9.0"
TENSORS, WEIGHTS = f"{ROOT}/tt_metal_cache/cache_{MODEL}/N300", f"{ROOT}/weights/{MODEL}"

# What the page's class takes from upstream's: a dataclass with these fields, an address and a request.
CONTROLLER = """
from dataclasses import make_dataclass
import requests
Fields = make_dataclass("Fields", [(name, object, "") for name in {names}], frozen=True)
class HttpServerController(Fields):
    health_url = property(lambda self: f"{{self.base_url}}:{{self.service_port}}/health")
    def get_health(self, timeout=10):
        return requests.get(self.health_url, timeout=timeout)
""".format(names=json.loads((DATA / "expected.json").read_text())["controller"])


@pytest.fixture(params=["in its way", pytest.param("by its own code", marks=pytest.mark.generators)])
def start(request, tmp_path, monkeypatch) -> Iterator[dict[str, str]]:
    """A checkout's directory, in which the command runs; servers that were left running end with the test."""
    for source, name in (("tt_run.py", "run.py"), ("tt_server.py", "tt_server.py")):
        shutil.copy(SCRIPTS / source, tmp_path / name)
    shutil.copy(DATA / "release_model_spec.json", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"SERVICE_PORT": port, "CACHEWATCH_STATE": str(tmp_path / "state"), "PATH": path}
    env["PYTHONPATH"] = str(tmp_path)
    given = env.pop(CHECKOUT, None)
    if request.param == "by its own code":
        if not given:
            pytest.skip(f"{CHECKOUT} names no checkout of github.com/tenstorrent/tt-inference-server")
        env |= {CHECKOUT: given, "PYTHONPATH": f"{given}:{tmp_path}"}
    else:
        (tmp_path / "llm_module.py").write_text(CONTROLLER)
    monkeypatch.chdir(tmp_path)
    yield env
    run([*CACHEWATCH, "stop", "--all", "--grace", "1s"], env=env)


def guarded(tmp_path: Path, env: dict[str, str], *options: str) -> Ran:
    command = [*CACHEWATCH, "exec", "--report", "r.json", "--poll", "0.2s", "--no-bundle", *options]
    ran = run([*command, "--", *RUN.split(), "--host-volume", str(tmp_path / "volume")], env=env)
    ran.report = json.loads((tmp_path / "r.json").read_text())
    return ran


def test_the_command_alone_is_known_and_its_server_is_handed_over(tmp_path, start):
    ran = guarded(tmp_path, start)
    assert (ran.status, ran.report["outcome"], ran.report["ready"]["then"]) == (0, "completed", "leave_running"), (
        ran.stderr
    )
    assert ran.report["cache_dirs"] == [f"{tmp_path}/volume/{TENSORS}", f"{tmp_path}/volume/{WEIGHTS}"]
    assert ran.report["growth"]["bytes_written"] == 40_000


def test_with_the_profile_kernels_are_watched_and_markers_written(tmp_path, start):
    profile = f"tt-inference-server,model={MODEL},device=n300,checkout={tmp_path},host_volume={tmp_path}/volume"
    ran = guarded(tmp_path, start, "--profile", f"{profile},port={start['SERVICE_PORT']}", "--then", "stop")
    assert (ran.status, ran.report["growth"]["bytes_written"]) == (0, 60_000), ran.stderr
    tensors = tmp_path / "volume" / TENSORS
    assert sorted(os.listdir(tensors)) == [
        "0.tensorbin",
        "TT_METAL_CACHE_COMPLETED",
        "TT_METAL_CACHE_FIRST_RUN_STARTED",
    ]
    assert os.listdir(f"{tensors}-kernels") == ["0.tensorbin"]


@pytest.mark.parametrize("hang", [False, True])
def test_the_pages_health_wait_starts_the_server_and_says_when_it_has_stalled(tmp_path, start, hang):
    (code,) = re.findall(r"```python\n(import subprocess.*?)```", PAGE.read_text(), re.DOTALL)
    code = code.replace("--no-auth", f"--no-auth --tt-metal-home /opt --host-volume {tmp_path}/volume")
    asked = (
        f"GuardedServerController('http://127.0.0.1', {start['SERVICE_PORT']}).wait_for_healthy({3 if hang else 60}, 1)"
    )
    (tmp_path / "guarded.py").write_text(f"{code}\nprint([{asked} for _ in range(2 - {hang})])\n")
    ran = run([sys.executable, "guarded.py"], env=start | ({"HANG": "1"} if hang else {}))
    assert ran.stdout.splitlines()[-1:] == [str([False] if hang else [True, True])], ran.stderr
    assert f"volume/{TENSORS}" in ran.stderr
    assert ("time limit" in ran.stderr) is hang, ran.stderr
