"""`cachewatch probe`: measure a storage, or a codec on a sample, for the planner.

What is measured is in `capacity.probe` and `capacity.codec`; here it is asked for and shown.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.capacity.codec import CODECS
from prefect_cachewatch.capacity.probe import ProbeReport, ProbeSettings, run_probe
from prefect_cachewatch.capacity.probe_target import inspect_target, size_budget
from prefect_cachewatch.cli.probe_show import WIDTH, announcement, codec_verdict, progress, stopping, table
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.text import for_terminal
from prefect_cachewatch.units import format_bytes, parse_bytes, parse_duration

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
        return _probe_codec(path, codec, level, output, as_json)
    if level is not None:
        raise click.UsageError("--level belongs to a codec: add --codec zstd, lz4 or lzo")
    return _probe_storage(path, output, as_json, **options)


def _probe_storage(
    path: Path, output: Path | None, as_json: bool, *, name: str | None, max_concurrency: int, size: float,
    time_s: float, repetitions: int, keep_free: float, engine: str, network_ok: bool, quiet: bool,
) -> int:  # fmt: skip
    from prefect_cachewatch.capacity.probe_profile import (  # noqa: PLC0415 - yaml, after --help
        profile_from_report,
        profile_yaml,
        write_atomically,
    )

    target = inspect_target(path)
    settings = _settings(
        max_concurrency=max_concurrency, size_bytes=size, time_s=time_s, repetitions=repetitions,
        keep_free=keep_free, engine=engine, network_ok=network_ok,
    )  # fmt: skip
    name = name or _name_of(target.path)
    output = output or Path(f"storage-{_slug(name)}.yaml")
    partial = output.with_name(f"{output.stem}.partial{output.suffix or '.yaml'}")
    _check_output(output)

    def save(report: ProbeReport) -> None:
        # After each concurrency, so that even a power cut leaves what was measured.
        write_atomically(partial, profile_yaml(profile_from_report(_under_way(report), name)))

    if not quiet:
        print(announcement(target.path, settings, size_budget(target, int(size), keep_free)), file=sys.stderr)
    with stopping() as (stop, caught), progress(quiet) as show:
        report = run_probe(path, settings, stop=stop, on_progress=show, on_level=save, target=target)
    if not report.samples:
        return _exit_status(caught)
    profile = profile_from_report(report, name)
    interrupted = report.stop_cause in ("interrupted", "storage")
    written = partial if interrupted else output
    write_atomically(written, profile_yaml(profile))
    if not interrupted:
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
    return _exit_status(caught)


def _probe_codec(sample: Path, codec: str, level: int | None, output: Path | None, as_json: bool) -> int:
    import yaml  # noqa: PLC0415 - after --help

    from prefect_cachewatch.capacity.codec import measure_codec  # noqa: PLC0415
    from prefect_cachewatch.capacity.probe_profile import write_atomically  # noqa: PLC0415

    with stopping() as (stop, caught):
        measured = measure_codec(codec, sample, level=level, stop=stop)  # type: ignore[arg-type]
    profile = measured.profile
    data = profile.model_dump(mode="json", exclude_none=True)
    if output is not None:
        _check_output(output)
        write_atomically(output, yaml.safe_dump({"codec": data}, sort_keys=False, allow_unicode=True))
    if as_json:
        print(
            json.dumps(
                {"codec": data, **{k: v for k, v in vars(measured).items() if k != "profile"}}, indent=2
            )
        )
        return _exit_status(caught)
    taken = format_bytes(profile.sample_bytes or 0)
    part = (
        ""
        if profile.sample_bytes == measured.whole_sample_bytes
        else f" of {format_bytes(measured.whole_sample_bytes)}"
    )
    print(f"{codec} level {profile.level} ({measured.library}) on {for_terminal(str(sample))}: {taken}{part}")
    print(f"  ratio        {profile.ratio:.3f}")
    for verb, cpu_s, spread in (
        ("compress  ", profile.compress_cpu_s_per_gb, measured.compress_spread),
        ("decompress", profile.decompress_cpu_s_per_gb, measured.decompress_spread),
    ):
        rate = f"{format_bytes(1e9 / cpu_s)}/s a core" if cpu_s else "too fast to time"
        print(f"  {verb}   {cpu_s:.3g} CPU seconds per GB, {rate}, spread {spread:.0%}")
    print(textwrap.fill(codec_verdict(measured.pays_below_bytes_per_s, profile.ratio), WIDTH))
    print("\n" + yaml.safe_dump({"codec": data}, sort_keys=False, allow_unicode=True), end="")
    return _exit_status(caught)


def _settings(**values: Any) -> ProbeSettings:
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return ProbeSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"size_bytes": "--size", "time_s": "--time"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise click.UsageError(f"{option}: {first['msg'].lower()}") from None


def _under_way(report: ProbeReport) -> ProbeReport:
    from dataclasses import replace  # noqa: PLC0415

    return replace(report, stopped=report.stopped or "the probe was still running when this was written")


def _check_output(output: Path) -> None:
    """Refuse before an hour of measuring what could not be written after it."""
    shown = for_terminal(str(output))
    if output.is_dir():
        raise InputError(f"{shown} is a directory: name a file with --output")
    if not output.parent.is_dir():
        raise InputError(
            f"{for_terminal(str(output.parent))} does not exist: "
            "make it first, or name another file with --output"
        )
    if output.exists():
        head = output.read_bytes()[:4096]
        if head.strip() and not re.search(rb"^(# Storage profile|name:|codec:)", head, re.MULTILINE):
            raise InputError(f"{shown} exists and is no profile: name another file with --output")


def _exit_status(caught: list[int]) -> int:
    return 128 + caught[0] if caught else 0


def _name_of(path: Path) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "_", for_terminal(path.name, 100))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "profile"
