"""Pre-flight of a container job: checks engine, image, volumes, mounts and devices before anything is started.

The result is a `ContainerPlan`: what the supervisor needs, and where on this host the cache directories are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER, CacheJob
from prefect_cachewatch.config.container import VOLUME_PREFIX, ContainerMount, ContainerSpec
from prefect_cachewatch.containers.creation import covering_mount
from prefect_cachewatch.containers.engine import (
    MAKE_S,
    connect,
    engine_errors,
    find_engine,
    ping,
    reason_of,
    sdk,
)
from prefect_cachewatch.containers.janitor import RUN_LABEL
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
        engine: URL of the one that will run it.
        image_id: identifier of the image that was found or pulled.
        volume_paths: named volume to its directory on the engine's host.
    """

    name: str
    spec: ContainerSpec
    engine: str
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
        return [
            ContainerMount(source=path, target=path)
            for path in dict.fromkeys(cache_dirs)
            if not any(is_in(path, volume) for volume in self.volume_paths.values())
            and covering_mount(path, self._resolved()) is None
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
    if spec.gpus is not None and ping(engine, MAKE_S)[1]:
        raise InputError(
            "podman's API does not act on gpus (--gpus): give --device nvidia.com/gpu=all instead, which needs "
            "`nvidia-ctk cdi generate` once"
        )
    _check_host(job, spec)
    with engine_errors(engine, "be reached"):
        client = connect(engine, MAKE_S)
    with closing(client):
        volumes = {
            mount.source: str(_find(engine, "volume", mount.source, client.inspect_volume)["Mountpoint"])
            for mount in spec.mounts
            if mount.is_volume
        }
        if spec.network is not None and spec.network not in _BUILT_IN_NETWORKS:
            _find(engine, "network", spec.network, client.inspect_network)
        for path in map(str, job.cache_dirs):
            _check_cache(client, engine, path, volumes)
        image = _find_image(client, engine, spec)
    config = image.get("Config") or {}
    if not (job.command or spec.entrypoint or config.get("Cmd") or config.get("Entrypoint")):
        raise InputError(
            f"image {for_terminal(spec.image)} has no command of its own: say what to run after --, or in the job's command"
        )
    return ContainerPlan(job.name, spec, engine, str(image["Id"]), volumes)


def _check_host(job: CacheJob, spec: ContainerSpec) -> None:
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


def _find(engine: str, kind: str, name: str, inspect: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    shown = for_terminal(name)
    with engine_errors(engine, f"say what {kind} {shown} is"):
        try:
            return inspect(name)
        except sdk().errors.NotFound:
            raise InputError(
                f"{kind} {shown} does not exist: create it with `docker {kind} create {shown}` "
                f"(podman {kind} create {shown})"
            ) from None


def _check_cache(client: Any, engine: str, path: str, volumes: dict[str, str]) -> None:
    """Refuse a cache directory in a volume that cannot be measured from here, or that another run writes into."""
    volume = path.removeprefix(VOLUME_PREFIX).partition("/")[0]
    if not path.startswith(VOLUME_PREFIX) or volume not in volumes:
        return
    if not os.access(volumes[volume], os.R_OK | os.X_OK):
        raise CacheDirectoryError(
            f"volume {volume} lies in {for_terminal(volumes[volume])}, which this user may not read: run as a user who may, or "
            "mount a directory of this host in its place, as in --volume /mnt/cache:/cache --cache-dir /mnt/cache",
            path=path,
        )
    with engine_errors(engine, "list its containers"):
        busy = client.containers(filters={"volume": [volume], "label": [RUN_LABEL]})
    for one in busy:
        raise CacheDirectoryBusy(
            f"volume {volume} is in use by another run's container ({for_terminal(one['Names'][0].lstrip('/'))}): wait for it "
            "to end, or let `cachewatch doctor` stop it if its run has died",
            path=volume,
        )


def _find_image(client: Any, engine: str, spec: ContainerSpec) -> dict[str, Any]:
    shown = for_terminal(spec.image)
    found = None if spec.pull == "always" else _inspect_image(client, engine, spec.image)
    if found is None and spec.pull == "never":
        raise InputError(
            f"image {shown} is not on the engine at {engine}: pull it first, or set container.pull to missing"
        )
    if found is None:
        why = _pull(client, spec.image)
        found = None if why else _inspect_image(client, engine, spec.image)
        if found is None:
            raise InputError(
                f"image {shown} cannot be pulled: {why or 'the engine says it did, and does not have it'}; check its name "
                "and tag, and log in to its registry with `docker login` if it is private"
            )
    return found


def _inspect_image(client: Any, engine: str, image: str) -> dict[str, Any] | None:
    with engine_errors(engine, f"say what image {for_terminal(image)} is"):
        try:
            found: dict[str, Any] = client.inspect_image(image)
        except sdk().errors.ImageNotFound:
            return None
    return found


def _pull(client: Any, image: str) -> str:
    """Pull an image; return the reason for a failure, else nothing."""
    repository, tag = sdk().utils.parse_repository_tag(image)
    client.timeout = _PULL_IDLE_S
    try:
        # A failure during the pull arrives as a line of the stream, with status 200.
        for line in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if error := line.get("error"):
                return for_terminal(str(error), 300)
    except Exception as error:  # noqa: BLE001 - the SDK raises requests', urllib3's and its own here; all mean the same
        return reason_of(error)
    client.timeout = MAKE_S
    return ""
