"""`cachewatch plan PLAN.yaml`: how many jobs to run at once on a storage, and what binds."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click

from prefect_cachewatch.common.files import PUBLIC, begins_otherwise, write_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_FILE = click.Path(path_type=Path, dir_okay=False)


class _Got(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    """`N:TIME`: so long a burst took with so many jobs at once."""

    name = "N:TIME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        from prefect_cachewatch.common.units import parse_duration  # noqa: PLC0415 - only where the option is given

        found = re.fullmatch(r"([1-9][0-9]{0,2}):(.+)", value)
        try:
            if found is None:
                raise ValueError
            return int(found[1]), parse_duration(found[2])
        except ValueError:
            self.fail(f"{value[:40]!r} is not jobs at once and the time of a burst: write it like 10:27s", param, ctx)


@click.command("plan", short_help="How many jobs to run at once on a storage, and what binds.")
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON on stdout, nothing else.")
@click.option("--picture", metavar="FILE.svg", type=_FILE, help="Draw throughput, latency and zones over the jobs.")
@click.option(
    "--from-trace", "recording", metavar="RUN.jsonl", type=_FILE,
    help="Take burst, think time and files of the first class from a run recorded with --record.",
)  # fmt: skip
@click.option(
    "--got",
    type=_Got(),
    multiple=True,
    help="What a burst took in your test, as 10:27s; said and drawn beside the plan.",
)
def command(
    plan_file: Path,
    as_json: bool,
    picture: Path | None,
    recording: Path | None,
    got: tuple[tuple[int, float], ...],
) -> int:
    """Plan how many jobs may run at once on the storage that PLAN.yaml describes.

    The exit status is 0 also where not even one job is within what was measured: that is an answer. A batch that does not
    fit into the free space is none, and is refused.
    """
    # pydantic takes a tenth of a second, which --help need not wait for.
    from prefect_cachewatch.capacity import plan  # noqa: PLC0415
    from prefect_cachewatch.capacity.against import got_sentence  # noqa: PLC0415
    from prefect_cachewatch.capacity.picture import draw  # noqa: PLC0415
    from prefect_cachewatch.capacity.planfile import read_plan  # noqa: PLC0415
    from prefect_cachewatch.capacity.recorded import with_recorded  # noqa: PLC0415
    from prefect_cachewatch.capacity.wording import text_lines  # noqa: PLC0415
    from prefect_cachewatch.engine.recording import read_recording  # noqa: PLC0415

    if picture is not None and begins_otherwise(picture, b"<svg "):
        raise InputError(f"{for_terminal(str(picture))} is there and no picture: name another file with --picture")
    given, notes = read_plan(plan_file, recorded=recording is not None), []
    if recording is not None:
        recorded = read_recording(recording)
        given, said = with_recorded(given, recorded.name, recorded.samples)
        notes.append(said)
    answer = plan(given)
    notes += [got_sentence(given, n, burst_s) for n, burst_s in got]
    answer = dataclasses.replace(answer, notes=(*notes, *answer.notes))
    if picture is not None:
        _write(picture, draw(answer, answer.answers[0], got))
    if as_json:
        print(json.dumps(dataclasses.asdict(answer), indent=2, allow_nan=False))
        return 0
    for line in text_lines(answer):
        click.echo(line)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        write_file(path, text.encode(), mode=PUBLIC)
    except OSError as error:
        raise InputError(
            f"{for_terminal(str(path))} cannot be written ({error.strerror}): choose another path for --picture"
        ) from None
