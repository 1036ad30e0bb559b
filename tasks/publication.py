"""Verifying and publishing a generated build as Prefect tasks, with its asset and its events; the engine does the work.

The asset is the path that consumers open, the same for every build of a cache. The events are about the
cache too, so that one automation follows all its builds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prefect import State, task
from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed
from prefect.tasks import MaterializingTask

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.events import Published
from prefect_cachewatch.engine.front import Front
from prefect_cachewatch.tasks.prefect_api.events import emit_cache_event

# Characters that Prefect refuses in an asset's key, and control characters.
_NOT_IN_KEY = re.compile(r"[\s#?&%\"'<>\[\]{}|\\^`\x00-\x1f\x7f-\x9f]")
_KEY_MAX = 512
_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


def asset_key(path: str) -> str:
    """Return the key of the asset that a path is, in Prefect's form.

    Args:
        path: absolute.

    Returns:
        A `file://` address; characters that Prefect refuses are dashes in it.

    Example:
        >>> asset_key("/mnt/caches/llama 3/current")
        'file:///mnt/caches/llama-3/current'
    """
    return f"file://{_NOT_IN_KEY.sub('-', path.encode('utf-8', 'replace').decode())}"[:_KEY_MAX]


@task(name="verify-build", task_run_name="verify-build", **_OPTIONS)
def verify_build(front: Front, name: str) -> State[None]:
    """Follow the check of a generated build.

    Args:
        front: of the engine that checks it.
        name: the cache.

    Returns:
        Completed; or Failed, named `VerificationFailed`.
    """
    front.wait(lambda: front.checked is not None)
    if (checked := front.checked) is None:
        return Failed(name="VerificationFailed", message="The build was not checked to its end.")
    if checked.is_good:
        return Completed(message=checked.message)
    if checked.publication is not None:
        emit_refusal(name, checked.publication, checked.message)
    return Failed(name="VerificationFailed", message=checked.message)


def publisher_of(name: str, path: str) -> MaterializingTask[..., State[None]]:
    """Make the task `publish-cache` for a cache: only here is it known which asset it materializes.

    Args:
        name: the cache.
        path: what its consumers open.

    Returns:
        A task that takes the engine's front; Completed, or Failed, named `VerificationFailed`, if the build changed
        meanwhile or could not be written.
    """
    properties = AssetProperties(name=for_terminal(name, 100), description="Tensor cache, whole and verified.")
    asset = Asset(key=asset_key(path), properties=properties)

    @materialize(asset, by="cachewatch", name="publish-cache", task_run_name="publish-cache", **_OPTIONS)
    def publish_cache(front: Front) -> State[None]:
        front.wait(lambda: front.published is not None)
        told = front.published
        if not isinstance(told, Published):
            if told is not None and told.publication is not None:
                emit_refusal(name, told.publication, told.message)
            message = told.message if told is not None else "The build was not published."
            return Failed(name="VerificationFailed", message=message)
        done = told.publication
        emit_published(name, told)
        known = {field: done[field] for field in ("key", "build_id", "path", "manifest")}
        asset.add_metadata({"bytes": done["total_bytes"], "files": done["total_files"], **known})
        return Completed(message="The build was published.")  # the flow's message has the whole sentence

    return publish_cache


def emit_published(name: str, told: Published) -> None:
    """Emit that a build was published, unless it had been before, and that consumers open it, if that is new."""
    payload = event_payload(told.publication)
    if told.publication["status"] != "cached":
        emit_cache_event("published", name, {**payload, "current": None, "previous": None})
    if told.is_switched:
        emit_cache_event("activated", name, payload)


def emit_refusal(name: str, publication: Mapping[str, Any], message: str) -> None:
    """Emit that a build was refused."""
    emit_cache_event("quarantined", name, {**event_payload(publication), "message": message})


def event_payload(publication: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of an event about a build.

    Args:
        publication: the result of publishing it, as a report has it.

    Returns:
        Build, key, paths, numbers and at most 50 findings.
    """
    return {
        "build_id": publication["build_id"],
        "key": publication["key"],
        "bytes": publication["total_bytes"],
        "files": publication["total_files"],
        "path": publication["path"],
        "manifest": publication["manifest"],
        "quarantine": publication["quarantine"],
        "current": publication["current"],
        "previous": publication["previous"],
        "findings": list(publication["findings"])[:50],
    }
