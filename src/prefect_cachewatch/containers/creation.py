"""Builds the engine's creation request from a container's specification; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.config.container import ContainerMount, ContainerSpec, DeviceMapping

_LOG_MAX = "16m"


def container_request(
    spec: ContainerSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    extra_mounts: Sequence[ContainerMount] = (),
) -> dict[str, Any]:
    """Make the body of `POST /containers/create`.

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
        >>> request["Cmd"], request["Env"], request["HostConfig"]["AutoRemove"]
        (['gen'], ['A=b'], False)
    """
    host: dict[str, Any] = {
        # The exit code must be read first; the warden removes the container.
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "Privileged": False,
        "Mounts": [_mount(mount) for mount in (*spec.mounts, *extra_mounts)],
        "Devices": [_device(device) for device in spec.devices],
        # The log is drained as it comes; a second copy in the engine's own files must not fill its disk.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_MAX}},
    }
    if spec.gpus is not None:
        host["DeviceRequests"] = [_gpus(spec.gpus)]
    if spec.shm_size_bytes is not None:
        host["ShmSize"] = spec.shm_size_bytes
    if spec.ulimits:
        host["Ulimits"] = [_ulimit(name, str(limit)) for name, limit in spec.ulimits.items()]
    if spec.network is not None:
        host["NetworkMode"] = spec.network
    if spec.ports:
        host["PortBindings"] = dict(map(_port, spec.ports))
    if spec.memory_bytes is not None:
        host["Memory"] = host["MemorySwap"] = spec.memory_bytes
    if spec.init:
        host["Init"] = True
    request: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": dict(labels),
        "AttachStdin": False,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": host,
    }
    if spec.ports:
        request["ExposedPorts"] = {name: {} for name in host["PortBindings"]}
    if command:
        request["Cmd"] = list(command)
    if spec.entrypoint is not None:
        request["Entrypoint"] = list(spec.entrypoint)
    if spec.user is not None:
        request["User"] = spec.user
    if spec.workdir is not None:
        request["WorkingDir"] = spec.workdir
    return request


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


def _mount(mount: ContainerMount) -> dict[str, Any]:
    kind = "volume" if mount.is_volume else "bind"
    return {"Type": kind, "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _device(device: DeviceMapping) -> dict[str, str]:
    return {
        "PathOnHost": device.host,
        "PathInContainer": device.container or device.host,
        "CgroupPermissions": device.permissions,
    }


def _gpus(asked: str) -> dict[str, Any]:
    request: dict[str, Any] = {"Driver": "nvidia", "Capabilities": [["gpu"]]}
    if asked.startswith("device="):
        return request | {"DeviceIDs": asked.removeprefix("device=").split(",")}
    return request | {"Count": -1 if asked == "all" else int(asked)}


def _port(text: str) -> tuple[str, list[dict[str, str]]]:
    rest, _, inside = text.rpartition(":")
    address, _, outside = rest.rpartition(":")
    return f"{inside}/tcp", [{"HostIp": address.strip("[]") or "127.0.0.1", "HostPort": outside}]


def _ulimit(name: str, limit: str) -> dict[str, Any]:
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
