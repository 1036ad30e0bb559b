"""What `cachewatch doctor` finds out about this machine and this user. What may hang runs in a helper process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from prefect_cachewatch.cli.api import api_url, check_api, fault_of_address, with_end
from prefect_cachewatch.common.aside import AHEAD_S, Files
from prefect_cachewatch.common.directories import FileRefused, open_own_directory, state_directory
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_count
from prefect_cachewatch.common.within import within
from prefect_cachewatch.containers.engine import engine_candidates, failures, ping, reason_of
from prefect_cachewatch.containers.janitor import clear_containers
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.evidence.proctree import read_memory
from prefect_cachewatch.evidence.stacks import find_py_spy
from prefect_cachewatch.run.places import prefect_home, try_to_write
from prefect_cachewatch.supervise.janitor import clear_leftovers, describe_leftovers

_ENGINE_S = 3.0
_ROOM_BYTES = 1 << 16
_FILES_LEAST, _FILES_FEW = 32, 256  # `cachewatch exec` starts with 24 descriptors and does not with 16
_GENERATE = "generate, fleet and deployed flows (exec and watch do without)"
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        subject: what was looked at, in a word or two.
        state: `missing` if a run does not work without it.
        found: what was found.
        costs: what does not work; empty if nothing is missing.
        advice: what to do about it.
        facts: what was measured.
    """

    subject: str
    state: Literal["ok", "warning", "missing"]
    found: str
    costs: str = ""
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def check_kernel() -> Check:
    """Check that the kernel has pidfds, which the guard waits on."""
    release = os.uname().release
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        why = "the kernel has no pidfd_open" if error.errno == errno.ENOSYS else f"pidfd_open: {error.strerror}"
        return Check(
            "kernel", "missing", f"Linux {release}: {why}", "every run",
            "use Linux 5.3 or newer, or a seccomp profile that allows pidfd_open",
        )  # fmt: skip
    return Check("kernel", "ok", f"Linux {release}, pidfd_open works")


def check_ptrace(files: Files) -> Check:
    """Check that a helper may read another process of this user: py-spy does."""
    try:
        allowed = bool(files.run(read_memory, os.getpid(), id(None), 8, timeout_s=AHEAD_S))
    except OSError:
        allowed = False
    scope = ""
    with contextlib.suppress(OSError):
        scope = Path(_YAMA).read_text().strip()
    named = f"ptrace_scope is {scope}" if scope else "no ptrace_scope here"
    facts = {"ptrace_scope": int(scope) if scope.isdigit() else None}
    if allowed:
        return Check("ptrace", "ok", f"{named}, processes of this user can be read", facts=facts)
    return Check(
        "ptrace", "warning", f"{named}, and a helper may not read processes of this user",
        "Python stacks",
        "run as root, add CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0", facts,
    )  # fmt: skip


def check_py_spy(files: Files) -> Check:
    """Look for py-spy."""
    try:
        found = files.run(find_py_spy, timeout_s=AHEAD_S)
    except OSError:
        found = None
    if found:
        return Check("py-spy", "ok", for_terminal(found))
    return Check(
        "py-spy", "warning", "not installed", "Python stacks in the post-mortem",
        "pip install 'prefect-cachewatch[stacks]'",
    )  # fmt: skip


def check_engine(patience_s: float = _ENGINE_S) -> Check:
    """Look for a container engine that answers, and the SDK.

    Args:
        patience_s: the longest wait for each address.
    """
    costs = "generators in containers (--image)"
    try:
        candidates = engine_candidates()
    except InputError as error:
        return Check("engine", "warning", error.message, costs)
    try:
        version, why = _ping_first(candidates, patience_s)
    except InputError:
        return Check("engine", "warning", "no docker SDK", costs, "pip install 'prefect-cachewatch[docker]'")
    if version is None:
        return Check("engine", "warning", f"none answers ({why})", costs, "start Docker or podman, or set DOCKER_HOST")
    return Check("engine", "ok", version)


def _ping_first(candidates: Sequence[str], patience_s: float) -> tuple[str | None, str]:
    """Return the first engine that answers, in words, or why the first one does not."""
    reasons = []
    for url in candidates:
        try:
            api_version, is_podman = within(2 * patience_s, ping, url, patience_s)
        except TimeoutError:
            reasons.append(f"{url}: no answer in time")
        except failures() as error:
            reasons.append(f"{url}: {reason_of(error)}")
        else:
            return f"{'podman' if is_podman else 'Docker'}, API {api_version}, at {for_terminal(url)}", ""
    return None, for_terminal(reasons[0], 200)


def check_limits() -> Check:
    """Check how many files a process may have open."""
    return judge_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def judge_limits(open_files: int) -> Check:
    """Judge the limit of open files; -1 for any number.

    Example:
        >>> judge_limits(1024).found
        '1,024 open files'
    """
    if open_files == resource.RLIM_INFINITY:
        return Check("limits", "ok", "any number of open files", facts={"open_files": None})
    found, facts = f"{open_files:,} open files", {"open_files": open_files}
    if open_files >= _FILES_FEW:
        return Check("limits", "ok", found, facts=facts)
    advice = f"raise ulimit -n (LimitNOFILE=), to {_FILES_FEW} or more"
    if open_files < _FILES_LEAST:
        return Check("limits", "missing", found, "every run", advice, facts)
    return Check("limits", "warning", found, "runs with many outputs or attempts", advice, facts)


def check_state(files: Files) -> Check:
    """Check that the state directory takes files, and that no other user could have put it there."""
    return _check_place(files, "state", state_directory(), "CACHEWATCH_STATE", "every run")


def check_leftovers(files: Files) -> Check:
    """Stop what runs whose guards have died left behind, as the start of each run does, and name it."""
    try:
        processes = files.run(clear_leftovers, timeout_s=AHEAD_S)
        containers = within(AHEAD_S, clear_containers)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {AHEAD_S:.0f} s"
        return Check(
            "leftover", "warning", f"what dead runs left behind: {why}", "room and devices that it holds", "look again"
        )
    facts = {
        "running": processes.running + containers.running,
        "left_over": len(processes.leftovers) + len(containers.leftovers),
        "survivors": len(processes.survivors) + containers.survivors,
    }
    said = [*describe_leftovers(processes), *containers.leftovers]
    found = "; ".join([f"{format_count(facts['running'], 'guarded run')}, {facts['left_over']} left over", *said])
    if facts["survivors"] or processes.refusals:
        return Check("leftover", "warning", found, "room and devices that it holds", "look what it waits for", facts)
    return Check("leftover", "ok", found, facts=facts)


def check_home(files: Files) -> Check:
    """Check that Prefect's home is there, or can be made; `facts` has its path."""
    home, unless = map(os.path.abspath, prefect_home())
    costs = "generate, fleet and deployed flows"
    return replace(_check_place(files, "home", home, "PREFECT_HOME", costs, unless), subject="Prefect")


def _check_place(files: Files, what: str, path: str, variable: str, costs: str, unless: str = "") -> Check:
    shown = for_terminal(path, 1000)
    facts = {"path": path}
    advice = f"set {variable} to a directory that can be written to"
    try:
        files.run(_try_place, path, unless, timeout_s=AHEAD_S)
    except TimeoutError:
        advice = f"check the mount, or set {variable} to a directory elsewhere"
        return Check(what, "missing", f"{shown} does not answer within {AHEAD_S:.0f} s", costs, advice, facts)
    except FileRefused as error:
        return Check(what, "missing", f"{for_terminal(str(error.filename), 1000)}: {error}", costs, advice, facts)
    except OSError as error:
        return Check(what, "missing", f"{what} directory {shown}: {error.strerror}", costs, advice, facts)
    return Check(what, "ok", f"{what} directory {shown} can be written to", facts=facts)


def _try_place(path: str, unless: str) -> None:
    if unless:
        if not os.path.lexists(unless):
            try_to_write(path, _ROOM_BYTES)
        return
    try_to_write(path, _ROOM_BYTES)
    for name in ("runs", "generations"):
        with contextlib.suppress(FileNotFoundError):
            os.close(open_own_directory(os.path.join(path, name)))


def check_working_directory(files: Files) -> Check | None:
    """Check that the working directory answers; None if it does."""
    here = ""
    try:
        here = os.getcwd()
        files.run(os.path.lexists, os.path.join(here, ".cachewatch"), timeout_s=AHEAD_S)
    except TimeoutError:
        why, advice = f"{for_terminal(here, 1000)} does not answer within {AHEAD_S:.0f} s", "check the mount"
    except OSError as error:
        why, advice = f"cannot be used: {error.strerror}", "it was removed, perhaps"
    else:
        return None
    return Check("here", "missing", f"the working directory {why}", "every run", f"{advice}; change to another one")


def check_prefect(home: str, patience_s: float) -> Check:
    """Check that the configured Prefect API answers, and compare its version with the client's.

    Args:
        home: of Prefect, which answers.
        patience_s: the longest wait for each request.
    """
    with _home_left_alone(home):
        try:
            url = api_url()
            return _check_address(url, patience_s)
        except Exception as error:  # noqa: BLE001 - Prefect refuses its settings, in one of many ways
            said = for_terminal(redact(" ".join(str(error).split())), 200)
    return Check("Prefect", "missing", f"refuses its settings: {said}", _GENERATE, "correct the PREFECT_ variables")


def _check_address(url: str, patience_s: float) -> Check:
    import prefect  # noqa: PLC0415 - takes seconds, and is loaded when its home is known to answer

    facts: dict[str, Any] = {"url": url, "client": prefect.__version__}
    if not url:
        said = f"{prefect.__version__}, no PREFECT_API_URL: a temporary server is started"
        return Check("Prefect", "ok", said, facts=facts)
    if fault := fault_of_address(url):
        return Check("Prefect", "missing", fault, _GENERATE, facts=facts)
    try:
        server = check_api(patience_s)
    except InputError as error:
        advice = f"an address ends with /api: try {with_end(url)}" if with_end(url) != url else ""
        return Check("Prefect", "missing", error.message, _GENERATE, advice, facts)
    facts["server"] = server
    return compare_versions(prefect.__version__, server, facts)


def compare_versions(client: str, server: str, facts: Mapping[str, Any]) -> Check:
    """Compare versions of Prefect.

    Args:
        client: of this installation.
        server: of the API; empty for Prefect Cloud, which takes every client.
        facts: with the address of the API as `url`.

    Example:
        >>> compare_versions("3.8.8", "3.7.5", {"url": "http://h/api"}).state
        'warning'
    """
    said = f"{client}, {facts['url']} answers" + (f" with {server}" if server else "")
    ours, theirs = ([int(part) for part in re.findall(r"\d+", version)[:3]] for version in (client, server))
    if not theirs or (theirs >= ours and theirs[0] == ours[0]):
        return Check("Prefect", "ok", said, facts=facts)
    if theirs[0] != ours[0]:
        return Check(
            "Prefect", "missing", said, _GENERATE, f"install Prefect {theirs[0]} here, or upgrade the server", facts
        )
    costs = "what is newer in the client, perhaps: the server is older"
    return Check("Prefect", "warning", said, costs, f"upgrade the server to {client}", facts)


@contextlib.contextmanager
def _home_left_alone(home: str) -> Iterator[None]:
    """Let Prefect make no home: where there is none, it gets a place where none can be made while it is asked."""
    if Path(home).exists():
        yield
        return
    before = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = f"{os.devnull}/none"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Prefect's, that it could not make its home
            yield
    finally:
        os.environ.pop("PREFECT_HOME")
        if before is not None:
            os.environ["PREFECT_HOME"] = before
