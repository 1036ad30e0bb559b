"""The server's API as the scale test itself asks it, marked so that these requests are not counted."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import httpx

MARK = "scale"  # `?by=scale`, left out by `count_requests`
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
OPEN = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")
_TRIES = 6


class Api:
    """Asks, and asks again where the server is busy or not there.

    Args:
        url: of the API.
    """

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Make a request.

        Args:
            method: of HTTP.
            path: below the API's.
            body: sent as JSON.
            query: more of the URL.

        Returns:
            The answer.

        Raises:
            RuntimeError: the server says no.
        """
        for left in reversed(range(_TRIES)):
            try:
                answer = self._client.request(method, path, json=body, params={"by": MARK, **query})
            except httpx.TransportError:
                if not left:
                    raise
            else:
                if answer.status_code != 503 or not left:
                    break
            time.sleep(1)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None

    def count_over(self) -> int:
        """Count the flow runs in final states."""
        return int(self.ask("POST", "/flow_runs/count", {"flow_runs": {"state": {"type": {"any_": FINAL}}}}))

    def count_open_task_runs(self) -> int:
        """Count the task runs that are not, as far as their events have arrived."""
        return int(self.ask("POST", "/task_runs/count", {"task_runs": {"state": {"type": {"any_": OPEN}}}}))

    def active_slots(self, limit: str) -> int:
        """Say how many slots of a concurrency limit are held."""
        return int(self.ask("GET", f"/v2/concurrency_limits/{limit}")["active_slots"])

    def put_back(self, pending_s: float) -> list[str]:
        """Give back to the queue what a worker took and, being killed, never started.

        Args:
            pending_s: how long a run may be Pending; longer than the slowest start of a flow process.

        Returns:
            Ids of the flow runs that were put back.
        """
        found = self.ask("POST", "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["PENDING"]}}}})
        late = [run["id"] for run in found if time.time() - _epoch(run["state"]["timestamp"]) > pending_s]
        for run in late:
            state = {"type": "SCHEDULED", "name": "Requeued"}
            self.ask("POST", f"/flow_runs/{run}/set_state", {"state": state, "force": True})
        return late

    def states(self, run: str) -> list[tuple[str, str, float]]:
        """List a flow run's states, the first one first: type, name, wall time."""
        found = self.ask("GET", "/flow_run_states/", flow_run_id=run)
        return sorted(
            ((state["type"], state["name"], _epoch(state["timestamp"])) for state in found), key=lambda state: state[2]
        )


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
