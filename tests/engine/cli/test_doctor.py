"""`cachewatch doctor`: how it judges what was seen, how it asks an API, and that its screen has 80 columns."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from prefect_cachewatch.cli.doctor import examine as doctor
from prefect_cachewatch.cli.doctor import render
from prefect_cachewatch.cli.doctor_checks import Check, check_engine, check_prefect, compare_versions, judge_limits
from prefect_cachewatch.cli.doctor_directory import judge
from prefect_cachewatch.common.aside import InPlace

WELL = {
    "missing": False, "filesystem": "ext4", "store": None, "read_only": False, "root_bytes": 2 << 30, "is_root": False,
    "free_bytes": 1 << 30, "total_bytes": 4 << 30, "free_inodes": 1000, "total_inodes": 2000, "block_bytes": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "subject", "state", "word"),
    [
        ({}, "cache", "ok", "1.00 GiB and 1,000 inodes free"),
        ({"missing": True}, "cache", "ok", "is made by the run"),
        ({"free_bytes": 0}, "cache", "missing", "is full"),
        ({"free_inodes": 0}, "cache", "missing", "no inode is free"),
        ({"store": "no locks"}, "store", "warning", "no locks"),
    ],
)
def test_a_directory_is_judged_by_what_was_seen_of_it(seen, subject, state, word):
    last = judge("/mnt/c", WELL | seen)[-1]
    assert (last.subject, last.state) == (subject, state)
    assert word in last.found
    assert bool(last.costs) == (state != "ok")


class Gone(InPlace):
    """The working directory has been removed."""

    def run(self, function, *arguments, timeout_s):
        raise FileNotFoundError(2, "No such file or directory")


def test_without_a_working_directory_nothing_relative_is_looked_at(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    checks = doctor(Gone(), ["relative"], with_prefect=True)
    assert [check.subject for check in checks if check.state == "missing"] == ["here"]
    assert not {"cache", "state", "Prefect"} & {check.subject for check in checks}


@pytest.mark.parametrize(("open_files", "state"), [(1024, "ok"), (-1, "ok"), (128, "warning"), (16, "missing")])
def test_limits_are_judged(open_files, state):
    check = judge_limits(open_files)
    assert check.state == state
    assert bool(check.advice) == (state != "ok")


@pytest.mark.parametrize(
    ("client", "server", "state"),
    [
        ("3.8.8", "3.8.8", "ok"),
        ("3.8.8", "3.7.5", "warning"),
        ("3.8.8", "2.20.1", "missing"),
        ("3.8.8", "a build of one's own", "ok"),
    ],
)
def test_versions_are_compared(client, server, state):
    assert compare_versions(client, server, {"url": "http://h/api"}).state == state


@contextlib.contextmanager
def asked(url: str) -> Iterator[None]:
    """Configure Prefect with an address for every thread, as the environment of a process does."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL, temporary_settings

    # In this thread the server of the session's other tests may be set, which goes before the environment.
    with pytest.MonkeyPatch.context() as patch, temporary_settings({PREFECT_API_URL: url or None}):
        patch.setenv("PREFECT_API_URL", url)
        refresh_global_settings_context()
        assert (PREFECT_API_URL.value() or "") == url
        yield
    refresh_global_settings_context()


def test_no_address_is_a_temporary_server(tmp_path):
    home = os.environ.get("PREFECT_HOME")
    with asked(""):
        check = check_prefect(str(tmp_path / "none"), 5.0)
    assert check.state == "ok"
    assert "a temporary server is started" in check.found
    assert os.environ.get("PREFECT_HOME") == home
    assert os.listdir(tmp_path) == []


def test_an_address_at_which_nothing_listens(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can
        with asked(url := f"http://127.0.0.1:{bound.getsockname()[1]}/api"):
            check = check_prefect(str(tmp_path), 60.0)
    assert check.state == "missing"
    assert check.found.startswith(f"the Prefect API at {url} cannot be reached")


def test_an_address_that_takes_connections_and_says_nothing(tmp_path):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with asked(f"http://127.0.0.1:{mute.getsockname()[1]}/api"):
            check = check_prefect(str(tmp_path), 0.1)
            mute.settimeout(60)
            mute.accept()[0].close()  # the thread that asks is left behind, and has read the address by now
    assert check.state == "missing"
    assert "has not answered within 0.1 s" in check.found


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {"/api/health": "true", "/api/admin/version": '"2.1.0"'}.get(self.path, "<html>")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def api() -> Iterator[str]:
    with serving(Api) as url:
        yield url


def test_the_version_of_an_api_and_an_address_without_its_end(tmp_path, api):
    with asked(f"{api}/api"):
        check = check_prefect(str(tmp_path), 60.0)
    assert check.state == "missing"
    assert "answers with 2.1.0" in check.found
    with asked(api):
        check = check_prefect(str(tmp_path), 60.0)
    assert "is no Prefect API" in check.found
    assert check.advice == f"an address ends with /api: try {api}/api"


class Cloud(Api):
    """Answers as Prefect Cloud: a workspace's flows for those with a key, and no version."""

    def do_GET(self):
        self.answer(200 if self.path.endswith("/health") else 404, "true")

    def do_POST(self):
        known = self.headers.get("Authorization") == "Bearer key" and self.path.endswith("/workspaces/w/flows/filter")
        self.answer(200 if known else 401, "[]")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.wfile.write(body.encode())


def test_prefect_cloud_is_asked_for_no_version_and_refuses_a_wrong_key(tmp_path, monkeypatch):
    with serving(Cloud) as url:
        monkeypatch.setenv("PREFECT_CLOUD_API_URL", f"{url}/api")
        monkeypatch.setenv("PREFECT_API_KEY", "key")
        workspace = f"{url}/api/accounts/a/workspaces/w"
        with asked(workspace):
            check = check_prefect(str(tmp_path), 60.0)
        assert (check.state, check.facts["server"]) == ("ok", "")
        assert check.found.endswith(f"{workspace} answers")
        monkeypatch.setenv("PREFECT_API_KEY", "another")
        with asked(workspace):
            check = check_prefect(str(tmp_path), 60.0)
        assert check.state == "missing"
        assert "answers 401: check PREFECT_API_KEY" in check.found


def test_an_engine_that_is_not_there_costs_containers_only(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    check = check_engine(0.2)
    assert (check.state, check.costs) == ("warning", "generators in containers (--image)")
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    assert "DOCKER_HOST is ssh://somewhere" in check_engine(0.2).found


def test_the_screen_has_80_columns_and_at_most_24_lines():
    well = [Check(f"well{number}", "ok", "x" * 70) for number in range(20)]
    long = Check("cache", "missing", f"/mnt/{'d' * 300}: no", "every run there", "make it writable")
    few, many = render([well[0], long]), render([*well, long, Check("py-spy", "warning", "no", "stacks", "pip")])
    assert max(map(len, [*few, *many])) <= 80
    assert len(many) <= 24
    assert many[0].startswith("ok   ")
    assert "well19" in "\n".join(many)
    assert few[-1] == many[-1] == "A run would not work: cache."
    assert render([well[0]])[-1] == "A run would work."
    assert render([Check("py-spy", "warning", "no", "stacks", "pip")])[-1] == "A run would work, with 1 warning."
