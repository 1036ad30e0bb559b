"""`cachewatch probe`: measure a storage, or a codec on a sample, for the planner.

`capacity.probe` and `capacity.codec` measure; this module reads the options and shows the result.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import yaml

from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.codec import CODECS, CodecMeasurement, CodecName, measure_codec
from prefect_cachewatch.capacity.probe.profile import profile_from_report, profile_yaml, write_atomically
from prefect_cachewatch.capacity.probe.report import ProbeReport, ProbeSettings
from prefect_cachewatch.capacity.probe.run import check_probe, run_probe
from prefect_cachewatch.capacity.probe.target import inspect_target, size_budget
from prefect_cachewatch.cli.options.fields import Fields
from prefect_cachewatch.cli.options.sections import json_option
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
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import InputError

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
@json_option("Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    path: Path, codec: str | None, level: int | None, output: Path | None, as_json: bool, **options: Any
) -> int:
    """Measure the storage under DIR and write its profile for `cachewatch plan`.

    It writes test files there, in a directory of its own that is removed when it ends, and slows
    other users of the storage meanwhile. With --codec, measure a compression on SAMPLE instead,
    which writes nothing.
    """
    if codec is not None:
        return _probe_codec(path, codec, level, output, as_json)
    if level is not None:
        raise click.UsageError("--level belongs to a codec: add --codec zstd, lz4 or lzo")
    return _probe_storage(path, output, as_json, **options)


def _probe_storage(
    path: Path, output: Path | None, as_json: bool, *, name: str | None, quiet: bool, **options: Any
) -> int:
    inspect_target(path)  # an error in the path is reported before an error in an option
    settings = _SETTINGS.build(options)
    target = check_probe(path, settings)
    name = _checked_name(name, target.path)
    output = output or Path(f"storage-{file_stem(name, most=200, other='profile')}.yaml")
    check_output(output)
    # Only a regular file has a neighbour: /dev/null.partial.yaml would be a file in /dev.
    partial = None if is_special(output) else output.with_name(f"{output.stem}.partial{output.suffix or '.yaml'}")

    def save(report: ProbeReport) -> None:
        # Written after each concurrency, so that even a power cut leaves what was measured. If the disk is
        # full here, the probe goes on measuring: the end tries again.
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


def _probe_codec(sample: Path, codec: str, level: int | None, output: Path | None, as_json: bool) -> int:
    """Measure and show a codec; with an output, add it to that storage profile or write it alone.

    Args:
        sample: a file or directory of the data in question.
        codec: zstd, lz4 or lzo.
        level: its level, None for the default.
        output: a storage profile to add it to, or a new file.
        as_json: print JSON.

    Returns:
        The exit status.

    Raises:
        InputError: the sample, level or output is bad, or a library is missing.
    """
    if output is not None:
        check_output(output)
    with stopping() as (stop, caught):
        measured = measure_codec(cast("CodecName", codec), sample, level=level, stop=stop)
    data = measured.profile.model_dump(mode="json", exclude_none=True)
    if output is not None:
        _keep(output, measured, data)
    if as_json:
        rest = {key: value for key, value in vars(measured).items() if key != "profile"}
        print(json.dumps({"codec": data, **rest}, indent=2))
    else:
        print(_shown(measured))
        print("\n" + yaml.safe_dump({"codec": data}, sort_keys=False, allow_unicode=True), end="")
        if output is not None:
            print(f"\nWritten to {for_terminal(str(output))}")
    return exit_status(caught)


def _keep(output: Path, measured: CodecMeasurement, data: dict[str, Any]) -> None:
    head = output.read_bytes()[:4096] if output.exists() and not is_special(output) else b""
    if not head.strip() or head.startswith(b"codec:"):
        write_atomically(output, yaml.safe_dump({"codec": data}, sort_keys=False, allow_unicode=True))
        return
    storage = read_storage(output)
    others = [codec for codec in storage.codecs if codec.name != measured.profile.name]
    write_atomically(output, profile_yaml(storage.model_copy(update={"codecs": [*others, measured.profile]})))


def _shown(measured: CodecMeasurement) -> str:
    profile = measured.profile
    taken, whole = profile.sample_bytes or 0, measured.whole_sample_bytes
    part = "" if taken == whole else f" of {format_bytes(whole)}"
    lines = [
        f"{profile.name} level {profile.level} ({measured.library}) on {profile.sample}: {format_bytes(taken)}{part}",
        f"  ratio        {profile.ratio:.3f}",
    ]
    for verb, cpu_s, spread in (
        ("compress  ", profile.compress_cpu_s_per_gb, measured.compress_spread),
        ("decompress", profile.decompress_cpu_s_per_gb, measured.decompress_spread),
    ):
        rate = f"{format_bytes(1e9 / cpu_s)}/s a core" if cpu_s else "too fast to time"
        lines.append(f"  {verb}   {cpu_s:.3g} CPU seconds per GB, {rate}, spread {spread:.0%}")
    return "\n".join([*lines, textwrap.fill(_verdict(measured), WIDTH)])


def _verdict(measured: CodecMeasurement) -> str:
    if measured.profile.ratio < 1.02:
        return "This sample does not shrink: compressing it costs processor time and saves nothing."
    return (
        "With one core for each job, compressing pays where a job's writes move less than "
        f"{format_bytes(measured.pays_below_bytes_per_s)}/s. In a plan: the lines below go into a workload, or its "
        f"codec is named {measured.profile.name} and the storage's profile has it (-o PROFILE)."
    )
