"""Slots of a storage's global concurrency limit, held while a generation runs.

`plan_capacity` computes the limit's value; the monitor watches whether bytes grow.
"""

from __future__ import annotations

import contextvars
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.tasks.prefect_api.outage import ask_patiently, is_outage

if TYPE_CHECKING:
    from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse

Logger = logging.Logger | logging.LoggerAdapter[Any]

_logger = logging.getLogger("prefect.cachewatch")

# Prefect renews the lease while the holder lives, and frees the slots after it if the holder was killed. A shorter
# lease frees slots in use while a server is away for a while; a longer one lets a dead holder block the others.
_LEASE_VARIABLE, _LEASE_S, _LEASES_S = "CACHEWATCH_SLOT_LEASE_S", 300.0, (60.0, 86400.0)
_ROUND_TRIP_S = 5.0  # an API call under load, not a wait for a slot
_FIRST_REMINDER_S = 60.0
_LONGEST_REMINDER_S = 1800.0


def slot_lease_s() -> float:
    """Return the time after which Prefect frees the slots of a killed run: `CACHEWATCH_SLOT_LEASE_S`, else 300 s.

    Returns:
        Seconds.

    Raises:
        InputError: the variable is not a number from 60 to 86400.
    """
    word = os.environ.get(_LEASE_VARIABLE)
    if not word:
        return _LEASE_S
    try:
        lease_s = float(word)
    except ValueError:
        lease_s = math.nan
    if not _LEASES_S[0] <= lease_s <= _LEASES_S[1]:
        raise InputError(f"{_LEASE_VARIABLE} is {for_terminal(word, 40)!r}: give seconds from 60 to 86400")
    return lease_s


def read_limit(client: SyncPrefectClient, name: str) -> GlobalConcurrencyLimitResponse | None:
    """Return a limit; None if there is none of that name."""
    try:
        return client.read_global_concurrency_limit_by_name(
            quote(name, safe="")
        )  # Prefect puts it into a path as it is
    except ObjectNotFound:
        return None


def set_limit(client: SyncPrefectClient, limit: GlobalConcurrencyLimitResponse, slots: int) -> None:
    """Set the slots of a limit that was read; one that was made anew under its name is another one.

    Raises:
        ObjectNotFound: it is gone.
    """
    client.update_global_concurrency_limit(str(limit.id), GlobalConcurrencyLimitUpdate(limit=slots))


@contextmanager
def storage_slot(
    storage: str,
    slots: int,
    logger: Logger,
    *,
    flow_run_id: UUID | None = None,
    timeout_s: float | None = None,
    lease_s: float | None = None,
) -> Iterator[float]:
    """Occupy slots of the concurrency limit named like a storage; while it waits for them it writes log lines.

    If the limit is missing, Prefect itself only warns and runs without one; here that is an error.

    Args:
        storage: name of the storage and of its global concurrency limit.
        slots: slots to occupy.
        logger: told when it waits, at intervals while it waits, and when it has its slots.
        flow_run_id: the run that Prefect's UI shows as the holder.
        timeout_s: the longest wait; None: no limit.
        lease_s: seconds after which Prefect frees the slots of a run that was killed; None: as `slot_lease_s` says.

    Yields:
        Seconds waited.

    Raises:
        InputError: if the limit does not exist, admits fewer slots, or the wait timed out.
    """
    shown = for_terminal(storage)
    if slots < 1:
        raise InputError(f"a job on {shown} cannot occupy {slots} slots: give 1 or more")
    limit = require_limit(storage, slots)
    if not limit.active:
        logger.warning("The concurrency limit of %s is switched off: nothing protects the storage", shown)
        yield 0.0
        return
    lease_s = slot_lease_s() if lease_s is None else lease_s
    options = _options(flow_run_id, timeout_s, lease_s)
    begin_s = time.monotonic()
    what = f"{slots} of {limit.limit} slot{'' if limit.limit == 1 else 's'} of {shown}"
    waits = limit.active_slots + slots > limit.limit
    if waits:
        logger.info("Waiting for %s: %d in use by other runs", what, limit.active_slots)
    with ExitStack() as stack:
        try:
            with _reminders(what, logger):
                held = ask_patiently(lambda: _occupy(storage, slots, options), logger)
                stack.push(_released(held, what, lease_s, logger))
        except TimeoutError:
            waited = format_duration(time.monotonic() - begin_s)
            raise InputError(
                f"no {what} came free within {waited}: see who holds them with prefect gcl inspect {shown}"
            ) from None
        except ConcurrencySlotAcquisitionError as error:
            said = for_terminal(" ".join(str(error).split()), 300)
            raise InputError(
                f"the slots of {shown} could not be had ({said}): see prefect gcl inspect {shown}"
            ) from None
        waited_s = time.monotonic() - begin_s
        # Another run may have taken a slot between the check and the request: that is a wait too.
        waits = waits or waited_s > _ROUND_TRIP_S
        if waits:
            logger.info("Got %s after waiting %s", what, format_duration(waited_s))
        else:
            logger.info("Occupying %s", what)
        yield waited_s if waits else 0.0


def _occupy(storage: str, slots: int, options: dict[str, Any]) -> AbstractContextManager[None]:
    held = concurrency(storage, occupy=slots, **options)
    held.__enter__()
    return held


def _released(
    held: AbstractContextManager[None], what: str, lease_s: float, logger: Logger
) -> Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], bool]:
    """Make the function that gives the slots back; an API that is away then must not hide how the run ended."""

    def release(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        try:
            return bool(held.__exit__(kind, error, trace))
        except Exception as problem:
            if problem is error or not is_outage(problem):
                raise
            # Prefect tries once more when the flow ends, and frees them when their lease is over.
            logger.warning(
                "%s could not be given back, since the Prefect API does not answer (%s): they are free after %s at the latest",
                what,
                type(problem).__name__,
                format_duration(lease_s),
            )
            return False

    return release


def _options(flow_run_id: UUID | None, timeout_s: float | None, lease_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout_seconds": timeout_s,
        "lease_duration": lease_s,
        "strict": True,
        "raise_on_lease_renewal_failure": False,  # a server that is away for minutes must not end a generation of hours
    }
    if flow_run_id is not None:
        options["holder"] = ConcurrencyLeaseHolder(type="flow_run", id=flow_run_id)
    return options


def require_limit(storage: str, slots: int) -> GlobalConcurrencyLimitResponse:
    """Read a storage's concurrency limit, and check that it can ever admit a job.

    Args:
        storage: name of the storage and of its limit.
        slots: what the job occupies.

    Returns:
        The limit.

    Raises:
        InputError: it is missing, 0, or smaller than the job's slots; the message has the command to run.
    """
    shown = for_terminal(storage)

    def read() -> GlobalConcurrencyLimitResponse | None:
        with get_client(sync_client=True) as client:
            return read_limit(client, storage)

    limit = ask_patiently(read, _logger)
    if limit is None:
        raise InputError(
            f"there is no concurrency limit for the storage {shown}: create it with "
            f"prefect gcl create {shown} --limit N, or let the flow plan-capacity set it with apply"
        )
    if limit.limit < 1:
        raise InputError(
            f"the concurrency limit of {shown} is 0, so nothing would ever run: raise it with "
            f"prefect gcl update {shown} --limit N"
        )
    if slots > limit.limit:
        raise InputError(
            f"a job here occupies {slots} slots of {shown} and its limit is {limit.limit}, so it would wait "
            f"for ever: raise it with prefect gcl update {shown} --limit {slots}"
        )
    return limit


@contextmanager
def _reminders(what: str, logger: Logger) -> Iterator[None]:
    done = threading.Event()

    def remind() -> None:
        begin_s, pause_s = time.monotonic(), _FIRST_REMINDER_S
        while not done.wait(pause_s):
            logger.info("Still waiting for %s after %s", what, format_duration(time.monotonic() - begin_s))
            pause_s = min(_LONGEST_REMINDER_S, pause_s * 2)

    # A plain thread has no run logger: it needs the flow's context.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(remind,), name="cachewatch-slot-wait", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
