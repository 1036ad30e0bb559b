"""Twelve generations of two workers on one storage that pauses or dies, with PostgreSQL and Redis: `make test-storage`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.orchestration.conftest import Server
from tests.orchestration.incident_checks import check_interrupted, check_one_acts
from tests.orchestration.sick_storage import Storage, dies, mounted_storage, pauses
from tests.scale.services import MissingPart, Stack
from tests.support import unavailable

pytestmark = [pytest.mark.storage, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    try:
        stack = Stack({}, {"PREFECT_WORKER_QUERY_SECONDS": "2"})
    except MissingPart as error:
        unavailable(str(error))
    try:
        stack.start()
        server = Server(stack.url, stack.client_env, stack.processes["server"])
        with mounted_storage(server, tmp_path_factory.mktemp("storage"), runs=12, window_s=60) as made:
            yield made
    finally:
        stack.close()


def test_on_this_database_too_one_of_many_takers_acts_and_a_killed_one_is_followed_by_another(storage: Storage) -> None:
    check_one_acts(storage.server.url)
    check_interrupted(storage.server.url, "killed", 1, 3, 600)


def test_twelve_runs_complete_though_their_storage_pauses_for_three_windows(storage: Storage) -> None:
    pauses(storage)


def test_of_twelve_runs_on_a_dead_storage_each_has_its_own_end(storage: Storage) -> None:
    dies(storage)
