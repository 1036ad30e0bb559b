"""Finds Docker's or podman's socket and opens the docker SDK's client on it.

Every refusal is one sentence that lists what was tried. The SDK comes with the extra `docker`.
"""

from __future__ import annotations

import importlib
import os
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.errors import InputError

CALL_S = 20.0
_HEADER_BYTES = 8
_NEW_CONTAINER_S = 120.0


@dataclass(frozen=True)
class EngineAddress:
    """An engine's URL, its source (engine, DOCKER_HOST, CONTAINER_HOST or default), and its answer."""

    url: str
    source: str
    api_version: str = ""
    is_podman: bool = False

    @property
    def is_local(self) -> bool:
        """Whether its host paths are this machine's."""
        return self.url.startswith("unix://")

    def __str__(self) -> str:
        return self.url if self.source == "default" else f"{self.url} ({self.source})"


def sdk() -> Any:
    """Import the docker SDK.

    Returns:
        The module.

    Raises:
        InputError: it is not installed.
    """
    try:
        importlib.import_module("docker.errors")  # an extra, and half a second
        return importlib.import_module("docker")
    except ImportError:
        raise InputError(
            "a job with a container needs the docker SDK, which is not installed: "
            "pip install 'prefect-cachewatch[docker]'"
        ) from None


def engine_candidates(environ: Mapping[str, str] | None = None, uid: int | None = None) -> list[EngineAddress]:
    """List the engines to try, in order; one that a variable names is the only one.

    Args:
        environ: default `os.environ`.
        uid: default this user's.

    Returns:
        Addresses.

    Raises:
        InputError: DOCKER_HOST or CONTAINER_HOST names an engine with an unsupported transport.

    Example:
        >>> [str(one) for one in engine_candidates({"DOCKER_HOST": "unix:///tmp/x.sock"})]
        ['unix:///tmp/x.sock (DOCKER_HOST)']
    """
    env = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        if url := env.get(variable):
            if not url.startswith(("unix:///", "tcp://")) or (
                url.startswith("tcp://") and env.get("DOCKER_TLS_VERIFY")
            ):
                raise InputError(
                    f"{variable} is {for_terminal(redact(url))}, and an engine is spoken to over unix:// or plain tcp://: "
                    "forward its socket, as in ssh -L /tmp/engine.sock:/var/run/docker.sock HOST, and set "
                    f"{variable}=unix:///tmp/engine.sock"
                )
            return [EngineAddress(url, variable)]
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    own = [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    paths = ["/var/run/docker.sock", *([] if uid == 0 else own), "/run/podman/podman.sock"]
    return [EngineAddress(f"unix://{path}", "default") for path in paths]


def find_engine() -> EngineAddress:
    """Find the first engine that answers.

    Returns:
        Its address.

    Raises:
        InputError: no engine answers; the message lists those that were tried and their answers.
    """
    sdk()
    tried = []
    for address in engine_candidates():
        try:
            # Not the version request: for that podman asks the package manager, which takes seconds on a busy machine.
            api_version, is_podman = EngineHttp(address.url).ping(CALL_S)
        except (EngineSilent, EngineRefused) as error:
            tried.append(f"{address}: {error}")
            continue
        return replace(address, api_version=api_version, is_podman=is_podman)
    raise InputError(
        f"no container engine answers (tried {'; '.join(tried)}): start Docker, or podman's service with "
        "`systemctl start podman.socket`, or name its socket with DOCKER_HOST"
    )


def find_image_id(image: str) -> str:
    """Ask the first engine that answers for the identifier of an image; empty if it has none, or none answers.

    Args:
        image: its name.
    """
    for address in engine_candidates():
        path = f"/images/{urllib.parse.quote(image, safe='/:@')}/json"
        try:
            found = EngineHttp(address.url).call("GET", path, CALL_S)
        except EngineSilent:
            continue
        except EngineRefused:
            return ""
        return str(found.get("Id") or "") if isinstance(found, dict) else ""
    return ""


def open_client(address: EngineAddress, timeout_s: float = _NEW_CONTAINER_S) -> Any:
    """Open the SDK's low-level client.

    Args:
        address: of the engine.
        timeout_s: the longest wait for an answer.

    Returns:
        A `docker.APIClient`; the caller closes it.

    Raises:
        InputError: the engine does not answer.
    """
    docker = sdk()
    with engine_errors(address, "be reached"):
        return docker.APIClient(base_url=address.url, version=address.api_version or "auto", timeout=timeout_s)


@contextmanager
def engine_errors(address: EngineAddress, what: str) -> Iterator[None]:
    """Turn the SDK's exceptions into one sentence.

    Args:
        address: of the engine.
        what: the end of the sentence "could not ...".

    Raises:
        InputError: the engine refused, or did not answer.
    """
    docker = sdk()
    import requests  # noqa: PLC0415 - noqa: PLC0415 - the SDK's own transport

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise InputError(f"the container engine at {address} could not {what}: {_reason(error)}") from error


def whole_frames(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the complete frames out of the data of an attached stream.

    Args:
        buffer: frames of stream number, three zeros, length and payload; the beginning of an incomplete frame stays in
            it.

    Returns:
        Stream number (2 for standard error) and payload of each.

    Example:
        >>> buffer = bytearray(b"\\1\\0\\0\\0\\0\\0\\0\\2hi\\2")
        >>> list(whole_frames(buffer)), bytes(buffer)
        ([(1, b'hi')], b'\\x02')
    """
    while len(buffer) >= _HEADER_BYTES:
        end = _HEADER_BYTES + int.from_bytes(buffer[4:_HEADER_BYTES])
        if len(buffer) < end:
            return
        stream, payload = buffer[0], bytes(buffer[_HEADER_BYTES:end])
        del buffer[:end]
        yield stream, payload


def _reason(error: BaseException) -> str:
    """Return the engine's own words, else the innermost reason of the transport's error."""
    explanation = getattr(error, "explanation", None)
    if explanation:
        return for_terminal(redact(str(explanation).strip().rstrip(".")), 300)
    inner: BaseException = error
    while (deeper := inner.__cause__ or inner.__context__ or _wrapped(inner)) is not None:
        inner = deeper
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    if "timed out" in str(inner).lower():
        return "it does not answer"
    return for_terminal(redact(str(inner) or type(inner).__name__), 300)


def _wrapped(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return reason
    return next((part for part in error.args if isinstance(part, BaseException)), None)
