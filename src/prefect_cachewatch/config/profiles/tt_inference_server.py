"""tt-inference-server: a server that generates its tensor cache at start-up, and is ready when /health answers 200.

Directories are resolved as that server does (version 0.20.0, August 2026): run.py sets `CACHE_ROOT` to
`<host volume>/volume_id_<impl>-<model>-v<version>`, where the host volume is `--host-volume`, or with `--local-server`
the checkout's `persistent_volume`; Docker without a host volume takes the volume `volume_id_<impl>-<model>`. Below it
the weights come first, in `weights/<model>`, then the tensor cache, in `tt_metal_cache/cache_<model>/<mesh>`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.config import DEFAULT_IGNORE, MarkerFiles
from prefect_cachewatch.config.profiles.base import AbsolutePath, Host, Port, Profile, ProfileSettings, ready_by_health
from prefect_cachewatch.config.profiles.commandline import CommandLine
from prefect_cachewatch.config.profiles.progress_lines import TENSTORRENT
from prefect_cachewatch.config.profiles.tt_specifications import SPECIFICATION_FILE, Specification, read_specification
from prefect_cachewatch.errors import InputError

STARTED_MARKER, COMPLETED_MARKER = "TT_METAL_CACHE_FIRST_RUN_STARTED", "TT_METAL_CACHE_COMPLETED"

# The device as the command names it, and the name of its directory.
MESH_NAMES = {
    "cpu": "CPU",
    "e150": "E150",
    "n150": "N150",
    "n150x4": "N150x4",
    "n300": "N300",
    "t3k": "T3K",
    "p100": "P100",
    "p150": "P150",
    "p150x4": "P150x4",
    "p150x8": "P150x8",
    "p300": "P300",
    "p300x2": "P300x2",
    "galaxy": "TG",
    "galaxy_t3k": "T3K",
    "dual_galaxy": "(8,8)",
    "quad_galaxy": "(8,16)",
    "blackhole_galaxy": "BH-Galaxy",
    "gpu": "GPU",
    "super_cluster": "Super-Cluster",
}
_PLACES = ("tt_cache_path", "cache_root", "host_volume", "docker_volume")
# Devices whose directory has the name of another one where the model runs once on each part of them.
_DIVIDED = ("galaxy", "dual_galaxy", "quad_galaxy", "p150x8")
_DEFAULT_IMPL = "tt_transformers"
# Options by which run.py takes its specification from elsewhere.
_OTHER_SPECS = ("--runtime-model-spec-json", "--dev-mode")


class TTInferenceServer(Profile):
    """tt-inference-server on one device.

    Example:
        >>> server = TTInferenceServer(
        ...     model="meta-llama/Llama-3.1-8B-Instruct", device="n300", version="0.9.0", host_volume="/mnt/tt"
        ... )
        >>> str(server.resolve().cache_dirs[0].relative_to("/mnt/tt/volume_id_tt_transformers-Llama-3.1-8B-Instruct-v0.9.0"))
        'tt_metal_cache/cache_Llama-3.1-8B-Instruct/N300'
    """

    profile_name: ClassVar[str] = "tt-inference-server"
    summary: ClassVar[str] = "A Tenstorrent inference server: tensor and kernel cache, warm-up, ready by /health."

    model: str = Field(
        min_length=1,
        max_length=200,
        description="Model as the server names it; of a Hugging Face name the part after the slash.",
    )
    device: str = Field(description=f"Device: {', '.join(MESH_NAMES)}.")
    checkout: AbsolutePath | None = Field(
        default=None,
        description="Directory of tt-inference-server: its specification file is read; without another place, the server "
        "writes to its persistent_volume.",
    )
    specs: AbsolutePath | None = Field(
        default=None,
        description=f"Model specification file, from which version, implementation, directory and time limit are taken. "
        f"Default {SPECIFICATION_FILE} of the checkout.",
    )
    impl: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description=f"Implementation id; names the volume. Default the specification's; without one {_DEFAULT_IMPL}.",
    )
    version: str | None = Field(
        default=None,
        pattern=r"^v?[0-9][A-Za-z0-9_.+-]*$",
        description="Version of the model's specification, not of the server; names the volume below host_volume. Default "
        "the specification's.",
    )
    tt_cache_path: AbsolutePath | None = Field(
        default=None, description="TT_CACHE_PATH: the tensor cache's own directory. run.py sets its own."
    )
    cache_root: AbsolutePath | None = Field(default=None, description="CACHE_ROOT of the server. run.py sets its own.")
    host_volume: AbsolutePath | None = Field(default=None, description="What run.py is given with --host-volume.")
    docker_volume: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Docker volume of the cache root; auto: volume_id_<impl>-<model>, as without --host-volume.",
    )
    docker_root: AbsolutePath = Field(
        default=Path("/var/lib/docker"), description="Docker's data directory, for its volumes."
    )
    kernel_cache: AbsolutePath | None = Field(
        default=None,
        description="TT_METAL_CACHE: the kernel cache's directory. Default beside the tensor cache, with -kernels; with "
        "docker_volume none, since the container's own is not seen from here.",
    )
    weights: bool = Field(
        default=True,
        description="Whether the server downloads the weights, to weights/<model> below its root; false with "
        "--host-weights-dir and --host-hf-cache.",
    )
    host: Host = "127.0.0.1"
    port: Port = Field(default=8000, description="Its service port.")

    @field_validator("model")
    @classmethod
    def _bare(cls, model: str) -> str:
        name = model.rstrip("/").rpartition("/")[2]
        if name in ("", ".", "..") or "\0" in name:
            raise ValueError(f"{model!r} names no model: write it like Llama-3.1-8B-Instruct")
        return name

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        name = device.lower().replace("-", "_")
        if name not in MESH_NAMES:
            raise ValueError(f"device {device!r} is not known{nearest(name, MESH_NAMES)}")
        return name

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [name for name in _PLACES if getattr(self, name) is not None]
        if len(given) > 1 or not (given or self.checkout):
            said = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"give exactly one of {', '.join(_PLACES)}, or checkout alone: {said}")
        if self.specification is not None or self.tt_cache_path is not None:
            return self
        if self.host_volume is not None and self.version is None:
            raise ValueError(
                "host_volume needs checkout or specs: the server's directory in it is volume_id_<impl>-<model>-v<version>, by "
                "the model's specification"
            )
        if self.device in _DIVIDED:
            raise ValueError(
                f"{self.device} needs checkout or specs: for some models the directory has the name of a part of it"
            )
        return self

    @cached_property
    def specification(self) -> Specification | None:
        """The model's entry in the specification file, if one was given."""
        path = self.specs or (self.checkout and self.checkout / SPECIFICATION_FILE)
        return read_specification(path, self.model, self.device, self.impl) if path else None

    @property
    def mesh(self) -> str:
        """The device's name in the cache's path."""
        found = self.specification
        device = (found and found.subdevice) or self.device
        if device not in MESH_NAMES:
            raise InputError(
                f"sub-device {device} of the specification is not known: name its directory with tt_cache_path"
            )
        return MESH_NAMES[device]

    @property
    def _impl(self) -> str:
        found = self.specification
        return found.impl_id if found else self.impl or _DEFAULT_IMPL

    @property
    def root(self) -> Path | None:
        """The server's CACHE_ROOT, as seen from this host; None with tt_cache_path."""
        found = self.specification
        volume = f"volume_id_{self._impl}-{self.model}"
        if self.docker_volume is not None:
            name = volume if self.docker_volume == "auto" else self.docker_volume
            return self.docker_root / "volumes" / name / "_data"
        if self.tt_cache_path is not None or self.cache_root is not None:
            return self.cache_root
        version = self.version or (found.version if found else "")
        below = self.host_volume or Path(self.checkout or "") / "persistent_volume"
        return below / f"{volume}-v{version.removeprefix('v')}"

    @property
    def tensor_cache(self) -> Path:
        """The directory of the tensor cache, as seen from this host."""
        if self.tt_cache_path is not None:
            return self.tt_cache_path
        assert self.root is not None
        return self.root / "tt_metal_cache" / f"cache_{self.model}" / self.mesh

    @property
    def weights_dir(self) -> Path | None:
        """Where the server downloads the weights; None if it does not, or if that is not known."""
        return self.root / "weights" / self.model if self.root is not None and self.weights else None

    def resolve(self) -> ProfileSettings:
        """Return the job settings: caches and weights, windows for a first start, markers, /health."""
        tensor, kernels, found = self.tensor_cache, self.kernel_cache, self.specification
        if kernels is None and self.docker_volume is None:
            kernels = tensor.with_name(f"{tensor.name}-kernels")
        env = {}
        if self.docker_volume is None:
            mesh = (found and found.mesh_device) or MESH_NAMES[self.device]
            env = {"MESH_DEVICE": mesh, "TT_CACHE_PATH": str(tensor), "TT_METAL_CACHE": str(kernels)}
            if self.root is not None:
                env["CACHE_ROOT"] = str(self.root)
        hints = (
            ("the environment of this job does not reach into a container that it starts: the volume decides there",)
            if self.docker_volume is not None
            else ()
        )
        return ProfileSettings(
            name=f"{self.model}-{self.device}",
            cache_dirs=tuple(path for path in (tensor, kernels, self.weights_dir) if path is not None),
            env=env,
            ignore=(*DEFAULT_IGNORE, STARTED_MARKER, COMPLETED_MARKER),
            # Measured in production: a first byte after 1101 s, 393 to 1688 s from the last byte to /health. 900 s without a
            # change is a stall for upstream, too (it began with 300 s), and its workflows wait for the specification's limit.
            stall={"first_write_within_s": 1800.0, "stall_after_s": 900.0, "warmup_within_s": 2700.0}
            | ({"max_duration_s": found.timeout_s} if found else {}),
            ready=ready_by_health(self.host, self.port),
            markers=MarkerFiles(started=Path(STARTED_MARKER), completed=Path(COMPLETED_MARKER)),
            progress_log=TENSTORRENT,
            hints=hints,
            key=self.key(),
        )

    def key(self) -> dict[str, str]:
        """Return what the cache depends on, as the parameters say."""
        found = self.specification
        parts = {
            "model": self.model,
            "mesh": MESH_NAMES[self.device],
            "sub-device": found and found.subdevice,
            "implementation": self._impl,
            "version": self.version or (found and found.version),
        }
        return {name: value for name, value in parts.items() if value}

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `run.py --workflow server --local-server`; a server in Docker is no child of it."""
        model = line.option("--model")
        if line.program not in ("run.py", "tt-inference-server") or model is None:
            return None
        if line.option("--workflow") != "server" or "--local-server" not in line.words:
            return None
        port = line.option("--service-port") or line.env.get("SERVICE_PORT") or "8000"
        device = line.option("--tt-device", "--device")
        called: dict[str, Any] = {"model": model, "device": device or "n150", "port": port}
        try:
            server = cls(**called, **_storage(line)) if device and not line.has(*_OTHER_SPECS) else None
        except InputError:  # no checkout that can be read: the directory has to be given
            server = None
        found = server or cls(**called, tt_cache_path=Path("/unknown"))
        stall = {name: window for name, window in found.resolve().stall.items() if name != "max_duration_s"}
        dirs = tuple(path for path in (server.tensor_cache, server.weights_dir) if path) if server else ()
        return replace(found.resolve(), name=model.rpartition("/")[2], cache_dirs=dirs, stall=stall, hints=())


def _storage(line: CommandLine) -> dict[str, Any]:
    """Return where a `run.py` writes, as parameters; it takes all else from the checkout that it lies in."""
    volume, script = line.option("--host-volume"), line.place(line.path)
    return {
        "checkout": os.path.dirname(script) if script else None,
        "host_volume": line.place(volume) if volume and not volume.startswith("-") else None,
        "impl": line.option("--impl"),
        "weights": not line.has("--host-weights-dir", "--host-hf-cache"),
    }
