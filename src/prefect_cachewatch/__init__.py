"""Guarded tensor-cache generation for Prefect.

The public names are those of `__all__`, with those of `prefect_cachewatch.flows` and `prefect_cachewatch.capacity`. All
else is private: it may change in any release.

Nothing is imported at this level, and a public name when it is first used: the guard and scan processes start through it.
"""

# Type checkers take a name like this for typing's, whose import costs a guard several milliseconds.
TYPE_CHECKING = False

__all__ = [
    "BuildDamaged",
    "CacheDirectoryBusy",
    "CacheGeneration",
    "CacheGenerationError",
    "CacheJob",
    "CacheStore",
    "CachewatchError",
    "ContainerMount",
    "ContainerSpec",
    "GenerationSummary",
    "HealthCheck",
    "InputError",
    "MarkerFiles",
    "Metrics",
    "NotEnoughSpace",
    "Outputs",
    "Profile",
    "PublishPolicy",
    "ReadyOnFile",
    "ReadyOnHttp",
    "ReadyOnLog",
    "ReadyOnTcp",
    "Report",
    "RetryPolicy",
    "StallPolicy",
    "StopPolicy",
    "Storage",
    "StoreBusy",
    "StoreError",
    "__version__",
    "deploy_cache",
    "generate_cache",
    "generate_fleet",
    "make_profile",
    "monitor_cache",
    "storage_slot",
    "watch",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from prefect_cachewatch.config import (
        CacheJob,
        ContainerMount,
        ContainerSpec,
        MarkerFiles,
        Outputs,
        ReadyOnFile,
        ReadyOnHttp,
        ReadyOnLog,
        ReadyOnTcp,
        RetryPolicy,
        StallPolicy,
        StopPolicy,
        Storage,
    )
    from prefect_cachewatch.config.profiles import Profile, make_profile
    from prefect_cachewatch.errors import (
        BuildDamaged,
        CacheDirectoryBusy,
        CachewatchError,
        InputError,
        NotEnoughSpace,
        StoreBusy,
        StoreError,
    )
    from prefect_cachewatch.flows import (
        CacheGeneration,
        CacheGenerationError,
        GenerationSummary,
        deploy_cache,
        generate_cache,
        generate_fleet,
    )
    from prefect_cachewatch.metrics.settings import Metrics
    from prefect_cachewatch.report.report import Report
    from prefect_cachewatch.run.health import HealthCheck
    from prefect_cachewatch.run.watch import watch
    from prefect_cachewatch.store.policy import PublishPolicy
    from prefect_cachewatch.store.store import CacheStore
    from prefect_cachewatch.tasks import monitor_cache
    from prefect_cachewatch.tasks.prefect_api.storage_slots import storage_slot
else:
    _PLACES = {
        "config": (
            "CacheJob ContainerMount ContainerSpec MarkerFiles Outputs ReadyOnFile ReadyOnHttp ReadyOnLog "
            "ReadyOnTcp RetryPolicy StallPolicy StopPolicy Storage"
        ),
        "config.profiles": "Profile make_profile",
        "errors": ("BuildDamaged CacheDirectoryBusy CachewatchError InputError NotEnoughSpace StoreBusy StoreError"),
        "flows": ("CacheGeneration CacheGenerationError GenerationSummary deploy_cache generate_cache generate_fleet"),
        "metrics.settings": "Metrics",
        "report.report": "Report",
        "run.health": "HealthCheck",
        "store.policy": "PublishPolicy",
        "store.store": "CacheStore",
        "run.watch": "watch",
        "tasks": "monitor_cache",
        "tasks.prefect_api.storage_slots": "storage_slot",
    }

    def __getattr__(name):
        from prefect_cachewatch.common.lazy import resolve  # noqa: PLC0415 - no guard needs it

        return resolve(globals(), _PLACES, name)

    def __dir__():
        return list(__all__)
