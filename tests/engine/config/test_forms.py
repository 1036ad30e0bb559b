"""How the models' fields look in the run form, and that the server's check takes what the form and programs send."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from prefect_cachewatch import deploy_cache, generate_cache
from prefect_cachewatch.config import CacheJob, ContainerSpec, InputModel, Outputs, RetryPolicy, StallPolicy, Storage
from prefect_cachewatch.config.container import ContainerMount, DeviceMapping
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.store.policy import PublishPolicy

SCHEMA = parameter_schema(generate_cache.fn).model_dump()
MODELS = [
    CacheJob, ContainerMount, ContainerSpec, DeviceMapping, Metrics, Outputs, PublishPolicy, RetryPolicy, StallPolicy,
    Storage,
]  # fmt: skip


def errors(**parameters: Any) -> list[str]:
    return [each.message for each in validate({"job": {"name": "llama"}, **parameters}, SCHEMA)]


@pytest.mark.parametrize("flow", [generate_cache, deploy_cache])
def test_no_field_offers_a_plain_null_to_the_form(flow: Any) -> None:
    schema = parameter_schema(flow.fn).model_dump()
    groups = [schema["properties"], *(each.get("properties", {}) for each in schema["definitions"].values())]
    fields = [field for group in groups for field in group.values()]
    assert len(fields) > 80
    # A null beside another default, as of `keep`, is there to be chosen.
    empty = [field for field in fields if field.get("default") is None]
    kinds = list(itertools.chain.from_iterable(field.get("anyOf", [field]) for field in empty))
    assert [kind for kind in kinds if kind.get("type") == "null"] == []


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_a_title_and_the_rare_ones_stand_last(model: type[InputModel]) -> None:
    schema = model.model_json_schema()
    fields = schema.get("anyOf", [schema])[0]["properties"]  # a mount is also written as one text
    assert list(fields)[-len(model.ADVANCED) or len(fields) :] == [n for n in model.model_fields if n in model.ADVANCED]
    assert set(fields) == set(model.model_fields)
    for name, field in fields.items():
        assert field["title"].startswith("Advanced: ") == (name in model.ADVANCED)
        assert "_" not in field["title"] and not field["title"].endswith((" s", " bytes"))


def test_titles_say_the_unit() -> None:
    fields = StallPolicy.model_json_schema()["properties"]
    assert fields["stall_after_s"]["title"] == "Stall after (seconds, or 5m)"
    assert fields["unresponsive_after_s"]["title"] == "Advanced: unresponsive after (seconds, or 5m)"
    assert CacheJob.model_json_schema()["properties"]["expected_bytes"]["title"] == "Expected (bytes, or 4GiB)"


def test_the_server_takes_nulls_numbers_texts_and_what_off_sends() -> None:
    assert errors() == []
    assert errors(stall=StallPolicy().model_dump(mode="json"), retry=RetryPolicy().model_dump(mode="json")) == []
    assert errors(stall={"unresponsive_after_s": "20m", "max_duration_s": 7}) == []
    assert errors(publish=None, storage=None, metrics=None, profile=None) == []
    assert errors(publish={}, storage={}, metrics={}, profile={}) == []
    full = CacheJob(name="llama", container=ContainerSpec(image="gen:1")).model_dump(mode="json")
    assert errors(job=full, outputs=Outputs().model_dump(mode="json")) == []


@pytest.mark.parametrize(
    "wrong",
    [{"stall": {"unresponsive_after_s": "soon"}}, {"storage": {"slots": 2}}, {"publish": 7}, {"job": {"name": None}}],
)
def test_the_server_refuses_what_is_wrong(wrong: dict[str, Any]) -> None:
    assert errors(**wrong) != []


def test_off_is_null() -> None:
    job = {"name": "llama", "command": ["true"], "cache_dirs": ["/mnt/cache"]}
    assert CacheJob.model_validate({**job, "container": {}, "markers": {}}) == CacheJob.model_validate(job)
    found = generate_cache.validate_parameters({"job": job, "publish": {}, "storage": {}, "profile": {}})
    assert [found[name] for name in ("publish", "storage", "profile")] == [None] * 3
    found = generate_cache.validate_parameters({"job": job, "storage": "nfs"})
    assert found["storage"] == Storage(name="nfs")
