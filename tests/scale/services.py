"""PostgreSQL, Redis, a Prefect server on both, and process workers: real ones, on loopback, ended by pid.

Each dies with the process that started it (PDEATHSIG, set by setpriv), so that nothing is left where even `close` is not reached.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import httpx

from tests.prefect_server import free_port

BIN = Path(sys.executable).parent
POOL = "scale"


class MissingPart(Exception):
    """A program or package that the test needs is not installed; the message names it."""


def find_parts() -> dict[str, str]:
    """Find the programs that the test needs.

    Returns:
        Their paths by name.

    Raises:
        MissingPart: one is missing.
    """
    places = [os.environ.get("PATH", ""), *sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    found = {}
    wanted = {"initdb": "postgresql", "postgres": "postgresql", "redis-server": "redis-server", "setpriv": "util-linux"}
    for name, package in wanted.items():
        path = shutil.which(name, path=os.pathsep.join(places))
        if path is None:
            raise MissingPart(f"{name} is not installed: apt install {package}")
        found[name] = path  # not resolved: redis-server is redis-check-rdb by another name
    try:
        import prefect_redis  # noqa: F401
    except ImportError:
        raise MissingPart("prefect-redis is not installed: pip install 'prefect-cachewatch[scale]'") from None
    return found


class Stack:
    """The services of one test, in a directory of their own.

    Args:
        server_settings: Prefect settings of the server, on top of what a server on PostgreSQL and Redis needs.
        client_settings: the same for workers, and through them the runs.
    """

    def __init__(self, server_settings: dict[str, str], client_settings: dict[str, str]) -> None:
        self.parts = find_parts()
        self.root = Path(tempfile.mkdtemp(prefix="cachewatch-scale-"))
        self.root.chmod(0o711)  # PostgreSQL refuses root, and its user must come through
        self.home = self.root / "prefect"
        self.home.mkdir(mode=0o700)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._password = secrets.token_hex(16)
        # Modules are found compiled, as where they are installed.
        away = ("PREFECT", "CACHEWATCH", "PYTHONDONTWRITEBYTECODE")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(away)}
        self.client_env = clean | {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.url,
            "PREFECT_CLI_PROMPT": "false",
            "DO_NOT_TRACK": "1",
            "CACHEWATCH_STATE": str(self.root / "state"),
            **client_settings,
        }
        self._server_settings = server_settings
        self._redis_port = self._postgres_port = 0

    @property
    def mark(self) -> bytes:
        """What every process of the test carries in its environment, whoever started it."""
        return f"PREFECT_HOME={self.home}".encode()

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def database_url(self) -> str:
        return f"postgresql://prefect:{self._password}@127.0.0.1:{self._postgres_port}/postgres"

    def start(self) -> None:
        """Start PostgreSQL, Redis and the server; returns when the API answers."""
        self._start_postgres()
        self._start_redis()
        self.start_server()

    def _start_postgres(self) -> None:
        data, words = self.root / "postgres", self.root / "pw"
        data.mkdir(mode=0o700)
        words.write_text(self._password)
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = _unprivileged()
            who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (data, words):
                os.chown(path, user.pw_uid, user.pw_gid)
        words.chmod(0o600)
        argv = [self.parts["initdb"], "-D", str(data), "-U", "prefect", "-A", "scram-sha-256", "--pwfile", str(words)]
        done = subprocess.run(
            [*argv, "-E", "UTF8", "--locale", "C"], cwd=data, env={}, capture_output=True, text=True, timeout=120, **who
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr[-1000:]}")
        words.unlink()
        self._postgres_port = free_port()
        options = {"listen_addresses": "127.0.0.1", "port": self._postgres_port, "unix_socket_directories": ""}
        argv = [self.parts["postgres"], "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        process = self._spawn("postgres", argv, env={}, cwd=data, death="INT", **who)
        _until(lambda: _listens(self._postgres_port), 60, "PostgreSQL answers", process, self._log("postgres"))

    def _start_redis(self) -> None:
        self._redis_port = port = free_port()
        place = self.root / "redis"
        place.mkdir(mode=0o700)
        settings = f'bind 127.0.0.1\nport {port}\nrequirepass {self._password}\nsave ""\nappendonly no\ndir {place}\n'
        argv = [self.parts["redis-server"], "-"]
        # On stdin, since a password on the command line is everybody's to read.
        process = self._spawn("redis", argv, env={}, cwd=place, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(settings.encode())
        process.stdin.close()
        _until(lambda: _listens(port), 30, "Redis answers", process, self._log("redis"))

    def start_server(self) -> None:
        """Start the Prefect server, or start it again on the same port and database."""
        env = (
            self.client_env
            | self._parts_of_a_fleet()
            | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
            | self._server_settings
        )
        # At INFO uvicorn writes the access log, from which the requests are counted.
        argv = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        process = self._spawn("server", [*argv, "--log-level", "INFO"], env=env, cwd=self.home)
        _until(self._healthy, 240, "the Prefect server answers", process, self.server_log)

    def _parts_of_a_fleet(self) -> dict[str, str]:
        """Name the server's settings for PostgreSQL and Redis."""
        redis = f"redis://:{self._password}@127.0.0.1:{self._redis_port}"
        return {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database_url.replace("postgresql", "postgresql+asyncpg", 1),
            "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
            "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
            "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
            "PREFECT_REDIS_MESSAGING_URL": f"{redis}/0",
            "PREFECT_SERVER_DOCKET_URL": f"{redis}/1",
        }

    def _healthy(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health?by=scale", timeout=5).status_code == 200
        return False

    def stop_server(self) -> None:
        """End the server as a service manager does: SIGTERM, and SIGKILL only if it will not go."""
        end(self.processes.pop("server"), 60)

    def start_worker(self, name: str, limit: int) -> subprocess.Popen[bytes]:
        """Start a process worker with a limit of runs at once."""
        argv = [str(BIN / "prefect"), "worker", "start", "--pool", POOL, "--type", "process", "--name", name]
        return self._spawn(name, [*argv, "--limit", str(limit)], env=self.client_env, cwd=self.home)

    def prefect(self, *words: str) -> None:
        """Run a `prefect` command against the server."""
        done = subprocess.run(
            [str(BIN / "prefect"), *words],
            env=self.client_env, cwd=self.root, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"prefect {' '.join(words)} failed: {done.stdout}{done.stderr}")

    def marked(self) -> list[int]:
        """List the living processes that carry the test's mark, the services themselves among them."""
        return [pid for pid in _pids() if self.mark in environ_of(pid)]

    def _log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def _spawn(
        self, name: str, argv: Sequence[str], *, env: dict[str, str], cwd: Path, death: str = "TERM", **more: Any
    ) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, **more}
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                [self.parts["setpriv"], "--pdeathsig", death, "--", *argv],
                env=env, cwd=cwd, stdout=log, stderr=log, start_new_session=True, **options,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def count_leases(self) -> int:
        """Count the leases of concurrency limits that Redis has."""
        import redis  # comes with prefect-redis, which may be missing

        with redis.Redis(port=self._redis_port, password=self._password, socket_timeout=10) as client:
            return int(client.zcard("prefect:concurrency:expirations"))

    def close(self) -> None:
        """End everything of the test by its pid, the runs' processes too; its directory stays."""
        services = {self.processes[name].pid for name in ("postgres", "redis", "server") if name in self.processes}
        for name in [name for name in self.processes if self.processes[name].pid not in services]:
            worker = self.processes.pop(name)
            worker.kill()  # asked to end, it would wait for its runs
            worker.wait(20)
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline_s = time.monotonic() + 15
            while (left := set(self.marked()) - services) and time.monotonic() < deadline_s:
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                time.sleep(0.5)
        for name, number in (("server", signal.SIGTERM), ("redis", signal.SIGTERM), ("postgres", signal.SIGINT)):
            if name in self.processes:
                end(self.processes.pop(name), 30, number)


def end(process: subprocess.Popen[bytes], within_s: float = 20, number: int = signal.SIGTERM) -> None:
    """End a process by its pid."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(20)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise MissingPart("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2):
        return True
    return False


def _until(look: Callable[[], bool], timeout_s: float, what: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not look():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"{what}: not within {timeout_s:g} s; {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.3)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environ_of(pid: int) -> bytes:
    """Read the environment that a process was started with; empty if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""
