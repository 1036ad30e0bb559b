"""The models of a jobs file: jobs, and the policy of the fleet. Reads no file."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from prefect_cachewatch.config import (
    CACHE_DIR_PLACEHOLDER,
    CacheJob,
    InputModel,
    Outputs,
    RetryPolicy,
    StallPolicy,
    StopPolicy,
    Storage,
)
from prefect_cachewatch.config.quantities import Duration
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.store.policy import PublishPolicy

#: Parameters of `generate_cache` that a fleet's job passes on unchanged.
MODELS = ("stall", "stop", "retry", "publish", "outputs", "storage", "metrics")


def check_deployment_name(name: str) -> str:
    """Check that a deployment is named in Prefect's form.

    Args:
        name: flow/name.

    Returns:
        The same name.

    Raises:
        ValueError: it is something else.

    Example:
        >>> check_deployment_name("generate-cache/fleet-member")
        'generate-cache/fleet-member'
    """
    if not re.fullmatch(r"[^/]+/[^/]+", name):
        raise ValueError(f"{name!r} is not flow/name: write it like generate-cache/fleet-member")
    return name


# Fields of a job that change nothing in its cache.
_ONLY_WATCHED = {"on_stall", "expected_bytes", "ignore", "allow_empty", "progress_log"}


class FleetJob(CacheJob):
    """One job of a fleet: a cache job, its policies, and where and when it runs."""

    stall: StallPolicy | None = Field(default=None, description="When silence is a stall; default the deployment's.")
    stop: StopPolicy | None = Field(default=None, description="How the process tree is stopped.")
    retry: RetryPolicy | None = Field(default=None, description="Whether and when a failed attempt is made again.")
    publish: PublishPolicy | None = Field(
        default=None,
        description="How the finished cache is verified and published; one that is whole already is skipped.",
    )
    outputs: Outputs | None = Field(default=None, description="What is left on the machine that runs the job.")
    storage: Storage | None = Field(
        default=None, description="Storage that the cache lies on, whose slots it waits for."
    )
    metrics: Metrics | None = Field(default=None, description="Prometheus metrics of the job.")
    deployment: str | None = Field(
        default=None,
        description="Deployment that runs the job, as flow/name: generate-cache/fleet-member. Default: run in the fleet's own host.",
    )
    work_queue: str | None = Field(
        default=None,
        min_length=1,
        description="Work queue of the deployment's work pool; the queue's priority says who is served first.",
    )
    priority: int = Field(
        default=100, ge=1, le=10_000, description="Jobs with a smaller number start earlier; equal ones as written."
    )

    @field_validator("deployment")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return None if name is None else check_deployment_name(name)

    @property
    def storage_name(self) -> str | None:
        """Name of the storage, if one is named."""
        return self.storage.name if self.storage is not None else None

    @property
    def cache_job(self) -> CacheJob:
        """The job without the fields that only a fleet has."""
        return CacheJob.model_validate(
            {name: getattr(self, name) for name in CacheJob.model_fields if name in self.model_fields_set}
        )

    @property
    def digest(self) -> str:
        """Identifies this job, and changes when it is edited: 16 hex digits over what it runs and where it writes.

        What only changes how it is watched is left out.
        """
        told = self.model_dump(mode="json", include=set(CacheJob.model_fields) - _ONLY_WATCHED)
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories that it names itself, without the one that a store gives it."""
        return tuple(path for path in self.cache_dirs if CACHE_DIR_PLACEHOLDER not in str(path))

    def parameters(self) -> dict[str, Any]:
        """Make the parameters of `generate_cache`, as JSON values.

        Returns:
            The fields that were written; the others come from the deployment's parameters and the flow's defaults.
        """
        job = self.cache_job
        # Whole below the first level: the kind of a value may itself be a default.
        found: dict[str, Any] = {"job": job.model_dump(mode="json", include=job.model_fields_set)}
        for name in MODELS:
            policy = getattr(self, name)
            if policy is not None:
                found[name] = policy.model_dump(mode="json", exclude_unset=True)
        return found


class FleetPolicy(InputModel):
    """How a fleet treats its jobs."""

    max_parallel: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Jobs at once; default 2 in the fleet's own host, and all over workers, whose pools have limits.",
    )
    on_failure: Literal["continue", "stop_new", "fail_fast"] = Field(
        default="continue",
        description="Once more than max_failures jobs have failed: continue with the others; stop_new: start no more of "
        "them; fail_fast: stop those that run, too.",
    )
    max_failures: int | None = Field(
        default=None, ge=0, le=10_000, description="Failed jobs that are put up with before on_failure acts; default 0."
    )
    missing_limit: str = Field(
        default="error",
        description="A storage without a concurrency limit: error; ignore: run its jobs unprotected; create:N: make one of N slots.",
    )
    poll_s: Duration = Field(default=15, ge=0.2, le=3600, description="Time between two looks at Prefect's API.")
    table_every_s: Duration = Field(
        default=60, ge=0.2, le=3600, description="Shortest time between two updates of the table."
    )

    @field_validator("missing_limit")
    @classmethod
    def _known(cls, word: str) -> str:
        if not re.fullmatch(r"error|ignore|create:[1-9][0-9]{0,6}", word):
            raise ValueError(f"{word!r} is not error, ignore or create:N: write it like create:4")
        return word

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_failures is not None and self.on_failure == "continue":
            raise ValueError(
                "max_failures needs on_failure: stop_new or fail_fast; with continue nothing counts failures"
            )
        return self

    @property
    def created_limit(self) -> int | None:
        """Slots of a limit that the fleet makes if it is missing; None if it makes none."""
        word, _, slots = self.missing_limit.partition(":")
        return int(slots) if word == "create" else None


class FleetPlan(InputModel):
    """A whole fleet, as a jobs file describes it."""

    version: Literal[1] = Field(description="Version of this format: 1.")
    name: str = Field(
        default="fleet",
        min_length=1,
        max_length=100,
        description="Name of the fleet; it names its table.",
    )
    policy: FleetPolicy = Field(default=FleetPolicy(), description="How the fleet goes about its jobs.")
    jobs: list[FleetJob] = Field(min_length=1, max_length=10_000, description="The jobs, one entry a cache.")

    def in_order(self) -> list[FleetJob]:
        """The jobs in the order in which they start."""
        return sorted(self.jobs, key=lambda job: job.priority)
