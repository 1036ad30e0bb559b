"""A fleet's jobs in processes of its own host; each is a flow run in Prefect like any other."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Crashed, Pending

from prefect_cachewatch.common.aside import AHEAD_S
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.engine.status import JobStatus, make_room, read_status
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.flows.fleet.executor import Fleet, make_tracking_task
from prefect_cachewatch.flows.fleet.member import ENTRYPOINT, PARENT_VARIABLE, STATUS_VARIABLE, generate_member
from prefect_cachewatch.tasks.prefect_api.fleet_runs import children_of, job_tags

# From SIGTERM to SIGKILL: covers the generator's grace period, the last scan, the report and the run's last state.
_END_S = 60.0
_KILLED_S = 10.0
_LOOK_S = 1.0


class LocalExecutor:
    """Runs each job in a process of its own on this host.

    Each job has a process, since a generation is cancelled by a signal to its main thread. The process has its own
    process group: Ctrl-C and a worker's signals reach the fleet alone, which passes them on once.

    Args:
        fleet: the data that all its runs share.
    """

    usual_parallel: int | None = 2
    outlives = False

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs: dict[UUID, _Process] = {}
        self._looked_s = time.monotonic()

    def start(self, job: FleetJob, number: int) -> UUID:
        """Start a job."""
        fleet = self._fleet
        stem = f"{slugify(job.name)[:60]}-{job.digest[:8]}-{number}"
        run = fleet.client.create_flow_run(
            generate_member,
            name=job.name,
            parameters=job.parameters(),
            tags=job_tags(fleet.name, fleet.run_id, job.digest, job.storage_name),
            parent_task_run_id=make_tracking_task(fleet, job, number, generate_member.name),
            state=Pending(),
        )
        status = fleet.directory / f"{stem}.json"
        env = _environment(str(fleet.client.api_url)) | {
            "PREFECT__FLOW_RUN_ID": str(run.id),
            "PREFECT__FLOW_ENTRYPOINT": ENTRYPOINT,
            PARENT_VARIABLE: str(os.getpid()),
            STATUS_VARIABLE: str(status),
        }
        try:
            fleet.files.run(make_room, status, fleet.directory / f"{stem}.log", timeout_s=AHEAD_S)
            with open(fleet.directory / f"{stem}.log", "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "prefect.engine"],
                    env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                )  # fmt: skip
        except OSError as error:
            message = f"The process of this job could not be started: {error.strerror}."
            fleet.client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            raise CachewatchError(message) from error
        grace_s = job.stop.grace_s if job.stop is not None else 10.0
        self._jobs[run.id] = _Process(process, os.pidfd_open(process.pid), status, grace_s + _END_S)
        return run.id

    def ended(self, timeout_s: float) -> dict[UUID, FlowRun | None]:
        """Wait for the end of a process; ask now and then whether a run was cancelled in the UI."""
        poll = select.poll()
        for job in self._jobs.values():
            poll.register(job.pidfd, select.POLLIN)
        poll.poll(max(0.0, min([timeout_s, *(job.patience_s() for job in self._jobs.values())])) * 1000)
        found: dict[UUID, FlowRun | None] = {}
        for run_id, job in list(self._jobs.items()):
            if job.process.poll() is None:
                job.kill_if_due()
                continue
            try:
                found[run_id] = self._settled(run_id, job)
            except httpx.HTTPError:
                if not found:
                    raise
                return found  # the others are returned by the next call
            os.close(self._jobs.pop(run_id).pidfd)
        now_s = time.monotonic()
        if not found and now_s - self._looked_s >= self._fleet.poll_s:
            self._looked_s = now_s
            asked = children_of(self._fleet.client, self._fleet.run_id, types=[StateType.CANCELLING])
            self.stop([run.id for run in asked])
        return found

    def states(self) -> dict[UUID, State[Any]]:
        """Return nothing: a process that has not ended is running."""
        return {}

    def adopt(self, run_id: UUID) -> None:
        """Record that a run ended together with the fleet's process that had started it."""
        gone: State[Any] = Crashed(message="The fleet's process died, and this job with it.")
        self._fleet.client.set_flow_run_state(run_id, gone, force=True)

    def status(self, run_id: UUID) -> JobStatus | None:
        """Return the last measurement that the job wrote."""
        job = self._jobs.get(run_id)
        if job is None:
            return None
        try:
            found: JobStatus | None = self._fleet.files.run(read_status, job.status, timeout_s=_LOOK_S)
        except OSError:  # the run directory does not answer; the table lacks one line
            return None
        return found

    def stop(self, run_ids: Sequence[UUID]) -> None:
        """Send SIGTERM, once."""
        for run_id in run_ids:
            if (job := self._jobs.get(run_id)) is not None:
                job.stop()

    def recall(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Return nothing: a process begins when it is started."""
        return []

    def close(self) -> None:
        """Stop all processes; a second signal meanwhile ends the grace period."""
        try:
            self.stop(list(self._jobs))
            self._wait_for_all()
        except BaseException:
            for job in self._jobs.values():
                job.send(signal.SIGKILL)  # their guards stop the generators
            raise

    def _wait_for_all(self) -> None:
        # A process that SIGKILL does not end waits for a device or a file system: it is left behind.
        until_s = time.monotonic() + max((job.end_s for job in self._jobs.values()), default=0.0) + _KILLED_S
        while self._jobs and time.monotonic() < until_s:
            with contextlib.suppress(Exception):  # an API that is away does not delay the end
                self.ended(1.0)
            for run_id, job in list(self._jobs.items()):
                if job.process.poll() is not None:  # it has ended although its state could not be settled
                    os.close(self._jobs.pop(run_id).pidfd)

    def _settled(self, run_id: UUID, job: _Process) -> FlowRun | None:
        """Read a run whose process has ended; give it a final state if the process could not."""
        client = self._fleet.client
        try:
            run = client.read_flow_run(run_id)
        except ObjectNotFound:
            return None
        if run.state is not None and run.state.is_final():
            return run
        state: State[Any]
        if job.stopped:
            state = Cancelled(message="The fleet stopped this job before it had begun.")
        else:
            code = job.process.returncode
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            state = Crashed(message=f"The process of this job ended {how} and left no state.")
        client.set_flow_run_state(run_id, state, force=True)
        return client.read_flow_run(run_id)


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    pidfd: int
    status: Path
    end_s: float
    stopped: bool = False
    kill_at_s: float | None = None

    def stop(self) -> None:
        if not self.stopped:
            self.stopped, self.kill_at_s = True, time.monotonic() + self.end_s
            self.send(signal.SIGTERM)

    def kill_if_due(self) -> None:
        if self.kill_at_s is not None and time.monotonic() >= self.kill_at_s:
            self.send(signal.SIGKILL)
            self.kill_at_s = None

    def patience_s(self) -> float:
        return 3600.0 if self.kill_at_s is None else max(0.0, self.kill_at_s - time.monotonic())

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


def _environment(api_url: str) -> dict[str, str]:
    """Return this process's environment and settings, without those of its own flow run."""
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    # No setting has a temporary server's address; without it each job would start a server of its own.
    return plain | settings | {"PREFECT_API_URL": api_url.rstrip("/")}
