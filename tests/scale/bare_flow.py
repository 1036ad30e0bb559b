"""A flow with nothing but two tasks, one of which runs the generator: what a guarded generation is compared with.

A deployment names it, so it lies where the worker's Python finds it: `tests.scale.beside` copies it there.
"""

import subprocess
import threading

from prefect import flow, task


@task(name="generate")
def generate(command: list[str], over: threading.Event) -> int:
    """Run the generator to its end."""
    try:
        return subprocess.run(command, check=True).returncode
    finally:
        over.set()


@task(name="monitor")
def monitor(over: threading.Event) -> None:
    """Wait beside it."""
    over.wait()


@flow(name="bare", flow_run_name="{name}")
def bare(name: str, command: list[str]) -> None:
    """Run both side by side."""
    over = threading.Event()
    for future in [generate.submit(command, over), monitor.submit(over)]:
        future.result()
