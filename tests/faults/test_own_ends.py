"""Faults in what a user gives: a mistyped directory, a pattern that takes hours, a log that nobody reads, drippers."""

from __future__ import annotations

import socket
import time

import httpx

from prefect_cachewatch.metrics.destination import HttpAddress
from prefect_cachewatch.metrics.outlets import Endpoint
from prefect_cachewatch.metrics.run import RunMetrics
from tests.faults.conftest import Fault
from tests.faults.harness import Sandbox

SECTION = "5 The generator"


def test_a_pattern_that_takes_hours_delays_no_verdict(own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "a pattern that takes hours",
        "--ready 'log=.*a.*a.*a.*a.*b' and a line of 4 kB, then silence",
        "stalled within its window, the pattern is named, nothing left",
    )
    code = 'head -c 9999 /dev/zero > "$1/a"; head -c 4096 /dev/zero | tr "\\0" a; echo; head -c 9999 /dev/zero > "$1/b"; sleep 600'
    options = ("--ready", "log=.*a.*a.*a.*a.*b", "--warmup-within", "3s")
    process = own_sandbox.guarded(["sh", "-c", code, "sh", str(own_sandbox.cache)], *options, window="3s")
    assert process.wait(60) == 124, own_sandbox.stderr()
    assert any("takes too long to search for" in note for note in own_sandbox.report()["notes"])
    row.measured.append(("", "exit 124, named"))


def test_clients_that_drip_keep_no_scraper_out(fault: Fault) -> None:
    row = fault(
        SECTION,
        "clients of the metrics endpoint that drip",
        "60 connections without a whole request",
        "every scrape is answered",
    )
    endpoint, links = Endpoint(HttpAddress("127.0.0.1", 0), RunMetrics("llama")), []
    try:
        host, port = endpoint.where.split("/")[2].split(":")
        for _ in range(60):
            links.append(socket.create_connection((host, int(port))))
            links[-1].sendall(b"GET /metrics HTTP/1.1\r\nX")
        began_s = time.monotonic()
        assert [httpx.get(endpoint.where, timeout=30).status_code for _ in range(5)] == [200] * 5
        row.measured.append(("", f"5 scrapes in {time.monotonic() - began_s:.2f} s"))
    finally:
        for link in links:
            link.close()
        endpoint.close()
