"""A fleet's job in a process of its own: `generate_cache`, which ends with the fleet and reports its progress.

Prefect's engine runs it (`python -m prefect.engine`); `processes` starts it. It is an ordinary run of the flow
generate-cache, but for one thing: it ends when the fleet's process ends.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import functools
import os
import select
import signal
import threading
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled

from prefect_cachewatch.flows.context import status_file
from prefect_cachewatch.flows.generation import generate_cache

ENTRYPOINT = "prefect_cachewatch.flows.fleet.member.generate_member"
# Variables by which the fleet tells a job its pid, and the file for the job's progress.
PARENT_VARIABLE, STATUS_VARIABLE = "CACHEWATCH_FLEET_PID", "CACHEWATCH_FLEET_STATUS"


def run_member(*args: Any, **kwargs: Any) -> State[Any]:
    """Run `generate_cache` as a part of a fleet; the parameters are those of that flow.

    Returns:
        Its state; or Cancelled, if the job was told to end: then the generator's tree has gone.
    """
    # Removed, so that the generator does not inherit them.
    parent, status = os.environ.pop(PARENT_VARIABLE, None), os.environ.pop(STATUS_VARIABLE, None)
    if parent is not None:
        _end_with(int(parent))
    if status is not None:
        status_file.set(status)
    try:
        return generate_cache.fn(*args, **kwargs)
    except TerminationSignal:
        # A raised signal would make the state Crashed, which looks like a fault that needs a person.
        return Cancelled(message="The fleet stopped this job; nothing of its generator is left.")


# Only the signature: with its name and module it would be pickled as the flow of that name.
functools.update_wrapper(run_member, generate_cache.fn, assigned=("__doc__",), updated=())
generate_member = flow(name=generate_cache.name, flow_run_name="{job.name}", validate_parameters=True)(run_member)


def _end_with(pid: int) -> None:
    """Have this process signalled when another one ends: a fleet that was killed cannot signal its jobs."""
    try:
        parent = os.pidfd_open(pid)
    except ProcessLookupError:
        parent = -1
    if parent < 0 or os.getppid() != pid:  # the fleet has ended, and its pid may belong to another process
        os.kill(os.getpid(), signal.SIGTERM)
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(parent, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cachewatch-fleet-parent", daemon=True).start()
