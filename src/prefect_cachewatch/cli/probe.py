"""`cachewatch probe`: measure a storage, or a codec on a sample, for the planner.

What is measured is in `capacity.probe` and `capacity.codec`; here it is asked for and shown.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.capacity.probe.codec import CODECS
from prefect_cachewatch.capacity.probe.report import ProbeReport, ProbeSettings
from prefect_cachewatch.capacity.probe.run import check_probe, run_probe
from prefect_cachewatch.capacity.probe.target import inspect_target, size_budget
from prefect_cachewatch.cli.options.fields import Fields
from prefect_cachewatch.cli.probe_show import (
    WIDTH,
    announcement,
    check_output,
    exit_status,
    progress,
    stopping,
    table,
)
from prefect_cachewatch.common.files import is_special
from prefect_cachewatch.common.text import file_stem, for_terminal
from prefect_cachewatch.errors import InputError

__all__ = ["command"]

_SETTINGS = Fields(
    ProbeSettings, "max_concurrency N, size_bytes, time_s, repetitions N, keep_free SHARE, engine, network_ok"
)


@click.command(
    "probe", params=_SETTINGS.options(), short_help="Measure a storage, or a codec on a sample, for the planner."
)
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR|SAMPLE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Profile to write; default storage-NAME.yaml here.",
)
@click.option("--name", help="Name of the storage in plans and limits; default: the directory's.")
@click.option("--codec", type=click.Choice(CODECS), help="Measure this codec on a file or directory instead.")
@click.option("--level", type=int, help="Level of the codec.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    path: Path, codec: str | None, level: int | None, output: Path | None, as_json: bool, **options: Any
) -> int:
    """Measure the storage under DIR and write its profile for `cachewatch plan`.

    It writes test files there, in a directory of its own that is removed when it ends, and slows
    whoever shares the storage meanwhile. With --codec, measure a compression on SAMPLE instead,
    which writes nothing.
    """
    if codec is not None:
        from prefect_cachewatch.cli.probe_codec import run_codec  # noqa: PLC0415 - codecs only when asked for

        return run_codec(path, codec, level, output, as_json)
    if level is not None:
        raise click.UsageError("--level belongs to a codec: add --codec zstd, lz4 or lzo")
    return _probe_storage(path, output, as_json, **options)


def _probe_storage(
    path: Path, output: Path | None, as_json: bool, *, name: str | None, quiet: bool, **options: Any
) -> int:
    from prefect_cachewatch.capacity.probe.profile import (  # noqa: PLC0415 - yaml, after --help
        profile_from_report,
        profile_yaml,
        write_atomically,
    )

    inspect_target(path)  # what is wrong with the directory comes before what is wrong with an option
    settings = _SETTINGS.build(options)
    target = check_probe(path, settings)
    name = _checked_name(name, target.path)
    output = output or Path(f"storage-{file_stem(name, most=200, other='profile')}.yaml")
    check_output(output)
    # What is no file has no neighbour either: /dev/null.partial.yaml would be one of /dev.
    partial = None if is_special(output) else output.with_name(f"{output.stem}.partial{output.suffix or '.yaml'}")

    def save(report: ProbeReport) -> None:
        # After each concurrency, so that even a power cut leaves what was measured. A disk that is
        # full here is no reason to stop measuring there: the end tries again.
        if partial is None:
            return
        with suppress(InputError):
            under_way = report.stopped or "the probe was still running when this was written"
            write_atomically(partial, profile_yaml(profile_from_report(replace(report, stopped=under_way), name)))

    if not quiet:
        print(
            announcement(target.path, settings, size_budget(target, settings.size_bytes, settings.keep_free)),
            file=sys.stderr,
        )
    with stopping() as (stop, caught), progress(quiet) as show:
        report = run_probe(path, settings, stop=stop, on_progress=show, on_level=save, target=target)
    if not report.samples:
        print("cachewatch: ended before anything was measured; nothing is left behind", file=sys.stderr)
        return exit_status(caught)
    profile = profile_from_report(report, name)
    interrupted = report.stop_cause in ("interrupted", "storage")
    written = partial if interrupted and partial is not None else output
    try:
        write_atomically(written, profile_yaml(profile))
    except InputError:
        print(profile_yaml(profile))  # minutes of measuring: better on the screen than lost
        raise
    if not interrupted and partial is not None:
        partial.unlink(missing_ok=True)
    if as_json:
        levels = [{**vars(level), "obeys_little": level.obeys_little} for level in report.levels]
        document = {
            "profile": profile.model_dump(mode="json"), "levels": levels, "notes": report.notes,
            "stopped": report.stopped, "written": str(written),
        }  # fmt: skip
        print(json.dumps(document, indent=2))
    else:
        print(table(report))
        for note in ([f"partial: {report.stopped}"] if report.stopped else []) + list(report.notes):
            print(textwrap.fill(note, WIDTH, initial_indent="  - ", subsequent_indent="    "))
        print(f"\nProfile of {for_terminal(name)} written to {for_terminal(str(written))}")
    if interrupted and not caught:
        raise InputError(f"{report.stopped}; what was measured before is in {for_terminal(str(written))}")
    return exit_status(caught)


def _checked_name(name: str | None, path: Path) -> str:
    if name is None:
        return re.sub(r"[\x00-\x1f\x7f]", "_", for_terminal(path.name, 100))
    if not 1 <= len(name) <= 100 or re.search(r"[\x00-\x1f\x7f]", name):
        raise click.UsageError("--name: give 1 to 100 characters, none of them a control character")
    return name
