"""`deploy_cache`: pre-flight, guarded generation, verification, activation, health check, and rollback.

A new build stays current only while it is healthy. If the health check fails, the previous build
becomes current again, and the run ends Failed with both reasons.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import os
from typing import Annotated, Any

from prefect import State, flow, get_run_logger
from prefect.states import Completed, Failed

from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.generation import GenerationSummary, final_state, generate_cache
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.run.exposure import check_exposure
from prefect_cachewatch.run.health import HealthCheck
from prefect_cachewatch.store.key import PLACEHOLDER
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.tasks.prefect_api.logs import outlive_readers
from prefect_cachewatch.tasks.store import activate_cache, check_deployment, remove_surplus, roll_back_cache
from prefect_cachewatch.watching.site import check_command


@flow(name="deploy-cache", flow_run_name="{job.name}", validate_parameters=True)
def deploy_cache(
    job: CacheJob,
    publish: PublishPolicy,
    health: Annotated[HealthCheck | None, OFF] = None,
    stall: StallPolicy = StallPolicy(),  # noqa: B008 - frozen, and the UI's form shows the defaults
    stop: StopPolicy = StopPolicy(),  # noqa: B008
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008
    outputs: Outputs = Outputs(),  # noqa: B008
    storage: Annotated[Storage | None, OFF] = None,
    metrics: Annotated[Metrics | None, OFF] = None,
) -> State[Any]:
    """Generate a cache into the store, make it current, and roll back if its consumers are not healthy.

    Args:
        job: What to run; its name is the cache's.
        publish: Store, key, checks, and what is kept.
        health: The check that the new cache works; without it the deployment ends with the activation.
        stall: When silence is a stall.
        stop: How the process tree is stopped.
        retry: Whether and when a failed attempt is made again.
        outputs: Files to write beside the cache: report, log, post-mortem, recording.
        storage: Storage that the store lies on; each attempt waits for its slots.
        metrics: Prometheus metrics of the generation.
    """
    outlive_readers()
    env = dict(os.environ) | job.env
    try:
        if (warning := check_exposure({"health": health})) is not None:
            get_run_logger().warning(warning)
        if health is not None and health.command is not None:
            # Checked now, and not after an hour of generation.
            check_command(health.command, env, None)
    except InputError as error:
        return final_state(Failed(name="Refused", message=f"The health check cannot be made: {error.message}"))
    # Activated here; old builds are removed only when the new one is healthy.
    staged = publish.model_copy(update={"activate": False, "keep": None})
    generated: State[Any] = generate_cache(
        job, stall=stall, stop=stop, retry=retry, publish=staged, outputs=outputs, storage=storage, metrics=metrics,
        return_state=True,
    )  # fmt: skip
    if not generated.is_completed():
        return final_state(Failed(name=generated.name, message=generated.message))
    summary = generated.result()
    assert isinstance(summary, GenerationSummary) and summary.publication is not None
    try:
        return final_state(_deploy(str(publish.store), job.name, publish, summary, health, env))
    except InputError as error:
        return final_state(Failed(name="ActivationFailed", message=error.message))


def _deploy(
    store: str,
    name: str,
    publish: PublishPolicy,
    summary: GenerationSummary,
    health: HealthCheck | None,
    env: dict[str, str],
) -> State[Any]:
    """Activate a published build and keep it only if it is healthy."""
    built = summary.publication
    assert built is not None
    cached = built.current is not None
    previous = None if cached else activate_cache(store, name, built.build_id, forgive=False).previous
    if health is not None:
        env = {variable: value.replace(PLACEHOLDER, built.path) for variable, value in env.items()}
        result = check_deployment(health, built.path, env)
        if not result.ok:
            stays = "The cache was current before this run; nothing was switched."
            then = stays if cached else _go_back(store, name, built.build_id, result.reason)
            return Failed(name="Unhealthy", message=f"The health check failed: {result.reason}. {then}")
    remove_surplus(store, name, publish.keep)
    healthy = ", and healthy" if health is not None else ""
    replaced = f", before it {previous}" if previous else ""
    message = f"{name} is deployed{healthy}: build {built.build_id}{replaced}."
    get_run_logger().info(message)
    return Completed(name="Cached" if cached else "Completed", message=message, data=summary)


def _go_back(store: str, name: str, build_id: str, why: str) -> str:
    """Roll back, and describe the result in a sentence."""
    try:
        back = roll_back_cache(store, name, expected=build_id, unhealthy=why).build_id
    except InputError as error:
        return f"The roll-back failed too: {error.message}."
    return f"Rolled back from {build_id} to {back}."
