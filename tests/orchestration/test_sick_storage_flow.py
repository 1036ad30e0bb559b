"""Several generations, on two workers, on one storage that pauses or dies: one incident, told once, and slots held back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.orchestration.conftest import running_server
from tests.orchestration.sick_storage import Storage, dies, mounted_storage, pauses

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, state_directory: Path) -> Iterator[Storage]:
    more = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.5"}
    with (
        running_server(tmp_path_factory.mktemp("sick"), state_directory, more) as server,
        mounted_storage(server, tmp_path_factory.mktemp("storage"), runs=4, window_s=36) as made,
    ):
        yield made


def test_a_storage_that_pauses_is_one_incident_and_every_run_completes(storage: Storage) -> None:
    pauses(storage)


def test_a_storage_that_is_dead_is_one_incident_and_each_run_has_its_own_end(storage: Storage) -> None:
    dies(storage)
