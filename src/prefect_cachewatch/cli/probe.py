"""`cachewatch probe DIR`: measure a storage, or read fio's JSON, and write the profile that `cachewatch plan` reads."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import click

from prefect_cachewatch.capacity.inputs import StorageProfile
from prefect_cachewatch.capacity.probe.fio import profile_from_fio
from prefect_cachewatch.capacity.probe.measure import ProbeSettings, run_probe
from prefect_cachewatch.capacity.probe.rates import HEAD, KINDS, write_profile
from prefect_cachewatch.capacity.units import say_bytes
from prefect_cachewatch.cli.options.fields import Fields
from prefect_cachewatch.common.files import begins_otherwise
from prefect_cachewatch.common.text import file_stem, for_terminal
from prefect_cachewatch.errors import InputError

_SETTINGS = Fields(ProbeSettings, "max_concurrency N, size_bytes, time_s")


@click.command("probe", params=_SETTINGS.options(), short_help="Measure a storage for the planner.")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Profile to write; default storage-NAME.yaml here."
)
@click.option("--name", help="Name of the storage in plans and limits; default: the directory's.")
@click.option("--fio", "reports", multiple=True, type=click.Path(path_type=Path), metavar="FILE.json",
              help="Read what your own runs of fio measured, instead of measuring; one file or several.")  # fmt: skip
def command(
    directory: Path | None, output: Path | None, name: str | None, reports: tuple[Path, ...], **options: Any
) -> int:
    """Measure the storage under DIR and write its profile for `cachewatch plan`.

    It writes test files there, in a directory of its own that is removed when it ends, and slows other users of the
    storage meanwhile. With --fio it measures nothing.
    """
    if (directory is None) == (not reports):
        raise click.UsageError("give a directory to measure, or the JSON of fio with --fio")
    shown = name if name is not None else (directory.resolve().name if directory else reports[0].stem) or "storage"
    if not 1 <= len(shown) <= 100 or re.search(r"[\x00-\x1f\x7f]", shown):
        raise click.UsageError("--name: give 1 to 100 characters, none of them a control character")
    output = output or Path(f"storage-{file_stem(shown, most=200, other='profile')}.yaml")
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"{for_terminal(str(output))} is a directory or in none: name a file with --output")
    if begins_otherwise(output, HEAD.encode()):
        raise InputError(
            f"{for_terminal(str(output))} is there and no profile of a probe: name another file with --output"
        )
    if directory is None:
        profile = profile_from_fio(reports, shown)
    else:
        with _stopping() as (stop, caught):
            measured = run_probe(directory, shown, _SETTINGS.build(options), stop, _say)
        if measured is None:
            return 128 + caught[0]
        profile = measured
    write_profile(output, profile)
    print("\n".join(_lines(profile)))
    print(f"\nProfile of {for_terminal(shown)} written to {for_terminal(str(output))}")
    return 0


def _say(text: str) -> None:
    print(textwrap.fill(text, 80), file=sys.stderr, flush=True)


def _lines(profile: StorageProfile) -> Iterator[str]:
    yield f"{for_terminal(profile.name)}: {profile.source}"
    yield f"{'streams':>9}" + "".join(f"{KINDS[name]:>22}" for name in KINDS)
    curves = [{p.n: p for p in curve.points} if (curve := getattr(profile, name)) else {} for name in KINDS]
    for n in sorted(set().union(*curves)):
        cells: Sequence[str] = [
            f"{say_bytes(points[n].bytes_per_s)}/s" + (f" +-{spread / 2:.0%}" if (spread := points[n].spread) else "")
            if n in points
            else "-"
            for points in curves
        ]
        yield f"{n:>9}" + "".join(f"{cell:>22}" for cell in cells)
    for note in profile.notes:
        yield textwrap.fill(for_terminal(note, 1000), 80, initial_indent="- ", subsequent_indent="  ")


@contextmanager
def _stopping() -> Iterator[tuple[Event, list[int]]]:
    """Turn SIGINT, SIGTERM and SIGHUP into an event, a second one too: nothing may cut the removal of the test files."""
    stop, caught, before = Event(), list[int](), dict[int, Any]()

    def handle(number: int, _frame: object) -> None:
        caught.append(number)
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup stays nohup
            before[each] = signal.signal(each, handle)
    try:
        yield stop, caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
