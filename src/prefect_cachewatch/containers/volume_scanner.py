"""Measures a volume that this user may not read: runs the scan process in a read-only helper container.

Requests and answers are the same as on this host, over the helper's standard streams. The helper has the volumes
mounted read-only, no network, and a copy of this package's scan process. Any failure of it (the engine is away, the
image has no Python) counts as a failed scan: blindness, never zero bytes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import socket
import tarfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect_cachewatch.containers.engine import EngineAddress, engine_errors, open_client, whole_frames
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.run_records import labels_of_run
from prefect_cachewatch.errors import InputError, ScanError
from prefect_cachewatch.measure.scanner import MIN_DEADLINE_S, DirectoryScanner
from prefect_cachewatch.supervise.helper_client import IMPORT_FROM

_CALL_S = 30.0
_CHUNK = 1 << 18
_NEEDED = (3, 11)
_MAIN = (
    "import json,sys\n"
    f"if sys.version_info<{_NEEDED}:\n"
    " print(json.dumps({'failure':'python3 of the image is %d.%d, and measuring needs "
    f"{_NEEDED[0]}.{_NEEDED[1]}'%sys.version_info[:2]}}),flush=True);sys.exit(1)\n"
    "sys.path.append('/cachewatch')\n"
    "from prefect_cachewatch.measure.scan_process import main\n"
    "main(0,1)\n"
)


class VolumeScanner(DirectoryScanner):
    """A scan process in a helper container; a thread makes and talks to it, so that no engine blocks the caller.

    Args:
        engine: the one that has the volumes.
        image: of the helper, with python3.
        volumes: name to path, which is also its mount point in the helper.
        deadline_s: the shortest time after which a scan counts as not answering.
    """

    def __init__(
        self, engine: EngineAddress, image: str, volumes: Mapping[str, str], deadline_s: float = MIN_DEADLINE_S
    ) -> None:
        super().__init__(deadline_s)
        self._engine, self._image, self._volumes = engine, image, dict(volumes)
        self._problem: str | None = None
        self._relay: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """None: the scan process does not run on this host."""
        return None

    def start(self) -> None:
        """Start making the helper, if there is none yet; does not wait for it."""
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket, self._buffer, self.pending, self._problem = ours, b"", False, None
        self._relay = threading.Thread(target=self._serve, args=(theirs,), name="cachewatch-volume", daemon=True)
        self._relay.start()

    def send(self, operation: str, **arguments: Any) -> None:
        """Send a request without waiting; directories are never created or cleaned from here."""
        if operation == "check":
            arguments |= {"create": False, "writable": False}
        super().send(operation, **arguments)

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to the pending request; see `DirectoryScanner.receive`."""
        try:
            return super().receive(timeout_s)
        except ScanError as error:
            if self._problem is not None and not self.pending:
                raise ScanError(self._problem) from error
            raise

    def request(self, operation: str, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; the first request may also wait for the helper."""
        if self._socket is None:
            timeout_s = 2 * _CALL_S + (self.deadline_s if timeout_s is None else timeout_s)
        return super().request(operation, timeout_s, **arguments)

    def close(self) -> None:
        """Let the helper end and have it removed, without waiting for an engine that hangs."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._relay is not None:
            self._relay.join(5.0)
            self._relay = None

    def _serve(self, theirs: socket.socket) -> None:
        container = None
        with theirs:
            try:
                client = open_client(self._engine, _CALL_S)
                with (
                    contextlib.closing(client),
                    engine_errors(self._engine, f"measure from a container of {self._image}"),
                ):
                    container = str(client.create_container_from_config(self._request(), None)["Id"])
                    client.put_archive(container, "/", _package())
                    streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                    attached = client.attach_socket(container, streams)
                    client.start(container)
                    self._pass_on(theirs, attached)
                    raw = getattr(attached, "_sock", None)
                    attached.close()
                    if raw is not None:
                        raw.close()
            except InputError as error:
                self._problem = (
                    f"{error.message} (an image with python3 can be named with measure_image, --measure-image)"
                )
            except OSError as error:
                self._problem = f"the helper container went away: {error.strerror or error}"
        if container is not None:
            with contextlib.suppress(EngineSilent, EngineRefused):
                EngineHttp(self._engine.url).remove(container, _CALL_S)

    def _request(self) -> dict[str, Any]:
        mounts = [
            {"Type": "volume", "Source": name, "Target": path, "ReadOnly": True} for name, path in self._volumes.items()
        ]
        return {
            "Image": self._image,
            "Entrypoint": ["python3"],
            "Cmd": ["-I", "-S", "-c", _MAIN],
            "User": "0:0",  # so that the files of any owner can be measured
            "Labels": labels_of_run(uuid.uuid4().hex, "measure", [os.getpid()]),
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "OpenStdin": True,
            "StdinOnce": True,
            "Tty": False,
            "HostConfig": {
                "AutoRemove": True,  # it ends with its standard input, even if this process is killed
                "NetworkMode": "none",
                "Mounts": mounts,
                "CapDrop": ["ALL"],
                "CapAdd": ["DAC_READ_SEARCH"],
                "SecurityOpt": ["no-new-privileges"],
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            },
        }

    def _pass_on(self, theirs: socket.socket, attached: Any) -> None:
        """Copy requests to the helper's standard input and its frames of standard output back, until one side ends."""
        fd, buffer, complaint = attached.fileno(), bytearray(), bytearray()
        poll = select.poll()
        poll.register(theirs, select.POLLIN)
        poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if theirs.fileno() in ready:
                data = theirs.recv(_CHUNK)
                if not data:
                    return
                _write_all(fd, data)
            if fd in ready:
                try:
                    chunk = os.read(fd, _CHUNK)
                except BlockingIOError:
                    continue
                if not chunk:
                    last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
                    self._problem = "the helper container ended" + (f": {last[:200]}" if last else "")
                    return
                buffer += chunk
                for stream, payload in whole_frames(buffer):
                    if stream == 2:
                        complaint = (complaint + payload)[-4096:]
                    else:
                        theirs.sendall(payload)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)


@functools.cache  # a later helper of the run gets the same, whatever has become of the files
def _package() -> bytes:
    """Pack this installation's modules of the scan process for the helper."""
    parent = Path(IMPORT_FROM)
    here = parent / "prefect_cachewatch"
    files = [here / "__init__.py", *(here / "common").glob("*.py"), *(here / "measure").glob("*.py")]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in files:
            entry = tarfile.TarInfo(f"cachewatch/{path.relative_to(parent)}")
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
