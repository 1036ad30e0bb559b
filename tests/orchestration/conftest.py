"""One temporary Prefect server for the whole session: it takes about ten seconds to start."""

import pytest


@pytest.fixture(scope="session")
def prefect_harness():
    """Run flows against a temporary server with a database of its own."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
