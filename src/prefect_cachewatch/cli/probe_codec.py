"""`cachewatch probe --codec`: measure a compression on a sample, and keep it in a profile."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, cast

import yaml

from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.codec import CodecMeasurement, CodecName, measure_codec
from prefect_cachewatch.capacity.probe.profile import profile_yaml, write_atomically
from prefect_cachewatch.cli.probe_show import WIDTH, check_output, exit_status, stopping
from prefect_cachewatch.common.files import is_special
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes

__all__ = ["run_codec"]


def run_codec(sample: Path, codec: str, level: int | None, output: Path | None, as_json: bool) -> int:
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
        InputError: for a bad sample, level or output, or a library that is missing.
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
