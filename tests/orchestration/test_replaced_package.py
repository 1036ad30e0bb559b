"""The package is upgraded while a flow run is in its first attempt: its verdicts, reports and next attempt are whole."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.installation import ROOT, Installation, children
from tests.orchestration.conftest import Server

from prefect_cachewatch.flows.generation import _late_modules
from support import assert_none_left, eventually, new_tag, program, running, signal_each

FLOW = """
    import sys
    from pathlib import Path
    from prefect_cachewatch.flows.generation import generate_cache
    from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy

    root, *command = sys.argv[1:]
    state = generate_cache(
        CacheJob(name="upgraded", command=command, cache_dirs=[f"{root}/cache"]),
        stall=StallPolicy(stall_after_s=3, poll_s=0.2), stop=StopPolicy(grace_s=0.3),
        retry=RetryPolicy(attempts=2, backoff_s=0, on_retry="resume"),
        outputs=Outputs(report=Path(root, "report.json"), bundle_dir=Path(root, "bundles")),
        return_state=True,
    )
    print(state.name, state.message)
"""
GENERATOR = """
    import os, time
    open({file!r}, "ab").write(b"x" * 5000)
    while not os.path.exists({go!r}):
        open({file!r}, "ab").write(b"x" * 5000)
        time.sleep(0.1)
    os.kill(os.getpid(), 19)
"""


def test_both_attempts_of_a_run_whose_package_is_replaced_end_stalled_with_their_cause(
    server: Server, tmp_path: Path
) -> None:
    installed, go, tag = Installation(tmp_path / "lib"), tmp_path / "go", new_tag()
    (tmp_path / "flow.py").write_text(textwrap.dedent(FLOW))
    command = program(GENERATOR.format(go=str(go), file=str(tmp_path / "cache" / "a")), tag)
    env = {**server.env, "PYTHONPATH": installed.env["PYTHONPATH"]}
    with running([installed.python, str(tmp_path / "flow.py"), str(tmp_path), *command], env=env) as process:
        assert eventually((tmp_path / "cache" / "a").exists)
        installed.replace()
        go.touch()
        told, errors = process.communicate(timeout=150)
    assert told.startswith("Stalled "), told + errors
    assert "was stopped by a signal" in told, told + errors
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["attempt"], report["diagnosis"]["category"]) == (2, "stopped_by_signal")
    assert len([*(tmp_path / "bundles").iterdir()]) == 2
    assert installed.strangers() == [], told + errors
    assert_none_left(tag)


STALLS_ONCE = """
    import os, sys, time
    file = os.path.join(sys.argv[2], "a")
    if not os.path.exists({go!r}):
        while not os.path.exists({go!r}):
            open(file, "ab").write(b"x" * 5000)
            time.sleep(0.1)
        os.kill(os.getpid(), 19)
    open(file, "ab").write(b"x" * 50000)
    {then}
"""


@pytest.mark.campaign
@pytest.mark.parametrize("end", ["published", "cancelled", "failed"])
def test_a_command_whose_package_is_replaced_retries_and_ends_as_its_own_version(
    server: Server, tmp_path: Path, end: str
) -> None:
    installed, go, tag = Installation(tmp_path / "lib"), tmp_path / "go", new_tag()
    store, metrics, waits = tmp_path / "store", tmp_path / "metrics", tmp_path / "waits"
    store.mkdir()
    metrics.mkdir()
    then = {
        "published": "",
        "cancelled": f"open({str(waits)!r}, 'w'); time.sleep(600)",
        "failed": "import no_such_module",
    }
    command = [*program(STALLS_ONCE.format(go=str(go), then=then[end]), tag), "{cache_dir}"]
    options = [
        "--store",
        store,
        "--name",
        "upgraded",
        "--metrics",
        f"file:{metrics}",
        "--record",
        tmp_path / "trace.csv",
    ]
    options += ["--attempts", "2", "--backoff", "0s", "--stall-after", "4s", "--poll", "0.2s", "--grace", "0.3s"]
    options += ["--report", tmp_path / "report.json", "--bundle-dir", tmp_path / "bundles"]
    argv = [installed.python, "-m", "prefect_cachewatch.cli.main", "generate", *map(str, options), "--", *command]
    env = {**server.env, "PYTHONPATH": installed.env["PYTHONPATH"], "CACHEWATCH_STATE": str(tmp_path / "state")}
    with running(argv, env=env) as process:
        assert eventually(lambda: [*store.rglob("a")], 120)
        installed.replace()
        if end == "published":  # what writes and reads files from now on is a helper process of after the upgrade
            signal_each(children(process.pid, b"cachewatch-files"))
        go.touch()
        if end == "cancelled":
            assert eventually(waits.exists, 120)
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=200)
    report = json.loads((tmp_path / "report.json").read_text())
    outcome = {"published": "completed"}.get(end, end)
    status = {"published": 0, "cancelled": 130, "failed": 1}[end]
    assert (process.returncode, report["attempt"], report["outcome"]) == (status, 2, outcome), told
    assert [*store.glob("upgraded/current/a")] == ([store / "upgraded" / "current" / "a"] if status == 0 else []), told
    assert len([*(tmp_path / "bundles").iterdir()]) == (1 if status == 0 else 2), told
    assert (end == "failed") == (
        report["diagnosis"] is not None and report["diagnosis"]["category"] == "missing_module"
    ), told
    assert f'outcome="{outcome}"' in "".join(path.read_text() for path in metrics.iterdir())
    assert (tmp_path / "trace-2.csv").stat().st_size, [*tmp_path.iterdir()]
    assert installed.strangers() == [], told
    assert_none_left(tag)


LOADED = """
import json, sys
sys.argv = json.load(sys.stdin)
from prefect_cachewatch.common.aside import import_all
import_all(sys.argv)
print(json.dumps([name for name in sys.modules if name.startswith("prefect_cachewatch")]))
"""


def functions_run_aside() -> Iterator[tuple[str, str]]:
    """Functions of a run that its helper process is asked to call, each with the module that defines it."""
    rooms = ("metrics", "postmortem", "run", "supervise", "watching")
    files = [path for room in rooms for path in (ROOT / "src" / "prefect_cachewatch" / room).rglob("*.py")]
    for path in [
        *files,
        ROOT / "flows" / "attempts.py",
        ROOT / "src" / "prefect_cachewatch" / "common" / "statedir.py",
    ]:
        package = path.relative_to(ROOT / "src" if "src" in path.parts else ROOT).with_suffix("")
        name = ".".join(
            package.parts if package.parts[0] == "prefect_cachewatch" else ("prefect_cachewatch", *package.parts)
        )
        text = path.read_text()
        for found in re.finditer(r"files\.(?:run|open|consult)\(\s*(\w+),", text):
            if found[1] != "function":
                late = re.search(rf"^ +from (\S+) import [^()#\n]*\b{found[1]}\b", text, re.MULTILINE)
                yield getattr(importlib.import_module(late[1] if late else name), found[1]).__module__, found[1]


def test_the_helper_process_of_a_flow_has_loaded_whatever_it_may_be_asked_to_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        input=json.dumps(_late_modules(True)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    wanted = set(functions_run_aside())
    assert len(wanted) > 15
    assert [one for one in sorted(wanted) if one[0] not in json.loads(done.stdout)] == []
