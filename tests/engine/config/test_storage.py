"""A storage and a destination of metrics may be written as a text alone."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from prefect_cachewatch.config import Storage
from prefect_cachewatch.metrics.settings import Metrics


def test_the_name_alone_is_a_storage_and_the_destination_alone_metrics() -> None:
    assert TypeAdapter(Storage | None).validate_python("nfs-a") == Storage(name="nfs-a")
    assert TypeAdapter(Metrics | None).validate_python(":9464") == Metrics(to=":9464")


@pytest.mark.parametrize("given", ["", "n" * 201, 7, ["nfs-a"], {"slots": 2}, {"name": "nfs-a", "slots": 0}])
def test_what_names_no_storage_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        Storage.model_validate(given)
