"""A healthy generation and one that freezes, through the real flow, in about a minute: `make demo` calls this.

    python3 examples/demo.py [DIR]

Without PREFECT_API_URL Prefect starts a temporary server. The caches and the reports go into DIR (default demo-output).
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

# A temporary server that sends telemetry starts late, and 20 s are too few for it on a busy machine.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort

from prefect_cachewatch import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, generate_cache

GENERATOR = Path(__file__).with_name("generate.py")
LAYERS, FREEZE_AT = 5, 3
STALL_S = 5.0


def run_generation(root: Path, kind: str, extra: list[str]) -> str:
    """Run one generation and return the name of its final state."""
    state = generate_cache(
        CacheJob(
            name=f"demo-{kind}",
            command=[sys.executable, str(GENERATOR), str(root / kind), "--layers", str(LAYERS), *extra],
            cache_dirs=[root / kind],
        ),
        stall=StallPolicy(stall_after_s=STALL_S, first_write_within_s=60, poll_s=1),
        stop=StopPolicy(grace_s=2),
        retry=RetryPolicy(attempts=1),
        outputs=Outputs(report=root / f"{kind}.json"),
        return_state=True,
    )
    return str(state.name)


def print_artifact(key: str) -> None:
    """Print the newest artifact of a key, as the server has it."""
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
    with get_client(sync_client=True) as client:
        artifact = client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC, limit=1)[0]
    print(f"--- artifact {key} ({artifact.type})")
    if artifact.type == "markdown":
        print(re.sub(r"!\[([^\]]*)\]\(data:[^)]*\)", r"[chart: \1]", str(artifact.data)))
        return
    for row in json.loads(str(artifact.data))[:6]:
        print(f"  {row['size']:>9}  {row['flags']:<32} {row['file']}")


def main(root: Path) -> int:
    if root.exists():
        print(f"demo: {root} is there: remove it, or name another directory", file=sys.stderr)
        return 2
    root.mkdir(parents=True)
    print("== 1. a healthy generation", flush=True)
    healthy = run_generation(root, "healthy", [])
    print(
        f"\n== 2. a generation that freezes (SIGSTOP) before layer {FREEZE_AT}; stall window {STALL_S:.0f} s",
        flush=True,
    )
    frozen = run_generation(root, "frozen", ["--freeze-at", str(FREEZE_AT)])
    print("\n== 3. what its run page shows", flush=True)
    print_artifact("cachewatch-demo-frozen-report")
    print_artifact("cachewatch-demo-frozen-listing")
    print(f"\n== demo-healthy: {healthy}; demo-frozen: {frozen}; reports in {root}; `cachewatch report --open`")
    return 0 if (healthy, frozen) == ("Completed", "Stalled") else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output").absolute()))
