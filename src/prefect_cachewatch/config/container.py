"""The container of a job whose generator is an image: the request to an engine. Contacts no engine."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from prefect_cachewatch.common.units import SIZE_PATTERN, parse_bytes
from prefect_cachewatch.config.quantities import InputModel, Quantity, Shorthand

# A cache directory in a named volume is written volume:NAME or volume:NAME/below.
VOLUME_PREFIX = "volume:"
_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_LIMIT = re.compile(r"-1|\d+(?::(?:-1|\d+))?")
# The pattern of each field of the container, and the message for any other value.
_FORMS = {
    "image": (r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*", "is not the name of an image: write it like registry/name:tag"),
    "gpus": (r"all|[1-9]\d{0,3}|device=[\w,.:-]+", "is not all, a number, or device=0,1"),
    "workdir": (r"(?s)/.*", "is not an absolute path in the container"),
}


def _parse_memory(text: str) -> int:
    """Read a size as docker run does: there 16g means 16GiB."""
    return parse_bytes(re.sub(r"(?<=[0-9. ])([kmgt])\s*$", r"\1iB", text, flags=re.IGNORECASE))


_Memory = Annotated[int | None, Quantity("size", _parse_memory, SIZE_PATTERN)]
Limit = Annotated[int | str, Field(union_mode="left_to_right")]


class _InSchema(Shorthand):
    """A shorthand that the schema tells of: Prefect checks parameters against it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [super().__get_pydantic_json_schema__(schema, handler), {"type": "string"}]}


class ContainerMount(_InSchema):
    """A host directory or a named volume inside the container; also written SOURCE:TARGET[:ro]."""

    source: str = Field(min_length=1, description="Absolute host path (a bind mount), or the name of a volume.")
    target: str = Field(description="Absolute path in the container.")
    read_only: bool = Field(default=False, description="Whether the container may only read it.")

    @property
    def is_volume(self) -> bool:
        """Whether the source is a named volume rather than a host path."""
        return not self.source.startswith("/")

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        parts = text.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
            raise ValueError(f"{text!r} is not SOURCE:TARGET or SOURCE:TARGET:ro")
        return {"source": parts[0], "target": parts[1], "read_only": parts[2:] == ["ro"]}

    @model_validator(mode="after")
    def _sound(self) -> ContainerMount:
        if self.is_volume and not _VOLUME_NAME.fullmatch(self.source):
            raise ValueError(f"{self.source!r} is neither an absolute path nor the name of a volume")
        if not self.target.startswith("/") or self.target == "/":
            raise ValueError(f"mount target {self.target!r} is not an absolute path below /")
        if "\0" in self.source + self.target:
            raise ValueError("a mount has a NUL character in it")
        return self


class DeviceMapping(_InSchema):
    """A device of the host inside the container; also written HOST[:CONTAINER[:rwm]]."""

    host: str = Field(description="Path of the device, or of a directory of devices such as /dev/tenstorrent.")
    container: str = Field(default="", description="Path in the container; default the same.")
    permissions: str = Field(default="rwm", pattern=r"^r?w?m?$", min_length=1, description="Any of r, w and m.")

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        parts = text.split(":")
        if len(parts) > 3:
            raise ValueError(f"{text!r} is not DEVICE, DEVICE:TARGET or DEVICE:TARGET:rwm")
        return dict(zip(("host", "container", "permissions"), parts, strict=False))

    @model_validator(mode="after")
    def _sound(self) -> DeviceMapping:
        by_name = "=" in self.host  # a CDI name such as nvidia.com/gpu=all
        if not by_name and not self.host.startswith("/dev/"):
            raise ValueError(
                f"device {self.host!r} is not a path below /dev, nor a CDI name such as nvidia.com/gpu=all"
            )
        if self.container and not self.container.startswith("/"):
            raise ValueError(f"device target {self.container!r} is not an absolute path")
        return self


class ContainerSpec(InputModel):
    """The container that a job's generator runs in; `privileged` and the host's pid namespace are not offered."""

    ADVANCED = ("ulimits", "init")

    image: str = Field(
        min_length=1,
        max_length=500,
        description="Image to run the command in; it inherits no environment. For example ghcr.io/org/server:1.2.",
    )
    entrypoint: list[str] | None = Field(
        default=None, description="Replaces the image's entry point; the job's command follows it as arguments."
    )
    mounts: list[ContainerMount] = Field(
        default_factory=list,
        max_length=256,
        description="Host directories and named volumes; as SOURCE:TARGET[:ro] or in fields. A cache directory that no "
        "mount covers is mounted read-write at its own path.",
    )
    devices: list[DeviceMapping] = Field(
        default_factory=list, max_length=256, description="Devices, for example /dev/tenstorrent."
    )
    gpus: str | None = Field(
        default=None,
        description="As docker run --gpus: all, a number, or device=0,1.",
    )
    shm_size_bytes: _Memory = Field(default=None, ge=4096, le=2**50, description="Size of /dev/shm.")
    ulimits: dict[str, Limit] = Field(
        default_factory=dict, description="Limit name to LIMIT or SOFT:HARD, for example memlock: -1; -1 is unlimited."
    )
    user: str | None = Field(default=None, min_length=1, description="USER or UID, with :GROUP or :GID if wanted.")
    network: str | None = Field(default=None, min_length=1, description="Network: bridge, none, host, or one's name.")
    ports: list[str] = Field(
        default_factory=list,
        max_length=64,
        description="Ports of the container on this host, as [ADDRESS:]HOST:CONTAINER; without an address, loopback only.",
    )
    workdir: str | None = Field(default=None, description="Working directory in the container; default the image's.")
    memory_bytes: _Memory = Field(
        default=None, ge=6 << 20, le=2**50, description="Memory limit; beyond it the kernel kills the generator."
    )
    init: bool = Field(
        default=False,
        description="Run the engine's small init as process 1, which passes SIGTERM on; a shell as process 1 ignores it.",
    )
    pull: Literal["missing", "always", "never"] = Field(default="missing", description="When the image is pulled.")

    @field_validator(*_FORMS)
    @classmethod
    def _well_formed(cls, text: str | None, info: ValidationInfo) -> str | None:
        pattern, complaint = _FORMS[str(info.field_name)]
        if text is not None and not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {complaint}")
        return text

    @field_validator("ulimits")
    @classmethod
    def _limits(cls, limits: dict[str, int | str]) -> dict[str, int | str]:
        for name, limit in limits.items():
            if not re.fullmatch(r"[a-z]+", name) or not _LIMIT.fullmatch(str(limit)):
                raise ValueError(f"{name}={limit} is not a limit: write NAME=LIMIT or NAME=SOFT:HARD, as in memlock=-1")
        return limits

    @field_validator("ports")
    @classmethod
    def _ports(cls, ports: list[str]) -> list[str]:
        for port in ports:
            found = re.fullmatch(r"(?:(?:\d{1,3}\.){3}\d{1,3}:|\[[0-9a-fA-F:]+\]:)?(\d{1,5}):(\d{1,5})", port)
            if not found or not all(0 < int(number) < 65536 for number in found.groups()):
                raise ValueError(f"{port!r} is not [ADDRESS:]HOST:CONTAINER, as in 8000:8000")
        return ports

    @model_validator(mode="after")
    def _fits_together(self) -> ContainerSpec:
        targets = [mount.target.rstrip("/") for mount in self.mounts]
        for target in targets:
            if targets.count(target) > 1:
                raise ValueError(f"two mounts have the target {target}: leave one out")
        if self.ports and self.network in ("host", "none"):
            raise ValueError(
                f"ports are published on a network of the container's own, and the network is {self.network}"
            )
        return self
