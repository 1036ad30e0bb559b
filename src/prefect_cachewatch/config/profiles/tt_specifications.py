"""The model specification file of tt-inference-server: what of an entry decides where its server writes, and how long it may take.

It is `release_model_spec.json` of a checkout, or `model_spec.json`, which run.py writes there at each start. The entry is
chosen as run.py chooses it: by model and device, then the default implementation unless one is named.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.aside import Aside, look_ahead
from prefect_cachewatch.common.files import read_input
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

SPECIFICATION_FILE = "release_model_spec.json"
# What becomes a part of a path, or is said.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Specification:
    """One entry.

    Attributes:
        model: its name, without the organization.
        device: as run.py's `--tt-device` has it, in lower case.
        impl_id: of the implementation; names the volume.
        impl_name: the same as run.py's `--impl` has it.
        is_default: whether run.py takes it where no implementation is named.
        engine: vLLM, media or forge.
        version: of this entry; names the directory in the host volume. It is not the server's version.
        subdevice: the device whose name is in the cache's path, if it is another than `device`.
        mesh_device: MESH_DEVICE, as the server sets it.
        timeout_s: the longest that upstream's workflows wait for the server's first start.
    """

    model: str
    device: str
    impl_id: str
    impl_name: str
    is_default: bool
    engine: str
    version: str
    subdevice: str | None
    mesh_device: str | None
    timeout_s: float


def read_specification(path: Path, model: str, device: str, impl: str | None = None) -> Specification:
    """Read the entry of a model on a device.

    Args:
        path: the file.
        model: its name, without the organization.
        device: in lower case.
        impl: id or name of the implementation; default the entry's that is marked so.

    Raises:
        InputError: the file cannot be read or has no such entry, or its engine does not write to TT_CACHE_PATH.
    """
    shown = for_terminal(str(path), 4096)
    known = list(_entries(_load(path, shown), shown))
    entries = [entry for entry in known if entry.model == model]
    if not entries:
        hint = nearest(model, {entry.model for entry in known})
        hint = hint if "did you mean" in hint else ": run.py --help lists them"
        raise InputError(f"{shown} has no model {for_terminal(model, 100)!r}{hint}")
    here = [entry for entry in entries if entry.device == device]
    if not here:
        devices = for_terminal(", ".join(sorted({entry.device for entry in entries})), 400)
        raise InputError(f"{shown} has no {model} on {device}: use one of {devices}")
    fitting = [entry for entry in here if impl in (None, entry.impl_id, entry.impl_name)]
    if not fitting:
        raise InputError(
            f"{shown}: {model} on {device} has no impl {impl!r}{nearest(impl or '', [e.impl_id for e in here])}"
        )
    chosen = next((entry for entry in fitting if entry.is_default), fitting[0])
    if chosen.engine != "vLLM":
        raise InputError(
            f"{model} on {device} runs on the {for_terminal(chosen.engine, 40)} engine, which does not write to TT_CACHE_PATH: leave the profile "
            "out, and name the directories that its server writes with --cache-dir"
        )
    return _checked(chosen, shown)


def _checked(entry: Specification, shown: str) -> Specification:
    """Refuse an entry with values that no server can have: they become paths, variables and a time limit."""
    names = {name: getattr(entry, name) for name in ("device", "impl_id", "version", "subdevice")}
    wrong = [name for name, value in names.items() if value is not None and not _NAME.fullmatch(value)]
    if entry.mesh_device is not None and not entry.mesh_device.isprintable():
        wrong.append("MESH_DEVICE")
    if not 0 < entry.timeout_s < math.inf:
        wrong.append("tensor_cache_timeout")
    if wrong:
        raise InputError(
            f"{shown}: {' and '.join(wrong)} of {for_terminal(entry.model, 100)} cannot be so: take the file from "
            "tt-inference-server as it is"
        )
    return entry


def _load(path: Path, shown: str) -> Any:
    with contextlib.closing(Aside.spawn()) as files:
        try:
            raw = look_ahead(files, f"specification file {path}", read_input, path)
        except OSError as error:
            raise InputError(f"specification file {shown} cannot be read ({error.strerror}): check the path") from None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError(f"{shown} is not JSON: name {SPECIFICATION_FILE} of tt-inference-server") from None


def _entries(data: Any, shown: str) -> Iterator[Specification]:
    """Yield the entries of `model_specs`: by repository, device, engine and implementation."""
    try:
        level = [data["model_specs"]]
        for _ in range(4):
            level = [below for above in level for below in above.values()]
        yield from map(_specification, level)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise InputError(
            f"{shown} is no model specification file as of tt-inference-server 0.20: name its {SPECIFICATION_FILE}"
        ) from None


def _specification(entry: Mapping[str, Any]) -> Specification:
    limits, impl, below = entry["device_model_spec"], entry["impl"], entry["subdevice_type"]
    return Specification(
        model=str(entry["model_name"]),
        device=str(entry["device_type"]).lower(),
        impl_id=str(impl["impl_id"]),
        impl_name=str(impl["impl_name"]),
        is_default=bool(limits["default_impl"]),
        engine=str(entry["inference_engine"]),
        version=str(entry["version"]),
        subdevice=str(below).lower() if below else None,
        mesh_device=str(mesh) if (mesh := entry["env_vars"].get("MESH_DEVICE")) is not None else None,
        timeout_s=float(limits["tensor_cache_timeout"]),
    )
