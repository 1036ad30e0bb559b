"""`cachewatch demo`: one healthy generation and one that freezes, through the real flow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli import demo_generator
from prefect_cachewatch.cli.generate import run_flow
from prefect_cachewatch.cli.places import require_places
from prefect_cachewatch.common.aside import Aside, look_ahead
from prefect_cachewatch.common.removal import remove_path
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.errors import InputError

_LAYERS, _FREEZE_AT = 8, 4
_STALL_S = 5.0


@click.command("demo")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), default=Path("demo-output"), show_default=True, help="Where."
)
def command(directory: Path) -> int:
    """Generate a small tensor cache under guard, then one that freezes half-way and is caught."""
    root = directory.absolute()
    with contextlib.closing(Aside.fork()) as files:  # before any thread is started
        require_places(files)
        look_ahead(files, f"directory {root}", os.path.lexists, root)
    _make_room(root)
    checkpoint = root / "checkpoint.safetensors"
    size_bytes = demo_generator.make_checkpoint(checkpoint, _LAYERS)
    _say(f"1. a checkpoint of {format_bytes(size_bytes)} in {_LAYERS} layers: {checkpoint}")

    _say("2. a healthy generation")
    healthy = _run(root, "healthy", checkpoint, [])
    _say(f"3. a generation that freezes before layer {_FREEZE_AT} (SIGSTOP), stall window {_STALL_S:.0f} s")
    frozen = _run(root, "frozen", checkpoint, ["--freeze-at", str(_FREEZE_AT)])

    _say("4. what the run page shows")
    shown = _print_artifacts(["cachewatch-demo-frozen-report", "cachewatch-demo-frozen-listing"])
    tensors = len(list((root / "healthy").glob("*.tensorbin")))
    as_promised = (healthy, frozen, tensors, shown) == (0, 124, 4 * _LAYERS, 2)
    _say("done" if as_promised else "this demo did not go as it should")
    print(
        f"  demo-healthy   exit {healthy}: Completed, {tensors} tensors in {root / 'healthy'}\n"
        f"  demo-frozen    exit {frozen}: {'Stalled, its process tree stopped' if frozen == 124 else 'not stopped'}\n"
        f"  reports        {root}/healthy.json, {root}/frozen.json\n"
        "  post-mortem    cachewatch report, cachewatch report --open\n"
        "  in the UI      `prefect server start`, then http://127.0.0.1:4200: runs demo-healthy, demo-frozen\n"
        "  next           cachewatch exec --cache-dir DIR -- YOUR COMMAND"
    )
    return 0 if as_promised else 1


def _make_room(root: Path) -> None:
    marker = root / ".cachewatch-demo"
    if root.exists():
        if not root.is_dir() or (any(root.iterdir()) and not marker.exists()):
            raise InputError(f"{root} is there and is not this demo's: choose another directory with --dir")
        done = remove_path(root)
        if done.failed:
            raise InputError(f"{root} cannot be emptied ({done.problems[0]}); choose another directory with --dir")
    try:
        root.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise InputError(f"{root} cannot be made: {error.strerror}; choose another directory with --dir") from error


def _run(root: Path, kind: str, checkpoint: Path, extra: list[str]) -> int:
    cache = root / kind
    generator = [sys.executable, demo_generator.__file__, str(checkpoint), str(cache), *extra]
    return run_flow(
        CacheJob(name=f"demo-{kind}", command=generator, cache_dirs=[cache]),
        StallPolicy(stall_after_s=_STALL_S, first_write_within_s=60, poll_s=1),
        StopPolicy(grace_s=2),
        RetryPolicy(attempts=1),
        outputs=Outputs(report=root / f"{kind}.json"),
    )


def _print_artifacts(keys: Sequence[str]) -> int:
    """Print the artifacts of a run as the server has them; returns how many there are."""
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - Prefect is imported when it is used
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey  # noqa: PLC0415
    from prefect.client.schemas.sorting import ArtifactSort  # noqa: PLC0415

    found: dict[str, Any] = {}
    with get_client(sync_client=True) as client:
        for artifact in client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=list(keys))), sort=ArtifactSort.CREATED_DESC
        ):
            recent = artifact.created and artifact.created.timestamp() > time.time() - 600
            if recent:
                found.setdefault(str(artifact.key), artifact)
    for key, artifact in sorted(found.items(), reverse=True):
        print(f"--- artifact {key} ({artifact.type})")
        if artifact.type == "markdown":
            print(re.sub(r"!\[([^\]]*)\]\(data:[^)]*\)", r"[chart: \1]", str(artifact.data)))
            continue
        for row in json.loads(artifact.data)[:6]:
            print(f"  {row['size']:>9}  {row['flags']:<32} {row['file']}")
        print("  ...")
    return len(found)


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)
