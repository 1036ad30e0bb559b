"""The other runs on the storage of a run, and what a small write to it finds; asked only while the run is silent.

A thread of its own speaks to the board that the runs share, and to the file server. The monitor only reads what is known
by then, so a board or a storage that does not answer delays no verdict: what is not known is not suspected.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.measure.write_probe import probe_write
from prefect_cachewatch.watching.suspicion import (
    Fate,
    Probed,
    Standing,
    Suspected,
    fell_silent,
    is_majority,
    is_suspected,
)

if TYPE_CHECKING:
    from prefect_cachewatch.watching.attempt import Watch

SAY_AGAIN_S = 60.0
SLOW_S = 2.0
_DEAD_S = (2.0, 5.0)
_LOOK_S = (0.5, 15.0)
_PROBE_ENDS_S = 600.0
_GLANCE_S = 0.2
_BOARD_ENDS_S, _INCIDENT_ENDS_S = 0.5, 3.0


class Board(Protocol):
    """Where the runs on one storage see each other; its calls may take long and may raise anything."""

    me: str

    def say(self, silent_s: float | None) -> None:
        """Say how this run stands: silent for so long, or moving."""

    def read(self) -> Sequence[Standing]:
        """Return how the active runs stand, on one clock."""
        ...

    def follow(self, suspected: Suspected | None, window_s: float) -> bool:
        """Do what follows from the last look, and say whether there will be more to do though this run moves."""
        ...

    def leave(self) -> None:
        """Take this run away."""


class Prober:
    """Writes to the storage from a process that may be lost; one probe at a time.

    Args:
        write: writes, and returns how long it took; raises OSError.
    """

    def __init__(self, write: Callable[[], float]) -> None:
        self._write = write
        self._thread: threading.Thread | None = None
        self._found: Probed = "unknown"

    def look(self, dead_s: float, is_over: Callable[[], bool] = lambda: False) -> Probed:
        """Return what a write finds; one that has not returned by then goes on, and is asked for the next time.

        Args:
            dead_s: how long it is waited for.
            is_over: whether nobody wants to know any more, so that it is waited for no longer.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._probe, name="cachewatch-write-probe", daemon=True)
            thread.start()
            self._thread = thread
        until_s = time.monotonic() + dead_s
        while self._thread.is_alive() and (left_s := until_s - time.monotonic()) > 0:
            if is_over():
                return "unknown"
            self._thread.join(min(left_s, _GLANCE_S))
        if self._thread.is_alive():
            return "dead"
        self._thread = None
        return self._found

    def _probe(self) -> None:
        try:
            self._found = "slow" if self._write() >= SLOW_S else "well"
        except TimeoutError:
            self._found = "dead"
        except Exception:  # noqa: BLE001 - no permission, no space, no helper process: nothing is known
            self._found = "unknown"


class Neighbours:
    """What one run knows of the others on its storage.

    Args:
        storage: what people are told of it.
        board: where the runs see each other.
        prober: writes to the storage.
        tell: takes a sentence on a suspicion, once for each silence.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        storage: str,
        board: Board,
        prober: Prober,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.storage = storage
        self._board, self._prober, self._tell, self._clock = board, prober, tell, clock
        self._changed, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._silent: tuple[float, float] | None = None  # since when, and the window
        self._window_s = self._sampled_s = self._silent_since_s = self._late_s = 0.0
        self._watch: Watch | None = None
        self._seen: Suspected | None = None
        self._seen_s = 0.0
        self._blamed: tuple[float, float] | None = None  # the silence in which the storage was suspected
        self._told: tuple[float, float] | None = None  # the silence that the board was told of last, and when
        self._told_s = 0.0
        self._is_known = self._has_written = False

    def sampled(self, watch: Watch) -> None:
        """Take in a measurement; returns at once."""
        silence = watch.state.rule.silence
        self._watch, self._sampled_s = watch, self._clock()
        self._has_written = self._has_written or silence is not None
        silence_s, self._window_s = silence or (0.0, watch.stall.stall_after_s)
        self._silent_since_s = self._sampled_s - silence_s
        self._late_s = 2 * watch.state.rule.poll_s + watch.site.scanner.last_scan_s  # a scan has its time, and a poll
        if silence_s < self._window_s / 2:
            if self._silent is not None:
                self._silent = None
                self._changed.set()
        elif self._silent is None:
            self._fall_silent()
            self._changed.set()
        if self._thread is None and not watch.ended:
            thread = threading.Thread(target=self._run, name="cachewatch-neighbours", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is to be had: tried again at the next measurement
                thread.start()
                self._thread = thread

    def _fall_silent(self) -> None:
        self._silent = self._silent_since_s, self._window_s

    def fate(self) -> Fate:
        """Return what is known of the storage in the present silence; what was seen long ago counts as past."""
        if self._blamed is None or self._blamed is not self._silent:
            return "never suspected"
        fresh_s = 2 * self._look_every_s + 2 * _DEAD_S[1]
        is_now = self._seen is not None and self._clock() - self._seen_s <= fresh_s
        return "suspected" if is_now else "suspected before"

    def close(self) -> None:
        """Leave the board; one that hangs is left behind."""
        self._closed.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_BOARD_ENDS_S if self._blamed is None else _INCIDENT_ENDS_S)

    @property
    def _look_every_s(self) -> float:
        return min(max(self._window_s / 10, _LOOK_S[0]), _LOOK_S[1])

    def _run(self) -> None:
        # Before half a window nothing can be silent, and a run that is short asks nobody anything.
        self._closed.wait(self._window_s / 2)
        while not self._closed.is_set():
            more = True
            with contextlib.suppress(Exception):  # a board that fails only means that nothing is known
                more = self._look()
            self._changed.wait(self._look_every_s if more else self._window_s / 4)
            self._changed.clear()
        if self._is_known:
            with contextlib.suppress(Exception):  # the others see that this run has gone
                self._board.leave()

    def _look(self) -> bool:
        """Say how this run stands and look at the others; returns whether to look again soon."""
        now_s = self._clock()
        if self._silent is None and now_s - self._sampled_s >= max(self._window_s / 2, self._late_s):
            self._fall_silent()  # a scan does not return
        silent = self._silent
        if silent is None and not self._has_written:
            return True  # whether its storage moves is not known
        if silent is not self._told or not self._is_known or (silent and now_s - self._told_s >= SAY_AGAIN_S):
            self._board.say(None if silent is None else now_s - silent[0])
            self._told, self._told_s, self._is_known = silent, now_s, True
        if silent is None:
            self._seen = None
            return self._board.follow(None, self._window_s)
        suspected = self._suspect(silent[1])
        if self._closed.is_set():
            return False  # what follows would come after the run's end
        self._seen, self._seen_s = suspected, self._clock()
        if suspected is not None and self._blamed is not silent:
            self._blamed = silent
            self._say(suspected, silent[1])
        self._board.follow(suspected, silent[1])
        return True

    def _say(self, suspected: Suspected, window_s: float) -> None:
        watch = self._watch
        assert watch is not None
        most_s = watch.stall.storage_patience_s
        sentence = (
            f"{suspected.sentence}; stalls wait for up to {format_duration(2 * window_s if most_s is None else most_s)}"
        )
        watch.state.note(sentence)
        self._tell(sentence)

    def _suspect(self, window_s: float) -> Suspected | None:
        standings = self._board.read()
        group = fell_silent(self._board.me, standings, window_s)
        if not is_majority(len(group), len(standings)):
            return None
        probed = self._prober.look(min(max(window_s / 4, _DEAD_S[0]), _DEAD_S[1]), self._closed.is_set)
        if not is_suspected(len(group), len(standings), probed):
            return None
        return Suspected(self.storage, group, len(standings), probed)


def storage_of(path: str, host: str) -> tuple[str, str]:
    """Name the storage that a directory lies on: a server's export, or a device of one host.

    Args:
        path: absolute, resolved; its file system is not asked.
        host: name of this machine, which the key of a local device begins with.

    Returns:
        A key, the same for all who share it, and what people are told.

    Example:
        >>> key, told = storage_of("/proc", "host")
        >>> key.startswith("host:"), told
        (True, '/proc (proc)')
    """
    mount = mount_of(path, read_mounts())
    if mount is None:
        return f"{host}:?", f"the file system of {path}"
    if mount.is_network and (":" in mount.source or mount.source.startswith("//")):
        return _export(mount.source), f"{mount.mount_point} ({mount.source})"
    return f"{host}:{mount.device}", f"{mount.mount_point} ({mount.type})"


def _export(source: str) -> str:
    """Spell a server's export in one way: hosts write its name, and the end of its path, as they like."""
    lead, colon = ("//", "/") if source.startswith("//") else ("", ":")
    server, _, path = source.removeprefix(lead).partition(colon)
    return f"{lead}{server.lower()}{colon}{path.rstrip('/')}"


def probe_with(files: Files, directory: str) -> Prober:
    """Return a prober of a directory.

    Args:
        files: the helper process.
        directory: absolute.
    """
    return Prober(lambda: float(files.run(probe_write, directory, timeout_s=_PROBE_ENDS_S)))
