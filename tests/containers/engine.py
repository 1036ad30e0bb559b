"""A container engine of the tests' own: podman with runc, its storage and its API socket in one temporary directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import unavailable

SHELL_IMAGE = "localhost/cachewatch-test/shell:1"
SPEAKING_IMAGE = "localhost/cachewatch-test/speaks:1"  # has a command of its own
NEEDED = ("podman", "runc", "busybox", "catatonit")  # the last is the engine's init
# A sandbox may refuse to raise limits, and podman asks for more than most have.
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""
_APPLETS = "sh sleep echo cat dd mkdir find stat ls ps id env true touch seq rm yes head setsid df httpd"


@dataclass
class Service:
    """One `podman system service`."""

    url: str
    process: subprocess.Popen[bytes]

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.url.removeprefix("unix://")) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)


class Engine:
    """Podman's storage and a service on it; more services on the same storage can be started and killed."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="cw-engine-", dir="/tmp"))  # short: a socket's path has 107 bytes
        (self.home / "containers.conf").write_text(_CONFIGURATION)
        self.env = dict(os.environ) | {"CONTAINERS_CONF": str(self.home / "containers.conf")}
        self._services = 0
        self._make_root()
        self._driver = self._working_driver()
        change = 'CMD ["sh", "-c", "echo the image speaks"]'
        self.podman("import", "--change", change, self.home / "shell.tar", SPEAKING_IMAGE)
        self.main = self.start_service()

    def podman(self, *arguments: object, check: bool = True, driver: str | None = None) -> str:
        done = subprocess.run(
            [*self._command(driver or self._driver), *map(str, arguments)],
            env=self.env, check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"podman {arguments}: {done.stderr}")
        return done.stdout.strip()

    def start_service(self) -> Service:
        self._services += 1
        url = f"unix://{self.home}/{self._services}.sock"
        command = [*self._command(self._driver), "system", "service", "--time", "0", url]
        log = (self.home / f"{self._services}.log").open("wb")
        process = subprocess.Popen(command, cwd=self.home, env=self.env, stdout=log, stderr=log, start_new_session=True)
        log.close()
        service = Service(url, process)
        deadline = time.monotonic() + 60
        while not service.answers():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(
                    f"podman's service did not start: {(self.home / f'{self._services}.log').read_text()}"
                )
            time.sleep(0.1)
        return service

    def containers(self) -> list[str]:
        """All containers there are, running or not."""
        return [one["Names"][0] for one in json.loads(self.podman("ps", "-a", "--format", "json") or "[]")]

    def remove_volume(self, name: str) -> None:
        """Remove a volume once no container has it any more: one that is only just being removed is in the way."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.podman("volume", "rm", "--force", name)
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def close(self) -> None:
        self.main.process.terminate()
        self.main.process.wait(30)
        self.podman("rm", "--all", "--force", "--time", "0", check=False)
        self.podman("volume", "prune", "--force", check=False)
        with contextlib.suppress(OSError):
            for mount in Path("/proc/self/mounts").read_text().splitlines():
                if (point := mount.split()[1]).startswith(str(self.home)):
                    subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    def _command(self, driver: str) -> list[str]:
        return ["podman", "--root", f"{self.home}/storage", "--runroot", f"{self.home}/run", "--storage-driver", driver]

    def _working_driver(self) -> str:
        problems = []
        for driver in ("overlay", "vfs"):  # overlay on overlay, as in most CI containers, does not work
            try:
                self.podman("import", self.home / "shell.tar", SHELL_IMAGE, driver=driver)
                self.podman("run", "--rm", SHELL_IMAGE, "true", driver=driver)
                return driver
            except RuntimeError as error:
                problems.append(str(error))
                shutil.rmtree(self.home / "storage", ignore_errors=True)
                shutil.rmtree(self.home / "run", ignore_errors=True)
        raise RuntimeError("podman runs no container here: " + "; ".join(problems))

    def _make_root(self) -> None:
        busybox = shutil.which("busybox")
        assert busybox is not None
        with tarfile.open(self.home / "shell.tar", "w") as tar:
            for directory in ("tmp", "etc", "proc", "sys", "dev", "cache"):
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory in ("tmp", "cache") else 0o755
                tar.addfile(entry)
            tar.add(busybox, "bin/busybox")
            for applet in _APPLETS.split():
                entry = tarfile.TarInfo(f"bin/{applet}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(entry)
            plain = tarfile.TarInfo("bin/not-executable")
            plain.mode = 0o644
            tar.addfile(plain)


@contextlib.contextmanager
def an_engine() -> Iterator[Engine]:
    """An engine for some tests, which are skipped, or in CI fail, where there can be none."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        unavailable(f"needs {', '.join(missing)}: apt install podman runc catatonit busybox-static")
    if os.geteuid() != 0:
        unavailable("needs root, for an engine of the tests' own")
    engine = Engine()
    try:
        yield engine
    finally:
        engine.close()
