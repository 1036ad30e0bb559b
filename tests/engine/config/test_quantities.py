"""Durations and sizes in models: written as text or number, stored as a number, and the JSON schema says the same."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import prefect_cachewatch.capacity.probe.measure
import prefect_cachewatch.config.profiles
import prefect_cachewatch.fleet.jobs
import prefect_cachewatch.run.health  # noqa: F401 - for the models that it has
from prefect_cachewatch.config import CacheJob, ContainerSpec, InputModel, RetryPolicy, StallPolicy
from prefect_cachewatch.config.quantities import Duration, Size, quantity_of


def models(base: type[InputModel] = InputModel) -> set[type[InputModel]]:
    return {found for model in base.__subclasses__() for found in {model, *models(model)}}


@pytest.mark.parametrize("model", sorted(models(), key=lambda model: model.__name__), ids=lambda model: model.__name__)
def test_every_field_in_seconds_or_bytes_may_be_written_with_a_unit(model):
    schema = json.dumps(model.model_json_schema())
    assert not any(f'"{word}": ' in schema for word in ("ge", "gt", "le", "lt")), "bounds that no JSON schema knows"
    for name, field in model.model_fields.items():
        if name.endswith(("_s", "_bytes")) and not name.endswith(("_per_s", "ops_per_s")):
            assert quantity_of(field), f"{model.__name__}.{name}"


def test_what_is_stored_is_a_number():
    stall = StallPolicy.model_validate({"stall_after_s": "5m", "max_duration_s": "1h30m"})
    assert (stall.stall_after_s, stall.max_duration_s) == (300.0, 5400.0)
    assert stall == StallPolicy(stall_after_s=300, max_duration_s=5400)
    assert '"stall_after_s":300.0' in stall.model_dump_json()
    assert RetryPolicy.model_validate({"backoff_s": "250ms"}).backoff_s == 0.25
    job = CacheJob.model_validate({"name": "x", "command": ["x"], "expected_bytes": "40GB"})
    assert job.expected_bytes == 40 * 10**9
    with pytest.raises(ValidationError, match="'4 potatoes' is not a size: write it like 4096, 4KiB or 10MB"):
        CacheJob.model_validate({"name": "x", "command": ["x"], "expected_bytes": "4 potatoes"})
    with pytest.raises(ValidationError, match="valid integer"):
        CacheJob.model_validate({"name": "x", "command": ["x"], "expected_bytes": 1.5})


@pytest.mark.parametrize(("text", "size"), [("16g", 2**34), ("16GiB", 2**34), ("16GB", 16 * 10**9), ("512 M", 2**29)])
def test_memory_is_written_as_docker_writes_it(text, size):
    spec = ContainerSpec.model_validate({"image": "x", "memory_bytes": text, "shm_size_bytes": text})
    assert spec.memory_bytes == spec.shm_size_bytes == size


@pytest.mark.parametrize(
    ("field", "given", "sentence"),
    [
        ("stall_after_s", "5 minutes", "'5 minutes' is not a duration: write it like 90s, 5m or 1h30m"),
        ("stall_after_s", "0s", "greater than or equal to 0.2"),
        ("max_duration_s", "100d", "less than or equal to 2419200"),
        ("poll_s", True, "true is not a duration"),
        ("poll_s", None, "valid number"),
    ],
)
def test_what_is_none_is_refused_in_a_sentence(field, given, sentence):
    with pytest.raises(ValidationError) as error:
        StallPolicy.model_validate({field: given})
    assert sentence in str(error.value)
    with pytest.raises(jsonschema.ValidationError):
        # "0s" has the form of a duration: a schema cannot say that it is too short.
        jsonschema.validate({field: given if given not in ("0s", "100d") else 0}, StallPolicy.model_json_schema())


@given(
    st.sampled_from([Duration, Size]),
    st.lists(st.sampled_from([*"059.eE+- ", "1e3", "ms", "s", "M", "h", "KiB", "kb", "Gi", "B", "x"]), max_size=6).map(
        "".join
    ),
)
def test_the_schema_reads_text_as_the_field_does(kind, text):
    check(TypeAdapter(kind), text)


def check(adapter, value):
    try:
        stored = adapter.validate_python(value)
    except ValidationError:
        stored = "refused"
    schema = adapter.json_schema()
    fits = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert fits == (stored != "refused")
    if fits and stored is not None:
        assert jsonschema.Draft202012Validator(adapter.json_schema(mode="serialization")).is_valid(stored)
