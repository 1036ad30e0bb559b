"""Pre-flight of a container job: checks engine, image, volumes, mounts and devices before anything is started.

The result is a `ContainerPlan`: what the supervisor needs, and where on this host the cache directories are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER, CacheJob
from prefect_cachewatch.config.container import VOLUME_PREFIX, ContainerMount, ContainerSpec
from prefect_cachewatch.containers.creation import covering_mount
from prefect_cachewatch.containers.engine import EngineAddress, engine_errors, find_engine, open_client, sdk
from prefect_cachewatch.errors import CacheDirectoryBusy, CacheDirectoryError, InputError

# A pull that says nothing for so long is given up.
_PULL_IDLE_S = 300.0
_BUILT_IN_NETWORKS = frozenset({"bridge", "none", "host", "default", "podman"})


@dataclass(frozen=True)
class ContainerPlan:
    """The result of the pre-flight.

    Attributes:
        name: of the job.
        spec: the job's container, with its image unchanged.
        engine: the one that will run it.
        image_id: identifier of the image that was found or pulled.
        volume_paths: named volume to its directory on the engine's host.
    """

    name: str
    spec: ContainerSpec
    engine: EngineAddress
    image_id: str
    volume_paths: dict[str, str]

    def locate(self, job: CacheJob) -> CacheJob:
        """Replace the job's cache directories by paths of this host.

        Args:
            job: its cache directories may include `volume:NAME/below`.

        Returns:
            The same job with paths only.

        Raises:
            CacheDirectoryError: a directory that the container cannot write to, or that this user cannot measure.
        """
        dirs = [Path(self._locate(str(path))) for path in job.cache_dirs]
        # Of the job's own class: the command line passes plain values in place of models.
        values: dict[str, Any] = vars(job) | {"cache_dirs": dirs}
        return type(job)(**values)

    def mounts_for(self, cache_dirs: Sequence[str]) -> list[ContainerMount]:
        """Return the cache directories to mount at their own paths, since no mount of the job covers them."""
        inside = tuple(f"{path.rstrip('/')}/" for path in self.volume_paths.values())
        return [
            ContainerMount(source=path, target=path)
            for path in dict.fromkeys(cache_dirs)
            if not f"{path}/".startswith(inside or ("\0",)) and covering_mount(path, self._resolved()) is None
        ]

    def _resolved(self) -> list[ContainerMount]:
        return [
            mount if mount.is_volume else mount.model_copy(update={"source": os.path.realpath(mount.source)})
            for mount in self.spec.mounts
        ]

    def _locate(self, path: str) -> str:
        shown = for_terminal(path)
        if not path.startswith(VOLUME_PREFIX):
            if CACHE_DIR_PLACEHOLDER in path:
                return path
            mount = covering_mount(os.path.realpath(path), self._resolved())
            if mount is not None and mount.read_only:
                raise CacheDirectoryError(
                    f"cache directory {shown} is mounted read-only (at {for_terminal(mount.target)}), and nothing could "
                    "grow in it: leave the :ro out",
                    path=path,
                )
            return path
        name, _, below = path.removeprefix(VOLUME_PREFIX).partition("/")
        mounts = [mount for mount in self.spec.mounts if mount.is_volume and mount.source == name]
        if not mounts or all(mount.read_only for mount in mounts):
            how = "mounted read-only" if mounts else "not mounted into the container"
            raise CacheDirectoryError(
                f"cache directory {shown} is in a volume that is {how}: add --volume {for_terminal(name)}:/PATH",
                path=path,
            )
        if ".." in below.split("/"):
            raise CacheDirectoryError(f"cache directory {shown} has .. in it: name the directory itself", path=path)
        return os.path.join(self.volume_paths[name], below) if below else self.volume_paths[name]


def plan_container(job: CacheJob) -> ContainerPlan:
    """Check that a job's container can be created; pull its image if necessary.

    Args:
        job: with a container.

    Returns:
        The plan. Nothing was started, and no volume, directory or network was created.

    Raises:
        InputError: engine, image, volume, network, device or mount cannot be used as asked.
        CacheDirectoryBusy: another run writes into a volume that contains the cache.
    """
    spec = job.container
    assert spec is not None
    if spec.network is not None and spec.network.startswith("container:"):
        raise InputError("container.network: another container's network is not offered: name a network, or none")
    engine = find_engine()
    if spec.gpus is not None and engine.is_podman:
        raise InputError(
            "podman's API does not act on gpus (--gpus): give --device nvidia.com/gpu=all instead, which needs "
            "`nvidia-ctk cdi generate` once"
        )
    _check_host(job, spec, engine)
    client = open_client(engine)
    try:
        volumes = _find_volumes(client, engine, job, spec)
        _check_network(client, engine, spec)
        _refuse_unreadable(job, engine, volumes)
        image = _find_image(client, engine, spec)
    finally:
        client.close()
    plan = ContainerPlan(job.name, spec, engine, str(image["Id"]), volumes)
    config = image.get("Config") or {}
    if not (job.command or spec.entrypoint or config.get("Cmd") or config.get("Entrypoint")):
        raise InputError(
            f"image {for_terminal(spec.image)} has no command of its own: say what to run after --, or in the job's command"
        )
    return plan


def _check_host(job: CacheJob, spec: ContainerSpec, engine: EngineAddress) -> None:
    if not engine.is_local:
        return  # its host's paths are not visible from here; the engine itself refuses a missing one
    dirs = [os.path.realpath(path) for path in job.cache_dirs if not str(path).startswith(VOLUME_PREFIX)]
    for mount in spec.mounts:
        if mount.is_volume or os.path.exists(mount.source) or os.path.realpath(mount.source) in dirs:
            continue  # a cache directory is created before the container
        raise InputError(f"mount source {for_terminal(mount.source)} does not exist: create it, or name a volume")
    for device in spec.devices:
        if device.host.startswith("/dev/") and not os.path.exists(device.host):
            raise InputError(
                f"device {for_terminal(device.host)} does not exist on this host: is the driver loaded, and is this the "
                "right machine?"
            )


def _find_volumes(client: Any, engine: EngineAddress, job: CacheJob, spec: ContainerSpec) -> dict[str, str]:
    docker, paths = sdk(), {}
    cached = {
        str(p).removeprefix(VOLUME_PREFIX).partition("/")[0] for p in job.cache_dirs if str(p).startswith(VOLUME_PREFIX)
    }
    names = [mount.source for mount in spec.mounts if mount.is_volume]
    for name in dict.fromkeys(names):
        with engine_errors(engine, f"say where volume {name} is"):
            try:
                found = client.inspect_volume(name)
            except docker.errors.NotFound:
                raise InputError(
                    f"volume {name} does not exist: create it with `docker volume create {name}` "
                    f"(podman volume create {name})"
                ) from None
        paths[name] = str(found.get("Mountpoint") or "")
        if name in cached:
            _refuse_busy(client, engine, name)
    return paths


def _refuse_unreadable(job: CacheJob, engine: EngineAddress, volumes: dict[str, str]) -> None:
    """Refuse a cache directory that cannot be measured from here."""
    if job.cache_dirs and not engine.is_local:
        path = str(job.cache_dirs[0])
        raise CacheDirectoryError(
            f"cache directory {for_terminal(path)} is on the host of the engine at {engine}, where it cannot be measured: run "
            "cachewatch on that host, or forward its socket where the same storage is mounted at the same path",
            path=path,
        )
    for path in map(str, job.cache_dirs):
        name = path.removeprefix(VOLUME_PREFIX).partition("/")[0] if path.startswith(VOLUME_PREFIX) else ""
        if name in volumes and not os.access(volumes[name], os.R_OK | os.X_OK):
            raise CacheDirectoryError(
                f"volume {name} lies in {for_terminal(volumes[name])}, which this user may not read: run as a user who may, or "
                "mount a directory of this host in its place, as in --volume /mnt/cache:/cache --cache-dir /mnt/cache",
                path=path,
            )


def _refuse_busy(client: Any, engine: EngineAddress, volume: str) -> None:
    with engine_errors(engine, "list its containers"):
        found = client.containers(filters={"volume": [volume], "label": ["cachewatch.run"]})
    for one in found:
        names = ", ".join(name.lstrip("/") for name in one.get("Names") or []) or str(one["Id"])[:12]
        raise CacheDirectoryBusy(
            f"volume {volume} is in use by another run's container ({for_terminal(names)}): wait for it to end, or let "
            "`cachewatch doctor` stop it if its run has died",
            path=volume,
        )


def _check_network(client: Any, engine: EngineAddress, spec: ContainerSpec) -> None:
    if spec.network is None or spec.network in _BUILT_IN_NETWORKS:
        return
    docker, shown = sdk(), for_terminal(spec.network)
    with engine_errors(engine, f"say what network {shown} is"):
        try:
            client.inspect_network(spec.network)
        except docker.errors.NotFound:
            raise InputError(
                f"network {shown} does not exist: create it with `docker network create {shown}`"
            ) from None


def _find_image(client: Any, engine: EngineAddress, spec: ContainerSpec) -> dict[str, Any]:
    found = None if spec.pull == "always" else _inspect_image(client, engine, spec.image)
    if found is not None:
        return found
    shown = for_terminal(spec.image)
    if spec.pull == "never":
        raise InputError(
            f"image {shown} is not on the engine at {engine}: pull it first, or set container.pull to missing"
        )
    why = _pull(engine, spec.image)
    found = _inspect_image(client, engine, spec.image) if why is None else None
    if found is None:
        raise InputError(
            f"image {shown} cannot be pulled: {why or 'the engine says it did, and does not have it'}; check its name and "
            "tag, and log in to its registry with `docker login` if it is private"
        )
    return found


def _inspect_image(client: Any, engine: EngineAddress, image: str) -> dict[str, Any] | None:
    docker = sdk()
    with engine_errors(engine, f"say what image {image} is"):
        try:
            found: dict[str, Any] = client.inspect_image(image)
        except docker.errors.ImageNotFound:
            return None
    return found


def _pull(engine: EngineAddress, image: str) -> str | None:
    """Pull an image; return None, or the reason for a failure."""
    repository, tag = _split(image)
    client = open_client(engine, _PULL_IDLE_S)
    try:
        # A failure during the pull arrives as a line of the stream, with status 200.
        for line in client.pull(repository, tag=tag, stream=True, decode=True):
            if isinstance(line, dict) and line.get("error"):
                return for_terminal(str(line["error"]), 300)
    except Exception as error:  # noqa: BLE001 - the SDK raises requests', urllib3's and its own here; all mean the same
        explanation = getattr(error, "explanation", None)
        return for_terminal(str(explanation or error), 300)
    finally:
        client.close()
    return None


def _split(image: str) -> tuple[str, str | None]:
    """Split an image name into name and tag or digest, default `latest`; a port's colon comes before a slash."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    head, colon, tag = image.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (image, "latest")
