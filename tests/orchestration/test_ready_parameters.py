"""What Prefect itself makes of a deployment's parameters that name a readiness."""

from __future__ import annotations

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from prefect_cachewatch.flows.generation import generate_cache

JOB = {"name": "x", "command": ["true"], "cache_dirs": ["/mnt/x"]}


@pytest.mark.parametrize(
    ("values", "fine"),
    [
        ({"kind": "exit"}, True),
        ({"kind": "http", "url": "http://127.0.0.1:8000/health"}, True),
        ({"kind": "tcp", "port": 8000}, True),
        ({"kind": "tcp", "port": "a lot"}, False),
        ({"kind": "log"}, False),
    ],
)
def test_a_deployments_parameters_are_checked_with_the_union_of_kinds(values, fine):
    schema = parameter_schema(generate_cache.fn).model_dump_for_openapi()
    errors = validate({"job": {**JOB, "ready": values}}, schema, raise_on_error=False)
    assert (errors == []) is fine
