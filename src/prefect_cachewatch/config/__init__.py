"""Input models: the job, the policies of stall, stop and retry, outputs and storage.

They are pydantic models with bounds and a description on each field, so that the Prefect UI's form explains itself.
Nothing here looks at the machine: the pre-flight does that.
"""

from __future__ import annotations

from prefect_cachewatch.common.directories import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.config.attach import AttachJob
from prefect_cachewatch.config.container import ContainerMount, ContainerSpec
from prefect_cachewatch.config.job import CacheJob, MarkerFiles
from prefect_cachewatch.config.outputs import Outputs, Storage
from prefect_cachewatch.config.policies import RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.config.quantities import InputModel
from prefect_cachewatch.config.ready import (
    ReadyOnExit,
    ReadyOnFile,
    ReadyOnHttp,
    ReadyOnLog,
    ReadyOnTcp,
    ReadyServer,
    ReadyWhen,
)
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE

__all__ = [
    "CACHE_DIR_PLACEHOLDER",
    "DEFAULT_IGNORE",
    "AttachJob",
    "CacheJob",
    "ContainerMount",
    "ContainerSpec",
    "InputModel",
    "MarkerFiles",
    "Outputs",
    "ReadyOnExit",
    "ReadyOnFile",
    "ReadyOnHttp",
    "ReadyOnLog",
    "ReadyOnTcp",
    "ReadyServer",
    "ReadyWhen",
    "RetryPolicy",
    "StallPolicy",
    "StopPolicy",
    "Storage",
]
