"""Events of a cache, for automations: `cachewatch.generation.started`, `.progress`, `.suspected`, `.stalled`, ...

The resource is the cache, `cachewatch.cache.<slug>`, the same for every run of that cache; Prefect relates the run
itself, and cachewatch the storage that the cache lies on, in the role `storage`. Those of `cachewatch.run.*` are about the
flow run. Emitting never waits for a server: Prefect sends events from a thread of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from prefect.events import emit_event

from prefect_cachewatch.common.mounts import storage_of
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.tasks.prefect_api.origin import this_run


def resource_id(name: str) -> str:
    """Return the id of a cache's resource, stable over its runs.

    Args:
        name: name of the job.

    Example:
        >>> resource_id("Llama 3 70B")
        'cachewatch.cache.llama-3-70b'
    """
    return f"cachewatch.cache.{slugify(name)}"


def describe_end(report: Report) -> tuple[str, str, dict[str, Any]]:
    """Return the event that reports the end of an attempt.

    Args:
        report: the attempt's report.

    Returns:
        Kind, name of the job, payload: outcome, headline, message, the stall's kind, the diagnosis' category,
        summary and confidence, the numbers, and `where` and `ready` as in the report.
    """
    growth, diagnosis = report.growth, report.diagnosis
    return (
        report.outcome,
        report.name,
        {
            "attempt": report.attempt,
            "where": asdict(report.where) if report.where else None,
            "outcome": report.outcome,
            "kind": report.stall.kind,
            "category": diagnosis.category if diagnosis else None,
            "confidence": diagnosis.confidence if diagnosis else None,
            "summary": diagnosis.summary if diagnosis else None,
            "headline": report.headline or report.facts,
            "message": report.message,
            "bytes_written": growth.bytes_written,
            "bytes_present": growth.bytes_present,
            "files_present": growth.files_present,
            "duration_s": report.duration_s,
            "longest_pause_s": growth.longest_pause_s,
            "exit_code": report.exit_code,
            "bundle": report.bundle,
            "retry": asdict(report.retry) if report.retry else None,
            "ready": asdict(report.ready) if report.ready else None,
        },
    )


def storage_resource(name: str | None, paths: Sequence[str]) -> dict[str, str] | None:
    """Return the storage that a cache lies on, as a related resource of its events; the same for all runs on it.

    Args:
        name: of the storage, where the run says so.
        paths: the run's directories; without a name the file system of the first one counts, which is not asked.

    Returns:
        The resource; None without a name and a directory.

    Example:
        >>> storage_resource("fast-ssd", [])["prefect.resource.id"]
        'cachewatch.storage.fast-ssd'
    """
    if name is None and not paths:
        return None
    key, told = (name, name) if name is not None else storage_of(paths[0], os.uname().nodename)
    slug = slugify(key, most=200, other="storage")
    if slug != key:  # `fast_ssd` is another one than `fast-ssd`
        slug += f"-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
    return {
        "prefect.resource.id": f"cachewatch.storage.{slug}",
        "prefect.resource.role": "storage",
        "prefect.resource.name": for_terminal(told, 200),
    }


def emit_generation_event(
    kind: str, name: str, payload: Mapping[str, Any], storage: dict[str, str] | None = None
) -> bool:
    """Emit `cachewatch.generation.<kind>` about a cache.

    Args:
        kind: started, progress, suspected, warming_up, or an outcome: nothing_written, stalled, failed, deadline_exceeded, cancelled, completed.
        name: name of the job.
        payload: numbers and short texts; no secrets.
        storage: from `storage_resource`.

    Returns:
        Whether it was handed to Prefect.
    """
    related = [storage] if storage is not None else None
    return _emit(f"cachewatch.generation.{kind}", _cache_resource(name), payload, related=related)


def emit_cache_event(kind: str, name: str, payload: Mapping[str, Any]) -> bool:
    """Emit `cachewatch.cache.<kind>` about a cache.

    Args:
        kind: published, activated, rolled-back or quarantined.
        name: name of the cache.
        payload: build, key, paths and numbers; no secrets.

    Returns:
        Whether it was handed to Prefect.
    """
    return _emit(f"cachewatch.cache.{kind}", _cache_resource(name), payload)


def emit_run_event(kind: str, payload: Mapping[str, Any]) -> bool:
    """Emit `cachewatch.run.<kind>` about the flow run that this is called in, for the automation `silent`.

    Args:
        kind: sampled or paused.
        payload: numbers and short texts; no secrets.

    Returns:
        Whether it was handed to Prefect.
    """
    run = this_run()
    if run is None:
        return False
    return _emit(f"cachewatch.run.{kind}", _run_resource(run.id, run.name, "RUNNING"), payload)


def _run_resource(run_id: UUID, name: str, state_type: str) -> dict[str, str]:
    # The type is the label of the run's own states: triggers match it, and so leave out Prefect's heartbeats.
    return {
        "prefect.resource.id": f"prefect.flow-run.{run_id}",
        "prefect.resource.name": for_terminal(name, 100),
        "prefect.state-type": state_type,
    }


def _cache_resource(name: str) -> dict[str, str]:
    return {"prefect.resource.id": resource_id(name), "prefect.resource.name": for_terminal(name, 100)}


def _encodable(value: Any) -> Any:
    """Escape lone surrogates, of file names: Prefect encodes an event in a thread of its own, and would lose it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list | tuple) else value


def _emit(event: str, resource: dict[str, str], payload: Mapping[str, Any], **more: Any) -> bool:
    try:
        emit_event(event, resource=resource, payload=_encodable(dict(payload)), **more)
    except Exception:  # noqa: BLE001 - an event that cannot be sent changes nothing
        return False
    return True
