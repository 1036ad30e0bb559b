"""A file for node-exporter's textfile collector: one per cache, replaced as a whole, kept until the cache's next run.

A thread of its own writes it, so that a directory that hangs or is full delays no measurement.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect_cachewatch.common.aside import Files, InPlace, look_ahead
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.metrics.destination import TextfileDirectory
from prefect_cachewatch.metrics.exposition import read_counters, render_text
from prefect_cachewatch.metrics.run import RunMetrics

_EVERY_S = 15.0  # there are no measurements during a wait for slots: the file is written at least this often
_AT_MOST_EVERY_S = 1.0
_CLOSE_S = 5.0
_WRITE_S = 4.0
_SIZE_MAX = 1 << 20


def textfile_path(directory: Path, cache: str) -> Path:
    """Return the file of a cache's metrics: one for each label value, whatever characters it has.

    Args:
        directory: node-exporter's directory.
        cache: label value of the cache.

    Returns:
        The file.

    Example:
        >>> textfile_path(Path("/var/lib/metrics"), "Llama 3").name
        'cachewatch-llama-3-fbb314d7.prom'
    """
    digest = hashlib.blake2b(cache.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return directory / f"cachewatch-{slugify(cache)}-{digest}.prom"


class Textfile:
    """Writes a run's metrics to its file, and continues the counters that the last run left there.

    Args:
        target: the directory.
        run: the run's metrics.
        cache_dirs: watched directories; the file must not be in them.
        files: the helper process that writes it; default this process.

    Raises:
        InputError: the directory is missing, not writable, or in a cache directory.
    """

    def __init__(
        self, target: TextfileDirectory, run: RunMetrics, cache_dirs: Sequence[Path] = (), files: Files | None = None
    ) -> None:
        self._files = files or InPlace()
        self.path = textfile_path(check_directory(target, cache_dirs, self._files), run.cache)
        self.where = str(self.path)
        self._note: str | None = None
        self.lingers = False  # the file stays
        self._failure: str | None = None
        self._run = run
        self._changed, self._closing = threading.Event(), threading.Event()
        self._take_over()
        self._thread = threading.Thread(target=self._write_on, name="cachewatch-metrics-file", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """What is wrong with the file, or was wrong with the file of the last run."""
        return self._failure or self._note

    def changed(self) -> None:
        """Have the file written; returns at once."""
        self._changed.set()

    def release(self, linger_s: float = 0.0, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Write the file a last time; a directory that does not answer within 5 s is given up.

        Args:
            linger_s: not used here.
            interrupted: not used here.
        """
        self._closing.set()
        self._changed.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._failure = (
                f"the metrics file {for_terminal(str(self.path))} is out of date: its directory does not answer"
            )

    def _take_over(self) -> None:
        try:
            text = self._files.run(_read, self.path, timeout_s=_WRITE_S)
            self._run.count_on(read_counters(text, self._run.cache))
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - the parser's own errors for text that is not ours
            self._note = f"earlier counts in {for_terminal(str(self.path))} could not be read: {type(error).__name__}"

    def _write_on(self) -> None:
        while not self._closing.is_set():
            self._write()
            self._closing.wait(_AT_MOST_EVERY_S)
            self._changed.wait(_EVERY_S)
            self._changed.clear()
        self._write()

    def _write(self) -> None:
        try:
            self._files.run(_replace, self.path, render_text(self._run), timeout_s=_WRITE_S)
            self._failure = None
        except OSError as error:
            self._failure = f"the metrics file {for_terminal(str(self.path))} cannot be written: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - metrics that cannot be written must not end a generation
            self._failure = f"the metrics could not be written: {type(error).__name__}: {error}"


def check_directory(target: TextfileDirectory, cache_dirs: Sequence[Path], files: Files) -> Path:
    """Check that metrics files can be written into a directory.

    Args:
        target: the directory.
        cache_dirs: watched directories.
        files: the helper process that checks it.

    Returns:
        The directory, absolute.

    Raises:
        InputError: they cannot be written, or would count as growth there.
    """
    path = Path(target.path).expanduser().absolute()
    checked: Path = look_ahead(files, f"metrics directory {path}", _check, path, list(cache_dirs))
    return checked


def _check(directory: Path, cache_dirs: Sequence[Path]) -> Path:
    shown = for_terminal(str(directory))
    if not directory.exists():
        raise InputError(f"metrics directory {shown} does not exist: create it, as node-exporter's textfile directory")
    if not directory.is_dir():
        raise InputError(f"metrics directory {shown} is a file: name the directory that node-exporter reads")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"metrics directory {shown} is not writable: give this user the right to write there")
    real = os.path.realpath(directory)
    for cache_dir in cache_dirs:
        if Path(real).is_relative_to(os.path.realpath(cache_dir)):
            raise InputError(
                f"metrics directory {shown} lies in cache directory {for_terminal(str(cache_dir))}, where it would count "
                "as growth: use another one"
            )
    return directory


def _read(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(_SIZE_MAX)


def _replace(path: Path, text: bytes) -> None:
    # Under another name until it is whole: the collector may read *.prom at any time.
    here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_entry(here, path.name, text, mode=0o644, exact=True)  # node-exporter is another user
    finally:
        os.close(here)
