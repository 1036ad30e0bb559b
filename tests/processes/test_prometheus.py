"""A real Prometheus scrapes a real run, and a real node-exporter reads what runs leave: rules fire, panels have data."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support import PATIENCE_S, eventually, new_tag, program, run_exec, unavailable

MONITORING = Path(__file__).parents[2] / "deployments" / "monitoring"
STALLS = """
    import os, signal, sys
    for n in range(3):
        open(os.path.join(sys.argv[2], f"layer{n}.bin"), "wb").write(bytes(50_000))
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def program_of(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        unavailable(f"{name} is not installed: apt install --no-install-recommends prometheus prometheus-node-exporter")
    assert found is not None
    return found


@dataclass
class Prometheus:
    """A Prometheus of the test's own, with the project's rules."""

    url: str
    run_port: int
    textfiles: Path

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def wait_for(self, expression: str) -> dict[str, Any]:
        """Wait for the first series of an expression; returns its labels."""
        found = eventually(lambda: self.query(expression))
        assert found, expression
        return dict(found[0]["metric"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    textfiles = folder / "textfiles"
    textfiles.mkdir()
    server_port, exporter_port, run_port = free_ports(3)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    jobs["cachewatch"]["static_configs"][0]["targets"] = [f"127.0.0.1:{run_port}"]
    jobs["node"]["static_configs"][0]["targets"] = [f"127.0.0.1:{exporter_port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    commands = [
        [
            program_of("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{server_port}", "--log.level=warn",
        ],
        [
            program_of("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{exporter_port}",
            "--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={textfiles}",
        ],
    ]  # fmt: skip
    log = (folder / "servers.log").open("wb")
    servers = [
        subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL) for argv in commands
    ]
    try:
        there = Prometheus(f"http://127.0.0.1:{server_port}", run_port, textfiles)

        def ready() -> bool:
            assert all(server.poll() is None for server in servers), (folder / "servers.log").read_text()
            try:
                return httpx.get(f"{there.url}/-/ready", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        assert eventually(ready), (folder / "servers.log").read_text()
        yield there
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(PATIENCE_S)
        log.close()


@pytest.mark.campaign
def test_node_exporter_takes_the_files_of_many_runs_however_short(prometheus, tmp_path):
    names = ["one", 'b "quoted" \\ name', "ünïcode"]
    for name in names:
        ran = run_exec(
            tmp_path / name,
            "--poll",
            "0.3s",
            "--metrics",
            f"file:{prometheus.textfiles}",
            "--quiet",
            "--allow-empty",
            command=["true"],
        )
        assert (ran.status, ran.stderr) == (0, "")
    seen = eventually(lambda: len(prometheus.query('cachewatch_runs_total{job="node", outcome="completed"} == 1')) == 3)
    assert seen, prometheus.query("cachewatch_runs_total")
    assert prometheus.query("node_textfile_scrape_error")[0]["value"][1] == "0"
    caches = {series["metric"]["cache"] for series in prometheus.query('cachewatch_running{job="node"}')}
    assert caches == set(names)
    # A second run of the same cache counts on.
    run_exec(tmp_path / "one", "--metrics", f"file:{prometheus.textfiles}", command=["sh", "-c", "exit 3"])
    prometheus.wait_for('cachewatch_runs_total{job="node", cache="one", outcome="failed"} == 1')
    prometheus.wait_for('cachewatch_runs_total{job="node", cache="one", outcome="completed"} == 1')
    prometheus.wait_for('ALERTS{alertname="CachewatchGeneratorFailed", cache="one", alertstate="firing"}')
    stalls = [
        "--stall-after", "1s", "--poll", "0.2s", "--grace", "0.3s", "--no-bundle", "--metrics",
        f"file:{prometheus.textfiles}",
    ]  # fmt: skip
    ran = run_exec(tmp_path / "silent", *stalls, command=[*program(STALLS, new_tag()), str(tmp_path / "silent")])
    assert ran.status == 124
    alert = prometheus.wait_for('ALERTS{alertname="CachewatchStalled", alertstate="firing"}')
    assert (alert["cache"], alert["kind"], alert["cause"]) == ("silent", "no_growth", "stopped_by_signal")


@pytest.mark.campaign
def test_every_expression_of_the_dashboard_and_the_rules_is_one_that_prometheus_answers(prometheus, tmp_path):
    for ending in ("exit 0", "exit 3"):
        run_exec(
            tmp_path / "panels",
            "--allow-empty",
            "--expect",
            "1MB",
            "--metrics",
            f"file:{prometheus.textfiles}",
            command=["sh", "-c", ending],
        )
    prometheus.wait_for('cachewatch_last_verdict{cache="panels"} == 1')
    prometheus.wait_for('rate(cachewatch_scan_seconds_count{cache="panels"}[5m])')
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    silent = []
    for expression in expressions:
        filled = re.sub(r"\$__range|\$__rate_interval", "5m", expression).replace("$cache", "panels")
        assert "$" not in filled
        if not prometheus.query(filled):
            silent.append(expression)
    # No run here waited for a slot; all else has something to show.
    assert [expression for expression in silent if "slot_wait" not in expression] == []
    assert len(silent) == 2
    rules = httpx.get(f"{prometheus.url}/api/v1/rules", timeout=30).json()["data"]["groups"][0]["rules"]
    assert [rule["name"] for rule in rules if rule["health"] not in ("ok", "unknown") or rule.get("lastError")] == []


def test_promtool_has_nothing_to_say_about_the_page(tmp_path):
    (tmp_path / "metrics").mkdir()
    ran = run_exec(tmp_path / "lint", "--metrics", f"file:{tmp_path}/metrics", "--allow-empty", command=["true"])
    assert ran.status == 0
    (path,) = (tmp_path / "metrics").glob("cachewatch-lint-*.prom")
    done = subprocess.run(
        [program_of("promtool"), "check", "metrics"], input=path.read_bytes(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
