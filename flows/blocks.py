"""`CacheGeneration`: a job and its policies as a Prefect block, which is configured in the UI and run anywhere."""

from __future__ import annotations

from typing import Annotated, Any

from prefect.blocks.core import Block
from pydantic import Field

from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.fleet.jobs import MODELS
from prefect_cachewatch.flows.generation import CacheGenerationError, GenerationSummary, generate_cache
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.store.policy import PublishPolicy


class CacheGeneration(Block):
    """A guarded generation of a tensor cache: what to run, when silence is a stall, where the cache goes.

    Example:
        ```python
        from prefect_cachewatch import CacheGeneration

        summary = CacheGeneration.load("llama-n150").run()
        ```
    """

    _block_type_name = "Cache Generation"
    _description = (
        "Generates a tensor cache under guard: watches the bytes grow, stops a stalled generator's whole process tree, "
        "and says why."
    )

    job: CacheJob = Field(description="What to run, and which directories must grow.")
    stall: StallPolicy = Field(default=StallPolicy(), description="When silence is a stall.")
    stop: StopPolicy = Field(default=StopPolicy(), description="How the process tree is stopped.")
    retry: RetryPolicy = Field(default=RetryPolicy(), description="Whether and when a failed attempt is made again.")
    publish: Annotated[PublishPolicy | None, OFF] = Field(
        default=None,
        description="The store: how the finished cache is verified and published; without it, it is only generated.",
    )
    outputs: Outputs = Field(
        default=Outputs(), description="What is left beside the cache: report, log, post-mortem, recording."
    )
    storage: Annotated[Storage | None, OFF] = Field(
        default=None, description="Storage that the cache lies on, whose slots each attempt waits for."
    )
    metrics: Annotated[Metrics | None, OFF] = Field(
        default=None, description="Prometheus metrics of the run; default none."
    )

    def run(self) -> GenerationSummary:
        """Run the flow `generate-cache` in this process, and wait for its end; inside a flow it is a subflow.

        Returns:
            The summary of the run.

        Raises:
            CacheGenerationError: the run failed; `data["state"]` is the name of its final state.
        """
        state: Any = generate_cache(self.job, **{name: getattr(self, name) for name in MODELS}, return_state=True)
        if not state.is_completed():
            raise CacheGenerationError(f"{state.name}: {state.message}", state=state.name)
        summary: Any = state.result(_sync=True)  # the caller may be async code
        assert isinstance(summary, GenerationSummary)
        return summary
