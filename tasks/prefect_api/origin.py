"""Which flow run this is; for reports its worker and its link."""

from __future__ import annotations

import os

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from prefect_cachewatch.run.runner import Origin

#: Name of the flow `generate_cache` at Prefect.
GENERATION_FLOW = "generate-cache"


def this_run() -> FlowRun | None:
    """Return the flow run that this is called in, as Prefect had it at its start; no request is made for it."""
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def this_origin() -> Origin:
    """Return the worker that started this process, and the link to the flow run; no request is made for it."""
    run = this_run()
    link = url_for("flow-run", obj_id=run.id) if run is not None else None
    return Origin(worker=os.environ.get("PREFECT__WORKER_NAME") or None, flow_run=link)
