"""Finds Docker's or podman's socket and opens the docker SDK's client on it; each refusal is one sentence.

The SDK comes with the extra `docker`, takes a tenth of a second, and is imported only where an engine is asked.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

#: An engine that hangs delays each request that long and no longer.
CALL_S = 5.0
#: A busy engine takes its time to make a container.
MAKE_S = 120.0
#: The version of the API that the requests need; each engine is spoken to in its own.
API_VERSION = "1.40"
#: The most characters of an engine's words that a person is shown.
SHOWN_MAX = 400
_PING_S = 20.0


def sdk() -> Any:
    """Import the docker SDK.

    Returns:
        The module.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("docker")
    except ImportError:
        raise InputError(
            "a job with a container needs the docker SDK, which is not installed: "
            "pip install 'prefect-cachewatch[docker]'"
        ) from None


def engine_candidates() -> list[str]:
    """List the engines to try, in order; one that a variable names is the only one.

    Returns:
        URLs.

    Raises:
        InputError: DOCKER_HOST or CONTAINER_HOST names an engine with an unsupported transport.
    """
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        if url := os.environ.get(variable):
            if not url.startswith("unix:///"):
                raise InputError(
                    f"{variable} is {for_terminal(redact(url))}, and a cache is measured on this host: name an engine of this "
                    f"host by its socket, as in {variable}=unix:///var/run/docker.sock"
                )
            return [url]
    uid = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    own = [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    paths = ["/var/run/docker.sock", *([] if uid == 0 else own), "/run/podman/podman.sock"]
    return [f"unix://{path}" for path in paths]


def find_engine() -> str:
    """Find the first engine that answers.

    Returns:
        Its URL.

    Raises:
        InputError: no engine answers; the message lists those that were tried and their answers.
    """
    sdk()
    tried = []
    for url in engine_candidates():
        try:
            ping(url, _PING_S)
            return url
        except failures() as error:
            tried.append(f"{url}: {reason_of(error)}")
    raise InputError(
        f"no container engine answers (tried {'; '.join(tried)}): start Docker, or podman's service with "
        "`systemctl start podman.socket`, or name its socket with DOCKER_HOST"
    )


def find_image_id(image: str) -> str:
    """Ask the first engine that answers for the identifier of an image; empty if it has none, or none answers.

    Args:
        image: its name.
    """
    with suppress(InputError, *failures()), closing(connect(find_engine())) as client:
        return str(client.inspect_image(image).get("Id") or "")
    return ""


def ping(url: str, timeout_s: float) -> tuple[str, bool]:
    """Ping an engine; return its version of Docker's API, and whether it is podman.

    Not the version request: for that podman asks the package manager, which takes seconds on a busy machine.

    Args:
        url: `unix:///path`.
        timeout_s: the longest wait.
    """
    with socket.socket(socket.AF_UNIX) as probe:  # its own reason, and no SDK, where there is no engine
        probe.settimeout(timeout_s)
        probe.connect(url.removeprefix("unix://"))
    with closing(sdk().APIClient(base_url=url, version=API_VERSION, timeout=timeout_s)) as client:
        answer = client.get(f"{client.base_url}/_ping", timeout=timeout_s)
        answer.raise_for_status()
    return answer.headers.get("Api-Version") or API_VERSION, "Libpod-API-Version" in answer.headers


def connect(url: str, timeout_s: float = CALL_S) -> Any:
    """Open the SDK's low-level client for an engine that answers.

    Args:
        url: `unix:///path`.
        timeout_s: the longest wait for each answer; the client's `timeout`.

    Returns:
        A `docker.APIClient`; the caller closes it.

    Raises:
        OSError: the engine does not answer; see `failures`.
    """
    version, _ = ping(url, timeout_s)
    return sdk().APIClient(base_url=url, version=version, timeout=timeout_s)


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a request: the SDK's own, and its transport's, which are OSErrors."""
    try:
        return sdk().errors.DockerException, OSError
    except InputError:
        return (OSError,)


@contextmanager
def engine_errors(url: str, what: str) -> Iterator[None]:
    """Turn the SDK's exceptions into one sentence.

    Args:
        url: of the engine.
        what: the end of the sentence "could not ...".

    Raises:
        InputError: the engine refused, or did not answer.
    """
    try:
        yield
    except failures() as error:
        raise InputError(f"the container engine at {url} could not {what}: {reason_of(error)}") from error


def reason_of(error: BaseException, most: int = SHOWN_MAX) -> str:
    """Return the engine's own words, else the innermost reason of the transport's error; harmless for a terminal.

    Args:
        error: of a request.
        most: the most characters of the engine's words.
    """
    if explanation := getattr(error, "explanation", None):
        return for_terminal(redact(str(explanation).strip().rstrip(".")), most)
    if isinstance(error, InputError):  # it is a sentence already
        return error.message
    inner = error
    while (deeper := inner.__cause__ or inner.__context__) is not None:
        inner = deeper
    if isinstance(inner, TimeoutError) or "timed out" in str(inner).lower():
        return "it does not answer"
    return (inner.strerror if isinstance(inner, OSError) else "") or for_terminal(
        redact(str(inner) or repr(inner)), 300
    )
