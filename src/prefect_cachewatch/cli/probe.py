"""`cachewatch probe`: measure a storage, or a codec on a sample, for the planner.

What is measured is in `capacity.probe` and `capacity.codec`; here it is asked for and shown.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.capacity.probe.codec import CODECS
from prefect_cachewatch.capacity.probe.run import ProbeReport, ProbeSettings, check_probe, run_probe
from prefect_cachewatch.capacity.probe.target import inspect_target, size_budget
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
from prefect_cachewatch.common.units import format_bytes, format_duration, parse_bytes, parse_duration
from prefect_cachewatch.errors import InputError

__all__ = ["command"]

_DEFAULTS = ProbeSettings()


def _parsed(
    parse: Callable[[str], float],
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    def callback(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _share(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"{text!r} is not a share: write it like 5% or 0.05")
    return share


@click.command("probe", short_help="Measure a storage, or a codec on a sample, for the planner.")
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR|SAMPLE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Profile to write; default storage-NAME.yaml here.",
)
@click.option("--name", help="Name of the storage in plans and limits; default: the directory's.")
@click.option(
    "--max-concurrency", type=click.IntRange(2, 256), default=_DEFAULTS.max_concurrency, show_default=True,
    help="Measure at 1, 2, 4, ... streams up to this many.",
)  # fmt: skip
@click.option(
    "--size",
    callback=_parsed(parse_bytes),
    default="1GiB",
    show_default=True,
    help="The most it has there at once.",
)
@click.option(
    "--time",
    "time_s",
    callback=_parsed(parse_duration),
    default="2m",
    show_default=True,
    help="The longest it measures.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(3, 50),
    default=3,
    show_default=True,
    help="Runs at each concurrency.",
)
@click.option(
    "--keep-free",
    callback=_parsed(_share),
    default="5%",
    show_default=True,
    help="Share of the storage to leave free.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "fio", "direct"]),
    default="auto",
    show_default=True,
    help="auto: fio if installed.",
)
@click.option("--network-ok", is_flag=True, help="Probe a network file system too: it slows all who use it.")
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
    path: Path, output: Path | None, as_json: bool, *, name: str | None, max_concurrency: int, size: float,
    time_s: float, repetitions: int, keep_free: float, engine: str, network_ok: bool, quiet: bool,
) -> int:  # fmt: skip
    from prefect_cachewatch.capacity.probe.profile import (  # noqa: PLC0415 - yaml, after --help
        profile_from_report,
        profile_yaml,
        write_atomically,
    )

    inspect_target(path)  # what is wrong with the directory comes before what is wrong with an option
    settings = _settings(
        max_concurrency=max_concurrency, size_bytes=size, time_s=time_s, repetitions=repetitions,
        keep_free=keep_free, engine=engine, network_ok=network_ok,
    )  # fmt: skip
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
            write_atomically(partial, profile_yaml(profile_from_report(_under_way(report), name)))

    if not quiet:
        print(announcement(target.path, settings, size_budget(target, int(size), keep_free)), file=sys.stderr)
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


def _settings(**values: Any) -> ProbeSettings:
    least_bytes, least_s = 16 * 2**20, 1.0
    if values["size_bytes"] < least_bytes:
        given, least = format_bytes(values["size_bytes"]), format_bytes(least_bytes)
        raise click.UsageError(f"--size: {given} is too little: give {least} or more")
    if not least_s <= values["time_s"] <= 86400:
        wrong, bound = ("short", "1 s or more") if values["time_s"] < least_s else ("long", "a day or less")
        raise click.UsageError(f"--time: {format_duration(values['time_s'])} is too {wrong}: give {bound}")
    return ProbeSettings(**values)


def _checked_name(name: str | None, path: Path) -> str:
    if name is None:
        return re.sub(r"[\x00-\x1f\x7f]", "_", for_terminal(path.name, 100))
    if not 1 <= len(name) <= 100 or re.search(r"[\x00-\x1f\x7f]", name):
        raise click.UsageError("--name: give 1 to 100 characters, none of them a control character")
    return name


def _under_way(report: ProbeReport) -> ProbeReport:
    from dataclasses import replace  # noqa: PLC0415

    return replace(report, stopped=report.stopped or "the probe was still running when this was written")
