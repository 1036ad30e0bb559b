"""A fleet's job in a process of its own: `generate_cache`, which ends with the fleet and says how it is getting on.

Run by Prefect's engine (`python -m prefect.engine`), started by `processes`. The run is one of the flow
generate-cache like any other; what differs is whose end is its end.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process, where
# annotations that are strings find no names to mean, and every run fails.

import functools
import os
import select
import signal
import threading
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled

from prefect_cachewatch.fleet.status import StatusFile
from prefect_cachewatch.flows.generation import generate_cache, live_view

__all__ = ["ENTRYPOINT", "PARENT_VARIABLE", "STATUS_VARIABLE", "generate_member", "run_member"]

ENTRYPOINT = "prefect_cachewatch.flows.fleet.member.generate_member"
# How the fleet tells its job who it is, and where the job tells the fleet how it stands.
PARENT_VARIABLE, STATUS_VARIABLE = "CACHEWATCH_FLEET_PID", "CACHEWATCH_FLEET_STATUS"


def run_member(*args: Any, **kwargs: Any) -> State[Any]:
    """Run `generate_cache` as a part of a fleet; its parameters are that flow's.

    Returns:
        Its state; or Cancelled, when it was told to end: the generator's tree has gone by then.
    """
    # Taken out, so that the generator does not inherit them.
    parent, status = os.environ.pop(PARENT_VARIABLE, None), os.environ.pop(STATUS_VARIABLE, None)
    if parent is not None:
        _end_with(int(parent))
    if status is not None:
        live_view.set(StatusFile(Path(status)))
    try:
        return generate_cache.fn(*args, **kwargs)
    except TerminationSignal:
        # As Crashed, which a raised signal makes of it, it would look like a fault that somebody has to see to.
        return Cancelled(message="The fleet stopped this job; nothing of its generator is left.")


# Only what tells the signature: with its name and module it would be pickled as the flow that stands there.
functools.update_wrapper(run_member, generate_cache.fn, assigned=("__doc__",), updated=())
generate_member = flow(name=generate_cache.name, flow_run_name="{job.name}", validate_parameters=True)(run_member)


def _end_with(pid: int) -> None:
    """Be told to end when a process ends, however it does: a fleet that was killed outright can tell nobody."""
    try:
        parent = os.pidfd_open(pid)
    except ProcessLookupError:
        parent = -1
    if parent < 0 or os.getppid() != pid:  # it ended before, and its number may be somebody else's by now
        os.kill(os.getpid(), signal.SIGTERM)
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(parent, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cachewatch-fleet-parent", daemon=True).start()
