"""`cachewatch measure`: one scan of a directory with the engine's own scanner."""

from __future__ import annotations

import json
import os
import statistics

import click

from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count
from prefect_cachewatch.errors import CacheDirectoryError, ScanError
from prefect_cachewatch.measure.scanner import DirectoryScanner

_TIMEOUT_S = 600.0


@click.command("measure")
@click.argument("directory")
@json_option()
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Scans; the median is shown."
)
@click.option("--ignore", multiple=True, metavar="GLOB", help="Files to leave out; repeatable.")
def command(directory: str, as_json: bool, repeat: int, ignore: tuple[str, ...]) -> None:
    """Count bytes, allocated bytes, files and directories below DIRECTORY, as the watch does."""
    # Made absolute only: the scan process resolves links, since that may hang too.
    path, shown = os.path.abspath(directory), for_terminal(directory)
    scanner = DirectoryScanner()
    try:
        answers = [scanner.request("measure", _TIMEOUT_S, roots=[path], ignore=list(ignore)) for _ in range(repeat)]
    except ScanError as error:
        raise CacheDirectoryError(f"directory {shown} cannot be measured: {error.message}") from error
    finally:
        scanner.close()
    last = answers[-1]
    root = last["roots"][0]
    if root["missing"] or root["error"]:
        raise CacheDirectoryError(f"directory {shown} cannot be measured: {root['error']}")
    seconds = statistics.median(answer["scan_s"] for answer in answers)
    if as_json:
        row = {name: last[name] for name in ("bytes", "allocated_bytes", "files", "directories", "errors")}
        print(json.dumps({"path": root["path"], **row, "seconds": seconds, "repeats": repeat}))
        return
    print(
        f"{format_bytes(last['bytes'])} ({last['bytes']:,} bytes, {format_bytes(last['allocated_bytes'])} allocated) in "
        f"{format_count(last['files'], 'file')}, {format_count(last['directories'], 'directory', 'directories')}; {seconds:.3f} s"
    )
    for text in last["errors"]:
        say(f"not counted: {for_terminal(text, 400)}")
