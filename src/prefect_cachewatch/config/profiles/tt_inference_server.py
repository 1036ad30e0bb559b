"""tt-inference-server: a server that generates its tensor cache at start-up, and is ready when /health answers 200.

Directories are resolved as that server does (its docs and workflows of August 2026, version 0.20): `TT_CACHE_PATH`
overrides all others; `CACHE_ROOT/tt_metal_cache/cache_<model>/<mesh>`; `<host
volume>/volume_id_<impl>-<model>-v<version>/...` with `--host-volume`; the Docker volume `volume_id_<impl>-<model>`
without.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.config import DEFAULT_IGNORE, MarkerFiles
from prefect_cachewatch.config.profiles.base import Host, Port, Profile, ProfileSettings, ready_by_health
from prefect_cachewatch.config.profiles.commandline import CommandLine
from prefect_cachewatch.config.profiles.progress_lines import TENSTORRENT

__all__ = ["MESH_NAMES", "TTInferenceServer"]

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


class TTInferenceServer(Profile):
    """tt-inference-server on one device.

    Example:
        >>> server = TTInferenceServer(
        ...     model="meta-llama/Llama-3.1-8B-Instruct", device="n300", version="0.20.0", host_volume="/mnt/tt"
        ... )
        >>> str(server.resolve().cache_dirs[0].relative_to("/mnt/tt/volume_id_tt_transformers-Llama-3.1-8B-Instruct-v0.20.0"))
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
    impl: str = Field(
        default="tt_transformers",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Implementation id of the model's specification; names the volume.",
    )
    version: str | None = Field(
        default=None,
        pattern=r"^v?[0-9][A-Za-z0-9_.+-]*$",
        description="Version of the server; names the volume below host_volume.",
    )
    tt_cache_path: Path | None = Field(
        default=None, description="TT_CACHE_PATH: the tensor cache's own directory, before everything else."
    )
    cache_root: Path | None = Field(default=None, description="CACHE_ROOT of a server that runs on this host.")
    host_volume: Path | None = Field(default=None, description="What the server is given with --host-volume.")
    docker_volume: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Docker volume of the cache root; auto: volume_id_<impl>-<model>, as without --host-volume.",
    )
    docker_root: Path = Field(default=Path("/var/lib/docker"), description="Docker's data directory, for its volumes.")
    kernel_cache: Path | None = Field(
        default=None,
        description="TT_METAL_CACHE: the kernel cache's directory. Default beside the tensor cache, with -kernels; with "
        "docker_volume none, since the container's own is not seen from here.",
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

    @field_validator("tt_cache_path", "cache_root", "host_volume", "docker_root", "kernel_cache")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
        return path

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [name for name in _PLACES if getattr(self, name) is not None]
        if len(given) != 1:
            said = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"give exactly one of {', '.join(_PLACES)}: {said}")
        if self.host_volume is not None and self.version is None:
            raise ValueError(
                "host_volume needs the version: the server's directory in it is volume_id_<impl>-<model>-v<version>"
            )
        return self

    @property
    def mesh(self) -> str:
        """The device's name in the cache's path."""
        return MESH_NAMES[self.device]

    @property
    def root(self) -> Path | None:
        """The server's CACHE_ROOT, as seen from this host; None with tt_cache_path."""
        volume = f"volume_id_{self.impl}-{self.model}"
        if self.host_volume is not None:
            return self.host_volume / f"{volume}-v{(self.version or '').removeprefix('v')}"
        if self.docker_volume is not None:
            name = volume if self.docker_volume == "auto" else self.docker_volume
            return self.docker_root / "volumes" / name / "_data"
        return self.cache_root

    @property
    def tensor_cache(self) -> Path:
        """The directory of the tensor cache, as seen from this host."""
        if self.tt_cache_path is not None:
            return self.tt_cache_path
        assert self.root is not None
        return self.root / "tt_metal_cache" / f"cache_{self.model}" / self.mesh

    def resolve(self) -> ProfileSettings:
        """Return the job settings: both caches, windows for a first start, markers, /health."""
        tensor, kernels = self.tensor_cache, self.kernel_cache
        if kernels is None and self.docker_volume is None:
            kernels = tensor.with_name(f"{tensor.name}-kernels")
        env = {}
        if self.docker_volume is None:
            env = {"MESH_DEVICE": self.mesh, "TT_CACHE_PATH": str(tensor), "TT_METAL_CACHE": str(kernels)}
            if self.root is not None:
                env["CACHE_ROOT"] = str(self.root)
        hints = (
            ("the environment of this job does not reach into a container that it starts: the volume decides there",)
            if self.docker_volume is not None
            else ()
        )
        return ProfileSettings(
            name=f"{self.model}-{self.device}",
            cache_dirs=(tensor, *((kernels,) if kernels is not None else ())),
            env=env,
            ignore=(*DEFAULT_IGNORE, STARTED_MARKER, COMPLETED_MARKER),
            # Measured in production: a first byte after 1101 s, layers of 84 s, 393 to 1688 s from the last byte to
            # /health.
            stall={"first_write_within_s": 1800.0, "stall_after_s": 300.0, "warmup_within_s": 2700.0},
            ready=ready_by_health(self.host, self.port),
            markers=MarkerFiles(started=Path(STARTED_MARKER), completed=Path(COMPLETED_MARKER)),
            progress_log=TENSTORRENT,
            hints=hints,
        )

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `run.py --workflow server --local-server`; a server in Docker is no child of it."""
        model = line.option("--model")
        if line.program not in ("run.py", "tt-inference-server") or model is None:
            return None
        if line.option("--workflow") != "server" or "--local-server" not in line.words:
            return None
        port = line.option("--service-port") or line.env.get("SERVICE_PORT") or "8000"
        # Its directory has the server's version in its name, which the command line does not say.
        device = line.option("--tt-device", "--device") or "n150"
        settings = cls(model=model, device=device, port=int(port), cache_root=Path("/")).resolve()
        return replace(settings, name=model.rpartition("/")[2], cache_dirs=(), hints=())
