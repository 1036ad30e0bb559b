"""One watch over a process that somebody else has started, from its checks to its end; it runs in the engine.

Whatever ends the watch leaves the process alone, but a stall under `on_stall: stop`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import redact_all, secret_values
from prefect_cachewatch.common.text import for_terminal, show_argv
from prefect_cachewatch.engine.events import Bye, Ready
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.runner import Runner
from prefect_cachewatch.supervise.adopted import AttachedProcess
from prefect_cachewatch.supervise.pinned_process import PinnedProcess
from prefect_cachewatch.supervise.proc import read_memory_file
from prefect_cachewatch.supervise.turns import read_each
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.outcomes import STOPPED
from prefect_cachewatch.watching.site import CacheDirectories

if TYPE_CHECKING:
    from prefect_cachewatch.engine.spec import Plain
    from prefect_cachewatch.run.engine import Engine

_ENVIRON_S = 1.0


def watch_attached(engine: Engine, spec: Plain, files: Files) -> Bye:
    """Watch until the process ends or is stopped, or the watch is to end.

    Args:
        engine: tells events, and knows what the front wants.
        spec: the checked inputs; `attach` says which process, the job its name and where it writes.
        files: accesses what may hang.

    Raises:
        InputError: the process may not be watched, or a directory or the report's path cannot be used.
        CachewatchError: the directories cannot be measured.
    """
    attach, outputs = spec.attach, spec.outputs
    refuse_learned(spec.stall)
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            engine.pausing("", f"The watch was ended before it had begun; process {attach.pid} goes on.")
        )
        check_outputs_ahead(files, spec.job.model_copy(update={"on_stall": attach.on_stall}), outputs)
        pinned = PinnedProcess(attach.pid, to_stop=attach.on_stall == "stop")
        observed = stack.enter_context(contextlib.closing(AttachedProcess(pinned, spec.stop.grace_s)))
        engine.secrets = (*engine.secrets, *secret_values(_environment(attach.pid)))
        site = stack.enter_context(
            CacheDirectories(spec.job.cache_dirs, ignore=spec.job.ignore, create=False, lock=False, files=files)
        )
        name = attach.name or for_terminal(site.paths[0].rpartition("/")[2], 200) or "cache"
        command = [word.replace("\0", " ") for word in pinned.argv if word] or ["?"]
        runner = Runner(
            files, engine.secrets, bundles=outputs.bundle, tell=engine.tell,
            on_stall=lambda report: runner.write(report, outputs.report),
        )  # fmt: skip
        watch = runner.attach(
            site, spec.job.model_copy(update={"name": name, "command": command}), observed, spec.stall, spec.stop,
            on_stall=attach.on_stall, clock=engine.clock,
        )  # fmt: skip
        engine.note(f"watching {watch.who} ({show_argv(command, 100)}); Ctrl-C leaves it alone")
        engine.tell(redact_all(Ready(name, tuple(site.paths)), engine.secrets))
        with engine.attempt(watch):
            outcome = runner.run(watch)
            for note in outcome.notes:
                if note not in watch.state.warnings:  # those were told when they came up
                    engine.note(note)
            report = runner.report(watch, outcome)
            runner.write(report, outputs.report)
            engine.settle()
    for problem in runner.problems:
        engine.note(problem, fault=True)
    status = report.exit_status(engine.received[0] if engine.received else None)
    if watch.stalls and outcome.name != "detached":
        status = STOPPED
    return Bye(outcome.name, status, report.message)


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with: only to find the values that must not be shown."""

    def read(of: int) -> bytes:
        try:
            return read_memory_file(of, "environ")
        except OSError:
            return b""

    text = os.fsdecode(read_each([pid], read, each_s=_ENVIRON_S).get(pid, b""))
    split = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, _, value in split if name}
