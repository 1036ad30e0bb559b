"""What hangs for a known cause, through the flow on a real server: state, event and page name the cause that the command names.

The generators are those of `test_causes`. All runs are started once, side by side; each test reads what they have left.
"""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import Place
from tests.contract.on_prefect import HANGS as SHORT
from tests.contract.on_prefect import Runs, artifact, once
from tests.contract.test_causes import FUSE, HANGS, HEAD, LOCKS, MAPPED, ROOT, flush_left, fuse, memory_group
from tests.prefect_server import Server
from tests.support import assert_none_left

LAST = "layer 0 is written"
PROMPTS = "import pty\n_, terminal = pty.openpty(); os.read(terminal, 1)"
# Category and a word of the summary, by what the generator waits for.
KINDS = {
    "lock": ("waiting_for_lock", "pin"),
    "device": ("waiting_for_device", "/dev/net/file"),
    "peer": ("waiting_for_network", "127.0.0.1:"),
    "prompt": ("waiting_for_input", "/dev/pts/"),
    "full": ("disk_full", "is full"),
    "stopped": ("stopped_by_signal", "stopped by a signal"),
    "deadlock": ("deadlocked", "wait for one another"),
    "loop": ("compute_bound", "computes"),
    "swap": ("memory_pressure", "waits for pages"),
}


@contextmanager
def chains_of(runs: Runs) -> Iterator[tuple[list[list[dict[str, Any]]], str]]:
    """The runs, and what the shell does in the mount namespace of their process before; their peers and locks live as long."""
    sources = {
        "lock": LOCKS["flock"],
        "device": HANGS["an ioctl that does not return"].source,
        "prompt": PROMPTS,
        "full": HANGS["a full file system"].source,
        "stopped": HANGS["a process that stopped itself"].source,
        "deadlock": HANGS["two locks in opposite order"].source,
        "loop": HANGS["an endless loop"].source,
        "swap": MAPPED,
    }
    cgroup = memory_group()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sources["peer"] = f"socket.create_connection(('127.0.0.1', {listener.getsockname()[1]})).recv(1)"
        if cgroup is None:
            del sources["swap"]
        chains, before = list[list[dict[str, Any]]](), list[str]()
        if not ROOT or not FUSE:
            del sources["device"], sources["full"]
        else:
            full = runs.cache("full").parent
            before = [f"mkdir {full}; mount -t tmpfs -o size=1m none {full}", fuse("/dev/net", "hang-ioctl")]
        for key, source in sources.items():
            place = Place(runs.folder / "generators" / key)
            place.root.mkdir(parents=True)
            head = HEAD.format(cache=str(runs.cache(key))) + f"print({LAST!r}, flush=True)\n"
            command = place.program(f"{head}{flush_left(source)}\n")
            if key == "swap" and cgroup is not None:
                command = ["sh", "-c", stack.enter_context(cgroup), "sh", *command]
            if key == "lock":
                held = stack.enter_context((place.root / "pin").open("w"))
                fcntl.flock(held, fcntl.LOCK_EX)
            job = {"command": list(map(str, command))}
            stall = {**SHORT, "stall_after_s": 6 if key == "swap" else 2}
            chains.append([runs.run(key, "", last="stalled", job=job, stall=stall)])
        yield chains, "; ".join(before)


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Prefect has of each run, and its report, by its key."""

    def make(folder: Path) -> dict[str, Any]:
        server: Server = request.getfixturevalue("server")
        runs = Runs(folder)
        with chains_of(runs) as (chains, script), runs.started(server, chains, script=script) as finish:
            looks = finish()
        assert_none_left(str(folder), 60)
        return looks

    found: dict[str, Any] = once(tmp_path_factory, "prefect-causes", make)
    return found


@pytest.mark.parametrize("key", KINDS)
def test_the_cause_of_a_hang_is_named_by_state_event_and_the_first_lines_of_the_page(
    ran: dict[str, Any], key: str
) -> None:
    if key not in ran:
        pytest.skip("needs root, /dev/fuse or a version 1 memory control group")
    look, (category, word) = ran[key], KINDS[key]
    found = look["report"]["diagnosis"]
    assert (look["state"], found["category"]) == (["FAILED", "Stalled"], category), look["report"]
    assert word in found["summary"] and found["summary"] in look["message"]
    title, _, cause, *_ = artifact(look, "report")["data"].split("\n")
    assert title.startswith(f"## {key}") and cause.startswith("**Cause:** ")
    assert cause.endswith(f" ({category}, confidence {found['confidence']})")
    last = next(event for event in look["events"] if event["event"] == "cachewatch.generation.stalled")
    assert last["payload"]["category"] == category


@pytest.mark.parametrize("key", ["lock", "deadlock", "loop"])
def test_the_last_lines_of_the_generator_are_in_log_artifact_and_page(ran: dict[str, Any], key: str) -> None:
    page = (Path(ran[key]["report"]["bundle"]) / "report.html").read_text()
    told = artifact(ran[key], "report")["data"]
    assert any(LAST in message for _, _, message in ran[key]["log"])
    assert [text.partition("Last lines of the generator")[2].count(LAST) for text in (told, page)] == [1, 1]
