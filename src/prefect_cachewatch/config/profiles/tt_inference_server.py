"""tt-inference-server: where it writes, by the specification file of its checkout; the rest is in its TOML file.

Directories are resolved as that server does (version 0.20.0, August 2026): run.py sets `CACHE_ROOT` to
`<host volume>/volume_id_<impl>-<model>-v<version>`, where the host volume is `--host-volume`, or with `--local-server`
the checkout's `persistent_volume`; Docker without a host volume takes the volume `volume_id_<impl>-<model>`. Below it
the weights come first, in `weights/<model>`, then the tensor cache, in `tt_metal_cache/cache_<model>/<mesh>`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect_cachewatch.config.profiles.commandline import CommandLine
from prefect_cachewatch.config.profiles.settings import ProfileSettings
from prefect_cachewatch.config.profiles.tt_specifications import SPECIFICATION_FILE, Specification, read_specification
from prefect_cachewatch.errors import InputError

NAME = "tt-inference-server"
_PLACES = ("tt_cache_path", "cache_root", "host_volume", "docker_volume")
# Devices whose directory has the name of another one where the model runs once on each part of them.
_DIVIDED = ("galaxy", "dual_galaxy", "quad_galaxy", "p150x8")
_DEFAULT_IMPL = "tt_transformers"
# Options by which run.py takes its specification from elsewhere.
_OTHER_SPECS = ("--runtime-model-spec-json", "--dev-mode")


def derive(values: Mapping[str, Any], mesh_names: Mapping[str, str]) -> dict[str, Any]:
    """Work out what follows from the parameters, and from the model's entry in the specification file if one is named.

    Args:
        values: of the parameters.
        mesh_names: device -> its name in paths.

    Returns:
        The profile's derived values, and those of the parameters that an entry completes.

    Raises:
        InputError: the parameters do not say one place, or the specification file does not help.
    """
    model = values["model"].rstrip("/").rpartition("/")[2]
    if model in ("", ".", "..") or "\0" in model:
        raise InputError(f"profile {NAME}: {values['model']!r} names no model: write it like Llama-3.1-8B-Instruct")
    path = values["specs"] or (values["checkout"] and values["checkout"] / SPECIFICATION_FILE)
    _check_places(values, specified=path is not None)
    found = read_specification(path, model, values["device"], values["impl"]) if path else None
    device = (found and found.subdevice) or values["device"]
    if device not in mesh_names:
        raise InputError(
            f"sub-device {device} of the specification is not known: name its directory with tt_cache_path"
        )
    impl = found.impl_id if found else values["impl"] or _DEFAULT_IMPL
    root = _root(values, f"volume_id_{impl}-{model}", found)
    tensors = values["tt_cache_path"] or Path(str(root), "tt_metal_cache", f"cache_{model}", mesh_names[device])
    kernels, in_container = values["kernel_cache"], values["docker_volume"] is not None
    if kernels is None and not in_container:
        kernels = tensors.with_name(f"{tensors.name}-kernels")
    mesh = mesh_names[values["device"]]
    sets = {
        "mesh": (found and found.mesh_device) or mesh,
        "tensors": tensors,
        "kernels": kernels,
        "root": root,
        "boot_attempts": 1,  # run.py starts a server that hangs again by itself; here that is the guard's matter
    }
    return {
        "model": model,
        "tensors": tensors,
        "kernels": kernels,
        "weights_dir": root / "weights" / model if root is not None and values["weights"] else None,
        "mesh": mesh,
        "subdevice": found and found.subdevice,
        "implementation": impl,
        "version": values["version"] or (found and found.version),
        "timeout_s": found and found.timeout_s,
    } | {f"set_{name}": None if in_container else value for name, value in sets.items()}


def _check_places(values: Mapping[str, Any], *, specified: bool) -> None:
    given = [name for name in _PLACES if values[name] is not None]
    if len(given) > 1 or not (given or values["checkout"]):
        said = f"{' and '.join(given)} are given" if given else "none is given"
        raise InputError(f"profile {NAME}: give exactly one of {', '.join(_PLACES)}, or checkout alone: {said}")
    if specified or values["tt_cache_path"] is not None:
        return
    if values["host_volume"] is not None and values["version"] is None:
        raise InputError(
            f"profile {NAME}: host_volume needs checkout or specs: the server's directory in it is "
            "volume_id_<impl>-<model>-v<version>, by the model's specification"
        )
    if values["device"] in _DIVIDED:
        raise InputError(
            f"profile {NAME}: {values['device']} needs checkout or specs: for some models the directory has the name of a part of it"
        )


def _root(values: Mapping[str, Any], volume: str, found: Specification | None) -> Path | None:
    """Return the server's CACHE_ROOT, as seen from this host; None with tt_cache_path."""
    if (docker := values["docker_volume"]) is not None:
        return Path(values["docker_root"], "volumes", volume if docker == "auto" else docker, "_data")
    if values["tt_cache_path"] is not None or values["cache_root"] is not None:
        root: Path | None = values["cache_root"]
        return root
    version = values["version"] or (found.version if found else "")
    below = values["host_volume"] or Path(values["checkout"] or "", "persistent_volume")
    return Path(below, f"{volume}-v{version.removeprefix('v')}")


def recognize(line: CommandLine, make: Callable[[Mapping[str, Any]], ProfileSettings]) -> ProfileSettings | None:
    """Know `run.py --workflow server --local-server`; a server in Docker is no child of it.

    Args:
        line: the command.
        make: returns the settings of parameters.
    """
    model = line.option("--model")
    if line.program not in ("run.py", NAME) or model is None:
        return None
    if line.option("--workflow") != "server" or "--local-server" not in line.words:
        return None
    port = line.option("--service-port") or line.env.get("SERVICE_PORT") or "8000"
    device = line.option("--tt-device", "--device")
    called: dict[str, Any] = {"model": model, "device": device or "n150", "port": port}
    try:
        found = make({**called, "tt_cache_path": "/unknown"})
    except InputError:  # options that run.py itself will refuse
        return None
    dirs: tuple[Path, ...] = ()
    if device and not line.has(*_OTHER_SPECS):
        try:
            tensors, _, *weights = make({**called, **_storage(line)}).cache_dirs
            dirs = (tensors, *weights)
        except InputError:  # no checkout that can be read: the directory has to be given
            pass
    return replace(found, name=model.rpartition("/")[2], cache_dirs=dirs)


def _storage(line: CommandLine) -> dict[str, Any]:
    """Return where a `run.py` writes, as parameters; it takes all else from the checkout that it lies in."""
    volume, script = line.option("--host-volume"), line.place(line.path)
    return {
        "checkout": os.path.dirname(script) if script else None,
        "host_volume": line.place(volume) if volume and not volume.startswith("-") else None,
        "impl": line.option("--impl"),
        "weights": not line.has("--host-weights-dir", "--host-hf-cache"),
    }
