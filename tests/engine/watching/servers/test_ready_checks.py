"""The looks at an address, a port, a marker and the output, against real servers and files."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.config import CacheJob, ReadyOnHttp, ReadyOnTcp, StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.snapshot import compile_ignore
from prefect_cachewatch.publish.health import HealthCheck, check_health
from prefect_cachewatch.watching import matcher
from prefect_cachewatch.watching.matcher import PatternMatcher
from prefect_cachewatch.watching.servers.checks import (
    FileCheck,
    HttpCheck,
    LogSearch,
    TcpCheck,
    describe_wanted,
)
from prefect_cachewatch.watching.servers.serving import ReadyWatch, ServerReadiness


class Answers(http.server.BaseHTTPRequestHandler):
    """/200, /503, ...: that status; /redirect: to /200; and worse."""

    def do_GET(self) -> None:
        name = self.path.strip("/")
        stopped: threading.Event = self.server.stopped  # type: ignore[attr-defined]
        if name == "drip-headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            with contextlib.suppress(OSError):
                while not stopped.wait(0.05):
                    self.wfile.write(b"X-More: x\r\n" if self.headers["User-Agent"] == "lines" else b"x")
            return
        if name.startswith("round"):
            self.send_response(302)
            self.send_header("Location", f"/{name}x")
            self.end_headers()
            return
        if name == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(10 << 30))
            self.end_headers()
            with contextlib.suppress(OSError):
                while not stopped.is_set():
                    self.wfile.write(b"x" * 65536)
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


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


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


@pytest.mark.campaign
def test_headers_that_never_end_take_no_longer_than_a_look_may(address: str):
    check = HttpCheck(ReadyOnHttp(url=f"{address}/drip-headers"), 0.5)
    for _ in range(6):  # what was asked before is cut, so that the next look is a new one
        began_s = time.monotonic()
        assert check.look() == "no answer in time"
        assert time.monotonic() - began_s < 20
    assert eventually_no_thread("cachewatch-ask")
    check.close()


def eventually_no_thread(name: str) -> bool:
    end_s = time.monotonic() + 20
    while any(thread.name == name for thread in threading.enumerate()):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def test_ten_gigabytes_of_body_are_not_read(address: str):
    assert look(f"{address}/huge") is None


@pytest.mark.parametrize("path", ["drip-headers", "round"])
def test_a_health_check_ends_at_its_deadline_whatever_the_server_does(address: str, path: str):
    began_s = time.monotonic()
    found = check_health(HealthCheck(url=f"{address}/{path}", deadline_s=2, interval_s=0.2), "/mnt/x", {})
    assert not found.ok
    assert time.monotonic() - began_s < 30
    assert eventually_no_thread("cachewatch-ask")


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


def test_a_server_that_takes_connections_and_says_nothing_is_not_ready_by_http_and_ready_by_tcp():
    with silent_port() as port:
        assert look(f"http://127.0.0.1:{port}/", timeout_s=0.3) == "no answer in time"
        assert TcpCheck(ReadyOnTcp(port=port)).look() is None


def test_a_proxy_of_the_environment_is_not_asked_for_a_loopback_address(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert look(f"{address}/200") is None
    assert unwell(f"{address}/200") is None


def test_a_marker_counts_when_it_has_been_written_since_the_start(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("of yesterday")
    checks = {path: FileCheck([str(path)], 5) for path in (old, new)}
    for check in checks.values():
        check.begin()
    assert checks[old].look() == "it was there before the start and has not been written again"
    assert checks[new].look() == "not there"
    new.touch()
    old.write_text("of today")
    assert [checks[old].look(), checks[new].look()] == [None, None]
    for check in checks.values():
        check.close()


def test_a_file_system_that_does_not_answer_holds_nobody_and_no_second_look_is_begun(tmp_path: Path):
    check = FileCheck([str(tmp_path / "marker")], 0.2)
    check.begin()
    pid = check._helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as good as a helper in state D
    try:
        (tmp_path / "marker").touch()
        assert [check.look(), check.look()] == ["its file system does not answer"] * 2
        assert check._helper.pid == pid
    finally:
        os.kill(pid, signal.SIGCONT)
    deadline_s = time.monotonic() + 20
    while check.look() is not None:
        assert time.monotonic() < deadline_s
    check.close()


def test_a_helper_that_has_died_is_started_again_and_remembers_what_was_there(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    check = FileCheck([str(old), str(new)], 5)
    check.begin()
    assert check._helper.pid is not None
    os.kill(check._helper.pid, signal.SIGKILL)
    assert str(check.look()).startswith("cannot be looked for: the scan process ended")
    assert check.look() == "it was there before the start and has not been written again"
    new.touch()
    assert check.written() == {str(new)}
    check.close()


@pytest.fixture
def log_search() -> Iterator[Callable[[str], LogSearch]]:
    made: list[LogSearch] = []

    def make(pattern: str) -> LogSearch:
        made.append(LogSearch(pattern))
        return made[-1]

    yield make
    for search in made:
        search.close()


MATCHERS: dict[str, PatternMatcher] = {}


@pytest.fixture(scope="module", autouse=True)
def end_matchers() -> Iterator[None]:
    yield
    for each in MATCHERS.values():
        each.close()


COSTLY = ".*a.*a.*a.*a.*b"


def test_a_pattern_that_would_take_hours_holds_nobody_and_is_said(log_search):
    search, ticks, done = log_search(COSTLY), 0, threading.Event()
    thread = threading.Thread(target=lambda: (search.feed(b"a" * 4095 + b"\n"), done.set()))
    thread.start()
    while not done.wait(0.02):  # the interpreter is free meanwhile
        ticks += 1
    thread.join()
    assert ticks >= 3
    answer = search.look()
    assert answer is not None
    assert "the pattern '.*a.*a.*a.*a.*b' takes too long to search for, and what took so long counts as not" in answer


def test_a_line_that_is_waited_for_is_found_beside_one_that_takes_too_long(log_search, monkeypatch):
    monkeypatch.setattr(matcher, "_ANSWER_S", 100.0)  # a busy machine gives the process its seconds late
    search = log_search(COSTLY)
    search.feed(b"layer 1\n" + b"a" * 4000 + b"\nstart: a a a a b\n")
    assert search.look() is None


@pytest.mark.campaign
def test_a_pattern_that_is_always_too_dear_is_given_up_in_bounded_time(log_search):
    search = log_search(COSTLY)
    for _ in range(40):
        search.feed(b"a" * 4000 + b"\n")
    assert "it is not searched for any more" in str(search.look())


def test_a_search_whose_process_was_killed_goes_on_with_another_one(log_search):
    search = log_search("ready")
    search.begin()
    process = search._matcher._process
    process.kill()
    process.wait()
    search.feed(b"layer 1\n")
    search.feed(b"ready\n")
    assert search.look() is None


@pytest.mark.parametrize(
    "glob", ["*a*a*a*a*a*a*a*a*b", "a*" * 100 + "b", "*?" * 100 + "b", "x/" + "*a" * 50 + "b", "*[a]" * 60 + "b"]
)
def test_an_ignore_glob_costs_no_more_than_the_name_is_long(glob):
    ignored = compile_ignore([glob])
    began_s = time.process_time()
    for _ in range(100):
        ignored("a" * 255, "x/" + "a" * 3000 + "/")
    assert time.process_time() - began_s < 5


def test_a_character_cut_in_two_between_chunks_is_still_one(log_search):
    search, data = log_search("prêt à servir"), "prêt à servir".encode()
    for at in range(len(data)):
        search.feed(data[at : at + 1])
    assert search.look() is None


def test_of_a_line_without_an_end_only_its_beginning_is_looked_at(log_search):
    search = log_search("ready")
    search.feed(b"x" * 5000 + b"ready")
    search.feed(b"y" * 5000)
    assert search.look() == "not printed yet"
    search.feed(b"\nready")
    assert search.look() is None


def test_a_line_after_a_progress_bar_without_line_ends_is_found(log_search):
    search = log_search("^ready$")
    for percent in range(1000):
        search.feed(f"\rloading {percent} of 1000".encode())
    search.feed(b"\rready\n")
    assert search.found


@given(
    lines=st.lists(st.text("abr \t", max_size=12), max_size=30),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    pattern=st.sampled_from(["ab", "a +b", "^r", "[ab]{3}", "b$"]),
)
def test_it_is_found_in_pieces_if_and_only_if_it_is_in_a_line_of_the_whole(lines, cuts, pattern):
    import re

    if pattern not in MATCHERS:
        MATCHERS[pattern] = PatternMatcher(pattern)
    data = "".join(f"{line}\n" for line in lines).encode()
    search, at, turn = LogSearch(pattern, MATCHERS[pattern]), 0, 0
    while at < len(data):
        search.feed(memoryview(data)[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    assert search.found == any(re.search(pattern, line) for line in lines)


def test_searching_keeps_up_with_a_generator_that_prints_without_end(log_search):
    search = log_search(r"startup complete in \d+ s")
    chunk = memoryview(b"layer 17: converted 4096 x 4096 bf16 to bfp8 tiles\n" * 20_000)
    began_s = time.process_time()
    for _ in range(20):
        search.feed(chunk)
    rate = 20 * len(chunk) / (time.process_time() - began_s)
    assert not search.found
    assert rate > 5e6, f"{rate / 1e6:.0f} MB/s"


def test_a_secret_in_an_address_is_not_shown():
    what, _ = describe_wanted(ReadyOnHttp(url="http://h/health?api_key=0123456789abcdef"))
    assert "0123456789abcdef" not in what


class Scripted:
    """A check that answers from a list."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def look(self) -> str | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        return


def test_a_check_that_hangs_holds_neither_the_caller_nor_its_end():
    class Hangs(Scripted):
        def look(self) -> str | None:
            forever.wait(30)
            return "late"

    forever = threading.Event()
    waiting = ReadyWatch(ReadyOnTcp(port=8000), "/mnt/x", check=Hangs(None))
    began_s = time.monotonic()
    waiting.start(lambda: None)
    waiting.stop(0.1)
    assert time.monotonic() - began_s < 20
    forever.set()
    waiting.close()


class Supervised:
    """As much of a supervisor as a decision needs."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.stops = 0

    def stop(self, grace_s: float | None = None) -> None:
        self.stops += 1


def serving(then: str, *answers: str | None) -> ServerReadiness:
    ready = ReadyOnTcp(port=8000, then=then)
    job = CacheJob(name="x", command=["serve"], cache_dirs=["/mnt/x"], ready=ready)
    return ServerReadiness(job, StallPolicy(), "/mnt/x", watcher=ReadyWatch(ready, "/mnt/x", check=Scripted(*answers)))


def ready_now(one: ServerReadiness, supervisor: Supervised, hand_over: Any) -> None:
    one._became_ready(supervisor, hand_over)


def test_whoever_decides_first_decides():
    stalled, ready, supervisor = serving("leave_running", None), serving("leave_running", None), Supervised()
    assert stalled.claim_end()
    ready_now(stalled, supervisor, lambda _: pytest.fail("it had been decided to stop it"))
    assert stalled.ready_s is None
    handed: list[str] = []
    ready_now(ready, supervisor, handed.append)
    assert handed == ["127.0.0.1:8000"]
    assert not ready.claim_end()


def test_a_hand_over_that_fails_stops_the_server():
    one, supervisor = serving("leave_running", None), Supervised()

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
    waiting = ReadyWatch(ReadyOnTcp(port=8000), "/mnt/x", check=Scripted(*["no"] * 1000))

    def start(thread: threading.Thread) -> None:
        if when == "before":
            waiting.stop(0)
        begin(thread)
        if when == "after":
            waiting.stop(0)

    monkeypatch.setattr(threading.Thread, "start", start)
    waiting.start(lambda: None)
    monkeypatch.undo()
    waiting.stop(5)
    assert not any(thread.name == "cachewatch-ready" for thread in threading.enumerate())
