"""Builds the engine's creation request from a container's specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.config.container import ContainerMount, ContainerSpec
from prefect_cachewatch.containers.engine import API_VERSION, sdk

# The log is drained as it comes; a second copy in the engine's own files must not fill its disk.
_LOG = {"type": "json-file", "config": {"max-size": "16m"}}


def container_request(
    spec: ContainerSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    extra_mounts: Sequence[ContainerMount] = (),
) -> dict[str, Any]:
    """Make the body of `POST /containers/create`; the engine neither restarts nor removes the container by itself.

    Args:
        spec: the job's specification.
        command: arguments; empty for the image's own.
        env: environment variables, all of them.
        labels: of its run.
        extra_mounts: in addition to those of `spec`.

    Returns:
        The request.

    Example:
        >>> request = container_request(ContainerSpec(image="i"), ["gen"], {"A": "b"}, {})
        >>> request["Cmd"], request["Env"], request["HostConfig"].get("AutoRemove")
        (['gen'], ['A=b'], None)
    """
    types = sdk().types
    ports = dict(map(_port, spec.ports))
    host = types.HostConfig(
        API_VERSION,
        mounts=[
            types.Mount(one.target, one.source, "volume" if one.is_volume else "bind", one.read_only)
            for one in (*spec.mounts, *extra_mounts)
        ],
        devices=[  # as objects: a path may contain a colon
            {
                "PathOnHost": one.host,
                "PathInContainer": one.container or one.host,
                "CgroupPermissions": one.permissions,
            }
            for one in spec.devices
        ],
        device_requests=[_gpus(spec.gpus)] if spec.gpus else None,
        shm_size=spec.shm_size_bytes,
        ulimits=[_ulimit(name, str(limit)) for name, limit in spec.ulimits.items()] or None,
        network_mode=spec.network,
        port_bindings=ports or None,
        mem_limit=spec.memory_bytes,
        memswap_limit=spec.memory_bytes,
        init=spec.init or None,
        log_config=_LOG,
    )
    return dict(
        types.ContainerConfig(
            API_VERSION,
            spec.image,
            list(command) or None,
            environment=dict(env),
            labels=dict(labels),
            ports=[(port.partition("/")[0], "tcp") for port in ports] or None,
            entrypoint=spec.entrypoint,
            user=spec.user,
            working_dir=spec.workdir,
            host_config=host,
        )
    )


def covering_mount(path: str, mounts: Sequence[ContainerMount]) -> ContainerMount | None:
    """Find the nearest mounted host directory that contains a host path; None if there is none.

    Example:
        >>> covering_mount("/mnt/a/b", [ContainerMount(source="/mnt/a", target="/x")]).target
        '/x'
        >>> covering_mount("/mnt/ab", [ContainerMount(source="/mnt/a", target="/x")]) is None
        True
    """
    found = [m for m in mounts if not m.is_volume and is_in(path, m.source)]
    return max(found, key=lambda mount: len(mount.source.rstrip("/")), default=None)


def _gpus(asked: str) -> dict[str, Any]:
    which = asked.removeprefix("device=").split(",") if asked.startswith("device=") else None
    count = None if which else -1 if asked == "all" else int(asked)
    return {"driver": "nvidia", "capabilities": [["gpu"]], "device_ids": which, "count": count}


def _port(text: str) -> tuple[str, tuple[str, str]]:
    rest, _, inside = text.rpartition(":")
    address, _, outside = rest.rpartition(":")
    return f"{inside}/tcp", (address.strip("[]") or "127.0.0.1", outside)


def _ulimit(name: str, limit: str) -> dict[str, Any]:
    soft, _, hard = limit.partition(":")
    return {"name": name, "soft": int(soft), "hard": int(hard or soft)}
