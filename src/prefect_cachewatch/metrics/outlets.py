"""Where a run's metrics go: an HTTP endpoint of prometheus_client, or a file for node-exporter's textfile collector."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from prefect_cachewatch.common.aside import Files, InPlace, look_ahead
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.errors import InputError, MetricsPortTaken
from prefect_cachewatch.metrics.catalogue import CATALOGUE, LASTING, PREFIX, label_values
from prefect_cachewatch.metrics.run import Outlet, RunMetrics, Series
from prefect_cachewatch.metrics.settings import HttpAddress, Metrics

_EVERY_S = 15.0  # there are no measurements during a wait for slots: the file is written at least this often
_AT_MOST_EVERY_S = 1.0
_CLOSE_S = 5.0
_WRITE_S = 4.0
_SIZE_MAX = 1 << 20
_LASTING = {spec.name: spec for spec in CATALOGUE if spec.name in LASTING}


def open_metrics(
    metrics: Metrics, name: str, cache_dirs: Sequence[Path] = (), files: Files | None = None
) -> RunMetrics:
    """Open the destination of a run's metrics.

    Args:
        metrics: the user's settings.
        name: name of the job.
        cache_dirs: watched directories; no metrics file may be in them.
        files: the helper process that writes a metrics file; default this process.

    Returns:
        The run's metrics; close them when the run has ended.

    Raises:
        MetricsPortTaken: another process listens there.
        InputError: the destination cannot be used.

    Example:
        >>> with open_metrics(Metrics(to="127.0.0.1:0"), "llama") as run:
        ...     run.where.startswith("http://127.0.0.1:")
        True
    """
    target, run = metrics.target, RunMetrics(name)
    if isinstance(target, HttpAddress):
        run.outlet = Endpoint(target, run)
    else:
        run.outlet = Textfile(target, run, cache_dirs, files or InPlace())
    return run


def check_destination(metrics: Metrics, cache_dirs: Sequence[Path], files: Files) -> None:
    """Check that `open_metrics` would work, and change nothing.

    Args:
        metrics: the user's settings.
        cache_dirs: watched directories; no metrics file may be in them.
        files: the helper process that checks a directory.

    Raises:
        InputError: as `open_metrics`.
    """
    target = metrics.target
    if isinstance(target, HttpAddress):
        Endpoint(target, RunMetrics("")).close()
    else:
        check_directory(target, cache_dirs, files)


class Endpoint(Outlet):
    """Serves a run's metrics until it is closed.

    Args:
        address: where to listen.
        run: the run's metrics.

    Raises:
        MetricsPortTaken: another process listens there.
        InputError: it cannot listen there.
    """

    def __init__(self, address: HttpAddress, run: RunMetrics) -> None:
        shown = for_terminal(str(address))
        try:
            self._server, self._thread = start_http_server(address.port, address.host, run.registry)
        except (socket.gaierror, UnicodeError) as error:
            raise InputError(
                f"metrics cannot be served on {shown}: the host is not known; write an address, as in 127.0.0.1:9464"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise MetricsPortTaken(
                    f"metrics cannot be served on {shown}: the port is taken by another process; give another one, or "
                    "file:DIRECTORY, where any number of runs fit"
                ) from error
            hints = {
                errno.EADDRNOTAVAIL: "this machine has no such address; 0.0.0.0 listens on all it has",
                errno.EACCES: "ports below 1024 are root's; choose a higher one",
            }
            why = hints.get(error.errno or 0, f"{error.strerror}; choose another address")
            raise InputError(f"metrics cannot be served on {shown}: {why}") from error
        self.where = f"http://{HttpAddress(address.host, self._server.server_port)}/metrics"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Textfile(Outlet):
    """Writes a run's metrics to its file, and continues the counters that the last run left there.

    A thread of its own writes, so that a directory that hangs or is full delays no measurement.

    Args:
        target: the directory.
        run: the run's metrics.
        cache_dirs: watched directories; the file must not be in them.
        files: the helper process that writes it.

    Raises:
        InputError: the directory is missing, not writable, or in a cache directory.
    """

    def __init__(self, target: str, run: RunMetrics, cache_dirs: Sequence[Path], files: Files) -> None:
        self._run, self._files = run, files
        self.path = textfile_path(check_directory(target, cache_dirs, files), run.cache)
        self.where = str(self.path)
        note: str | None = None
        self._changed, self._closing = threading.Event(), threading.Event()
        try:
            run.count_on(read_counters(files.run(_read, self.path, timeout_s=_WRITE_S), run.cache))
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001 - the parser's own errors for text that is not ours
            note = f"earlier counts in {for_terminal(self.where)} could not be read: {type(error).__name__}"
        self._thread = threading.Thread(
            target=self._write_on, args=(note,), name="cachewatch-metrics-file", daemon=True
        )
        self._thread.start()

    def changed(self) -> None:
        """Have the file written; returns at once."""
        self._changed.set()

    def close(self) -> None:
        """Write the file a last time; a directory that does not answer within 5 s is given up."""
        self._closing.set()
        self._changed.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self.problem = f"the metrics file {for_terminal(self.where)} is out of date: its directory does not answer"

    def _write_on(self, note: str | None) -> None:
        while True:
            last = self._closing.is_set()
            try:
                self._files.run(_replace, self.path, generate_latest(self._run.registry), timeout_s=_WRITE_S)
                self.problem = note
            except OSError as error:
                self.problem = f"the metrics file {for_terminal(self.where)} cannot be written: {error.strerror}"
            if last:
                return
            self._closing.wait(_AT_MOST_EVERY_S)
            self._changed.wait(_EVERY_S)
            self._changed.clear()


def read_counters(text: str, cache: str) -> dict[Series, float]:
    """Read back the counters of one cache, and its last success.

    Args:
        text: a page, perhaps of another version, perhaps damaged.
        cache: label value of the cache.

    Returns:
        The values whose names and labels are still known.

    Raises:
        ValueError: it is not exposition text.
    """
    found: dict[Series, float] = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        spec = _LASTING.get(sample.name)
        if spec is None or sample.labels.get("cache") != cache or set(sample.labels) != {"cache", *spec.labels}:
            continue
        values = {label: sample.labels[label] for label in spec.labels}
        known = all(value in (label_values(label) or (value,)) for label, value in values.items())
        if known and math.isfinite(sample.value) and sample.value >= 0:
            found[spec.name.removeprefix(PREFIX), tuple(values.values())] = float(sample.value)
    return found


def textfile_path(directory: Path, cache: str) -> Path:
    """Return the file of a cache's metrics: one for each label value, whatever characters it has.

    Args:
        directory: node-exporter's directory.
        cache: label value of the cache.

    Example:
        >>> textfile_path(Path("/var/lib/metrics"), "Llama 3").name
        'cachewatch-llama-3-fbb314d7.prom'
    """
    digest = hashlib.blake2b(cache.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return directory / f"cachewatch-{slugify(cache)}-{digest}.prom"


def check_directory(target: str, cache_dirs: Sequence[Path], files: Files) -> Path:
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
    path = Path(target).expanduser().absolute()
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
    # Not prometheus_client's own write_to_textfile: it follows a link of another user, and node-exporter may not read
    # what it writes under a strict umask.
    here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_entry(here, path.name, text, mode=0o644, exact=True)
    finally:
        os.close(here)
