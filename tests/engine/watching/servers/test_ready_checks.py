"""The looks at an address, a port, a marker and the output, against real servers and files."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.config import CacheJob, ReadyOnFile, ReadyOnHttp, ReadyOnLog, ReadyOnTcp, StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.health import HealthCheck, check_health
from prefect_cachewatch.watching.matcher import PatternMatcher
from prefect_cachewatch.watching.servers.checks import FileCheck, HttpCheck, LogCheck, ReadyCheck
from prefect_cachewatch.watching.servers.serving import ServerReadiness
from support import eventually


class Answers(http.server.BaseHTTPRequestHandler):
    """/200, /503, ...: that status; /redirect: to /200; and worse."""

    def do_GET(self) -> None:
        name = self.path.strip("/")
        stopped: threading.Event = self.server.stopped  # type: ignore[attr-defined]
        if name == "drip-headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            with contextlib.suppress(OSError):
                while not stopped.wait(0.05):
                    self.wfile.write(b"x")
            return
        if name.startswith("round"):
            self.send_response(302)
            self.send_header("Location", f"/{name}x")
            self.end_headers()
            return
        self.send_response(int(name) if name.isdigit() else 302 if name == "redirect" else 200)
        if name == "redirect":
            self.send_header("Location", "/200")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stopped.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def look(url: str, timeout_s: float = 5) -> str | None:
    check = HttpCheck(ReadyOnHttp(url=url), timeout_s)
    try:
        return check.look()
    finally:
        check.close()


def test_a_redirect_is_an_answer_and_is_not_followed(address: str):
    assert look(f"{address}/redirect") == "answered 302"


def eventually_no_thread(name: str) -> bool:
    end_s = time.monotonic() + 20
    while any(thread.name == name for thread in threading.enumerate()):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("path", ["drip-headers", "round"])
def test_a_health_check_ends_at_its_deadline_whatever_the_server_does(address: str, path: str):
    began_s = time.monotonic()
    found = check_health(HealthCheck(url=f"{address}/{path}", deadline_s=2, interval_s=0.2), "/mnt/x", {})
    assert not found.ok
    assert time.monotonic() - began_s < 60
    assert eventually_no_thread("cachewatch-within")


def unwell(url: str) -> str | None:
    times_s = iter([0, 0, 0, 60, 60])  # asked once, and the deadline has passed
    found = check_health(
        HealthCheck(url=url, deadline_s=60), "/mnt/x", {}, clock=lambda: next(times_s), sleep=lambda _: None
    )
    return None if found.ok else found.reason


def test_a_health_check_follows_no_redirect_either(address: str):
    assert unwell(f"{address}/redirect") == f"{address}/redirect answered 302 until the deadline of 1 minute"
    assert unwell(f"http://127.0.0.1:{(port := closed_port())}/") == (
        f"http://127.0.0.1:{port}/ did not answer (connection refused) until the deadline of 1 minute"
    )


def test_a_proxy_of_the_environment_is_not_asked_for_a_loopback_address(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert look(f"{address}/200") is None
    assert unwell(f"{address}/200") is None


def test_a_file_system_that_does_not_answer_holds_nobody_and_no_second_look_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check = FileCheck(ReadyOnFile(path=tmp_path / "marker"), "/", 0.2)
    check.begin()
    answers, looks, stat = threading.Event(), list[object](), os.stat

    def hang(path: str) -> os.stat_result:
        looks.append(path)
        answers.wait(60)
        return stat(path)

    (tmp_path / "marker").touch()
    monkeypatch.setattr(os, "stat", hang)
    assert [check.look(), check.look()] == ["its file system does not answer"] * 2
    assert len(looks) == 1
    answers.set()
    assert eventually(lambda: check.look() is None)


@given(
    lines=st.lists(st.text("abr \t", max_size=12), max_size=30),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    pattern=st.sampled_from(["ab", "a +b", "^r", "[ab]{3}", "b$"]),
)
def test_it_is_found_in_pieces_if_and_only_if_it_is_in_a_line_of_the_whole(lines, cuts, pattern):
    data = "".join(f"{line}\n" for line in lines).encode()
    search, at, turn = LogCheck(ReadyOnLog(pattern=pattern)), 0, 0
    while at < len(data):
        search.feed(memoryview(data)[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert search.found == any(re.search(pattern, line) for line in lines)


# Each takes hours to end without a limit.
@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(?:a|a)*[bc]", "a" * 60), ("(x+x+)+[yz]", "x" * 4000), ("^(.*?,){20}P", "1,2,3,4,5,6,7,8,9,10,11,12,13" * 50)],
)
def test_a_pattern_that_takes_for_ever_ends_at_its_limit_and_another_line_is_still_searched(pattern, text):
    matcher, began_s = PatternMatcher(pattern, "ready"), time.thread_time()
    assert not matcher.search(f"{text}\nno\n{text}".encode())
    assert time.thread_time() - began_s < 60
    assert "takes too long to search for, and what took so long counts as not matched" in (matcher.problem or "")
    assert matcher.search(f"{text}\nready".encode())


def test_a_pattern_that_was_late_eight_times_is_not_searched_for_any_more():
    matcher = PatternMatcher("(?:a|a)*[bc]")
    for _ in range(8):
        assert not matcher.search(b"a" * 60)
    assert "it is not searched for any more" in (matcher.problem or "")
    assert not matcher.search(b"b")


def test_a_secret_in_an_address_is_not_shown():
    assert "0123456789abcdef" not in HttpCheck(ReadyOnHttp(url="http://h/health?api_key=0123456789abcdef")).what


class Scripted(ReadyCheck):
    """A check that answers from a list."""

    what, never = "127.0.0.1:8000", "never took a connection"

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def look(self) -> str | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_check_that_hangs_holds_neither_the_caller_nor_its_end():
    class Hangs(Scripted):
        def look(self) -> str | None:
            forever.wait(30)
            return "late"

    forever = threading.Event()
    waiting = serving("stop", Hangs(None))
    began_s = time.monotonic()
    waiting.start(Supervised(), lambda _: None)
    waiting.cancel()
    assert time.monotonic() - began_s < 60
    forever.set()
    waiting.finish(None)


class Supervised:
    """As much of a supervisor as a decision needs."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.stops = 0

    def stop(self, grace_s: float | None = None) -> None:
        self.stops += 1


def serving(then: str, check: ReadyCheck) -> ServerReadiness:
    ready = ReadyOnTcp(port=8000, then=then)
    job = CacheJob(name="x", command=["serve"], cache_dirs=["/mnt/x"], ready=ready)
    return ServerReadiness(job, StallPolicy(), "/mnt/x", check=check)


def ready_now(one: ServerReadiness, supervisor: Supervised, hand_over: Any) -> None:
    one._became_ready(supervisor, hand_over)


def test_whoever_decides_first_decides():
    stalled, ready, supervisor = (
        serving("leave_running", Scripted(None)),
        serving("leave_running", Scripted(None)),
        Supervised(),
    )
    assert stalled.claim_end()
    ready_now(stalled, supervisor, lambda _: pytest.fail("it had been decided to stop it"))
    assert stalled.ready_s is None
    handed: list[str] = []
    ready_now(ready, supervisor, handed.append)
    assert handed == ["127.0.0.1:8000"]
    assert not ready.claim_end()


def test_a_hand_over_that_fails_stops_the_server():
    one, supervisor = serving("leave_running", Scripted(None)), Supervised()

    def fails(_: str) -> None:
        raise InputError("the record cannot be written")

    ready_now(one, supervisor, fails)
    assert supervisor.stops == 1
    outcome = one.conclude(None, "1 GiB in /mnt/x", 10)
    assert outcome is not None
    assert outcome[0] == "failed"
    assert "could not be handed over (the record cannot be written) and was stopped" in outcome[1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_while_the_looking_begins_ends_it_and_raises_nothing(monkeypatch, when):
    begin = threading.Thread.start
    waiting = serving("stop", Scripted(*["no"] * 1000))

    def start(thread: threading.Thread) -> None:
        if when == "before":
            waiting.cancel()
        begin(thread)
        if when == "after":
            waiting.cancel()

    monkeypatch.setattr(threading.Thread, "start", start)
    waiting.start(Supervised(), lambda _: None)
    monkeypatch.undo()
    waiting.settle()
    assert not any(thread.name == "cachewatch-ready" for thread in threading.enumerate())
