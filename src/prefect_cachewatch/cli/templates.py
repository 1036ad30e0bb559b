"""`cachewatch templates`: copies the deployment templates out of the installed package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from prefect_cachewatch.common.files import PUBLIC, create_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError


def template_directory() -> Path:
    """Return the directory of the templates that were installed with this package."""
    return Path(str(resources.files("prefect_cachewatch.deployments")))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Copy prefect.yaml, work-pool templates, Dockerfiles, automation and monitoring files to DIRECTORY.

    Nothing that is there already is overwritten.
    """
    where = for_terminal(str(directory))
    source = template_directory()
    files = sorted(
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    )
    taken = [path for path in files if (directory / path).exists()]
    if taken:
        raise InputError(f"{where} has {for_terminal(str(taken[0]))} already: name a new or empty directory")
    for path in files:
        target = directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(create_file(target, mode=PUBLIC), "wb") as file:
                file.write((source / path).read_bytes())
        except OSError as error:
            raise InputError(f"{for_terminal(str(target))} cannot be written: {error.strerror}") from error
    print(f"{len(files)} files in {where}; begin with docs/deploy.md and {where}/prefect.yaml")
