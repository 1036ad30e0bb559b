"""`cachewatch generate --ready` as it is typed, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.orchestration.ready_job import Bench, made_bench
from tests.prefect_server import Server
from tests.support import CACHEWATCH, assert_none_left, run, tagged


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with made_bench(tmp_path) as made:
        yield made


def test_generate_hands_a_server_over_and_leaves_it_to_cachewatch_stop(bench: Bench, server: Server):
    job = bench.job(warm_s=0.5)
    options = ["--ready", f"http={bench.url}", "--attempts", "1", "--grace", "1s", "--quiet"]
    where = ["--name", bench.tag, "--cache-dir", str(job.cache_dirs[0]), "--report", str(bench.root / "report.json")]
    ran = run([*CACHEWATCH, "generate", *where, *options, "--", *job.command], env=server.env)
    assert ran.status == 0, ran.stderr
    ready = json.loads((bench.root / "report.json").read_text())["ready"]
    assert tagged(bench.tag) == [ready["pid"]]
    stopped = run([*CACHEWATCH, "stop", bench.tag], env=server.env)
    assert (stopped.status, stopped.stdout.count(f"{bench.tag} (pid {ready['pid']}) was stopped")) == (0, 1), stopped
    assert_none_left(bench.tag)
