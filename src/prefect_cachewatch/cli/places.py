"""The directories that Prefect reads when it is imported, and where runs are kept: looked at first, with a deadline."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from prefect_cachewatch.common.ahead import look_ahead
from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.statedir import state_home

__all__ = ["require_places"]


def require_places(files: Files) -> None:
    """See that the file systems of Prefect's home, the working directory and the state directory answer.

    Args:
        files: who looks.

    Raises:
        InputError: one does not.
    """
    home = os.environ.get("PREFECT_HOME") or "~/.prefect"
    places = [
        ("Prefect's home", Path(home).expanduser(), "check the mount, or set PREFECT_HOME to a directory elsewhere"),
        ("state directory", state_home(), "check the mount, or set CACHEWATCH_STATE to a directory elsewhere"),
    ]
    with contextlib.suppress(FileNotFoundError):  # removed; that is said of it later
        places.append(("working directory", Path.cwd(), "check the mount, or change to another one"))
    for what, path, instead in places:
        look_ahead(files, f"{what} {path}", os.path.lexists, path.absolute() / ".cachewatch", instead=instead)
