"""What tt-inference-server's own code says of paths, environment, time limits and arguments, as data for the tests.

    python -m tests.generators.derive_tt CHECKOUT [--check]

CHECKOUT is a clone of github.com/tenstorrent/tt-inference-server (Apache-2.0). Its modules are imported and asked; none
of its code is copied. Without `--check` both files of tests/data/tt_inference_server are written; with it they are compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "tt_inference_server"
PAGE = ROOT / "docs" / "profiles.md"
# Of an entry, what the profile reads.
TOP = ("model_name", "device_type", "inference_engine", "version", "subdevice_type")


def documented_commands() -> list[list[str]]:
    """The arguments of each `python3 run.py` on the page, also as a list; a backslash goes on with the next line."""
    text = PAGE.read_text().replace("\\\n", " ").replace("[python3, run.py, ", "python3 run.py ")
    found = [re.split(r"[, ]+", rest.strip()) for rest in re.findall(r"python3 run\.py([^`\n|\"\]]+)", text)]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


def derive(checkout: Path) -> dict[str, str]:
    """Ask the modules of a checkout; returns the text of each data file by name."""
    sys.path.insert(0, str(checkout))
    import run
    from llm_module.server_control import HttpServerController
    from utils import cache_monitor
    from workflows import model_spec

    whole = json.loads((checkout / "release_model_spec.json").read_text())
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    monitor = cache_monitor.CacheMonitor
    expected = {
        "upstream": {"version": (checkout / "VERSION").read_text().strip(), "commit": commit.stdout.strip() or None},
        "no_change_s": monitor.TENSOR_CACHE_NO_CHANGE_TIMEOUT,
        "markers": [monitor.TT_METAL_CACHE_FIRST_RUN_STARTED, monitor.TT_METAL_CACHE_COMPLETED],
        "controller": [field.name for field in dataclasses.fields(HttpServerController)],
        "commands": [{"words": words, **_parsed(run, words)} for words in documented_commands()],
        "places": [_place(spec) for spec in model_spec.MODEL_SPECS.values() if spec.inference_engine == "vLLM"],
        "defaults": sorted(_defaults(model_spec)),
    }
    return {"expected.json": _lines(expected), "release_model_spec.json": _lines(_trimmed(whole))}


def _trimmed(whole: dict[str, Any]) -> dict[str, Any]:
    def cut(entry: dict[str, Any]) -> dict[str, Any]:
        limits = {name: entry["device_model_spec"][name] for name in ("default_impl", "tensor_cache_timeout")}
        impl = {name: entry["impl"][name] for name in ("impl_id", "impl_name")}
        env = {name: value for name, value in entry["env_vars"].items() if name == "MESH_DEVICE"}
        return {name: entry[name] for name in TOP} | {"impl": impl, "device_model_spec": limits, "env_vars": env}

    def below(level: dict[str, Any], depth: int) -> dict[str, Any]:
        return {key: below(value, depth - 1) if depth else cut(value) for key, value in level.items()}

    return {**whole, "model_specs": below(whole["model_specs"], 3)}


def _place(spec: Any) -> dict[str, Any]:
    """Where the server of an entry writes, by the code that starts it and by the code that watches it."""
    from utils.cache_monitor import CacheMonitor, get_cache_relative_dir, get_host_model_volume_root
    from workflows.run_local_server import _get_local_server_storage_paths
    from workflows.setup_host import SetupConfig

    device = spec.device_type.name.lower()
    config = SetupConfig(model_spec=spec, host_volume="/mnt/tt")
    paths = _get_local_server_storage_paths(spec, SimpleNamespace(device=device), config)
    relative = get_cache_relative_dir(spec, SimpleNamespace(device=device))
    assert paths["tt_cache_path"] == get_host_model_volume_root(spec, "/mnt/tt") / relative
    default = SetupConfig(model_spec=spec, local_server=True)
    return {
        "model": spec.model_name,
        "device": device,
        "impl": spec.impl.impl_name,
        "root": str(paths["cache_root"]),
        "tensors": str(paths["tt_cache_path"].relative_to(paths["cache_root"])),
        "weights": str(config.container_model_weights_path.relative_to(config.cache_root)),
        "docker_volume": config.docker_volume_name,
        "persistent": str(default.host_model_volume_root.relative_to(default.repo_root)),
        "mesh_device": spec.env_vars.get("MESH_DEVICE"),
        "timeout_s": CacheMonitor(spec, cache_dir="/c").get_tensor_cache_timeout(),
    }


def _defaults(model_spec: Any) -> list[list[str]]:
    """Model, device, and the implementation and engine that run.py takes where none is named."""
    asked = {(spec.model_name, spec.device_type.name.lower()) for spec in model_spec.MODEL_SPECS.values()}
    return [[*one, *model_spec.get_runtime_model_spec(*one)[1:]] for one in asked]


def _parsed(run: Any, words: list[str]) -> dict[str, Any]:
    before, sys.argv = sys.argv, ["run.py", *words]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            found = run.parse_arguments()
    except SystemExit:
        return {"refused": said.getvalue().splitlines()[-1][:200]}
    finally:
        sys.argv = before
    names = ("model", "device", "workflow", "local_server", "docker_server", "host_volume", "service_port")
    return {"parsed": {name: getattr(found, name) for name in names}}


def _lines(data: dict[str, Any]) -> str:
    """JSON with a line for each entry of a list or mapping, so that a difference is read at once."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_rows(value)}" for name, value in data.items()) + "\n}\n"


def _rows(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    if isinstance(value, dict) and len(value) > 50:
        return _lines(value).rstrip("\n") if isinstance(next(iter(value.values())), dict) else json.dumps(value)
    return json.dumps(value)


def main(arguments: list[str]) -> int:
    """Write the data files, or compare them."""
    texts = derive(Path(arguments[0]).resolve())
    if "--check" not in arguments:
        for name, text in texts.items():
            (DATA / name).write_text(text)
        return 0
    different = [name for name, text in texts.items() if (DATA / name).read_text() != text]
    print("\n".join(different) or "as recorded")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
