"""The meaning of the signals that a command gets: some go to the generator, some suspend it, the others end the run.

A thread of its own acts on them, wherever the main thread waits and however many arrive. Standard library only. The
guard delivers signals to the tree.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from prefect_cachewatch.engine.client import EngineClient, running_engines

_QUEUED = frozenset(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))  # each one counts; several others may arrive as one
_FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT}) | _QUEUED
_SUSPENDING = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
ENDING = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTRAP, signal.SIGABRT, signal.SIGALRM, signal.SIGTERM,
        signal.SIGSTKFLT, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGSYS,
    }
)  # fmt: skip
"""All signals that end a process by default, except USR1, USR2 and real-time signals; those that a crash of this
process sends (SIGILL, SIGBUS, SIGFPE, SIGSEGV); and SIGPIPE and SIGXFSZ, which Python turns into errors of a write."""
# A second one of these ends the grace period; a closed terminal sends SIGHUP twice, a CPU limit SIGXCPU each second.
_IMPATIENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT})
_SUSPEND_WITHIN_S = 1.0
_AGAIN_S = 0.02

# As a handler: implemented in C, so that a storm of signals cannot nest it. It does nothing: the wake-up pipe acts.
_nothing: Callable[[int, object], object] = dict[int, object]().get
_held: set[int] = set()


def hold_back() -> None:
    """Block the command's signals until a relay begins: one that arrives during the start is not lost, nor ends us."""
    _held.update(_FORWARDED - {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)})


class SignalRelay:
    """Acts on the signals that this process gets while it runs a generator.

    USR1, USR2, WINCH, URG, CONT and real-time signals go to the command's process group. TSTP, TTIN and TTOU stop the
    tree and then this process; when it continues, so does the tree. The others go to the command first, then cancel.
    A signal that the caller ignores stays ignored.

    Args:
        engines: returns the engines that run a command now.
        cancel: called with an ending signal, and whether it is to end the grace period; in the relay's thread.
        ending: the ending signals.
        before_start: called in the main thread with an ending signal until `settle`; may raise.
        tell: called with a sentence for each signal.
        has_command: whether there is a command that gets signals, and is suspended with us.
    """

    def __init__(
        self,
        engines: Callable[[], Iterable[EngineClient]],
        cancel: Callable[[int, bool], None],
        *,
        ending: frozenset[int] = ENDING,
        before_start: Callable[[int], None] | None = None,
        tell: Callable[[str], None] | None = None,
        has_command: bool = True,
    ) -> None:
        self.received: list[int] = []
        """The ending signals that have arrived, live."""
        self.arrived: list[int] = []
        """All signals that have arrived, live."""
        self._engines, self._cancel, self._ending, self._before_start = engines, cancel, ending, before_start
        self._tell = tell
        self._for_command = _FORWARDED | _SUSPENDING if has_command else frozenset[int]()
        self._continued_us = False
        self._previous: dict[int, Any] = {}
        self._unread: list[int] = []
        self._read = self._write = -1
        self._poll = select.poll()

    def begin(self) -> None:
        """Take over the signals; call in the main thread."""
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._read, select.POLLIN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._relay, name="cachewatch-signals", daemon=True).start()
        for number in self._for_command | self._ending:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's and a background shell's choice is respected
                early = number in self._ending and self._before_start is not None
                self._previous[number] = signal.signal(number, self._end_early if early else _nothing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _held)

    def settle(self) -> None:
        """From now on an ending signal only cancels, since there is an attempt to cancel. Call in the main thread."""
        for number in self._previous:
            signal.signal(number, _nothing)

    def close(self, *, last: bool = False) -> None:
        """Let go of the signals; call in the main thread.

        Args:
            last: the process ends now, and its exit status is settled: no signal may change it any more.
        """
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if last and number not in _SUSPENDING else handler)
        self._previous = {}
        if self._write >= 0:
            signal.set_wakeup_fd(-1)
            os.close(self._write)  # this ends the thread
            self._write = -1

    def _end_early(self, number: int, frame: FrameType | None) -> None:
        if self._before_start is not None and number in self._ending:
            self._before_start(number)

    def _relay(self) -> None:
        early: list[int] = []
        while (numbers := self._take(_AGAIN_S if early else None)) is not None:
            for number in numbers:
                if number in self._ending:
                    with contextlib.suppress(Exception):  # the next one is handled in any case
                        self._end(number)
            early = self._forward(_once([*early, *self._passed_on(numbers)]))
            if _last_of(numbers, _SUSPENDING) > _last_of(numbers, {signal.SIGCONT}):
                self._suspend()
        os.close(self._read)

    def _take(self, timeout_s: float | None) -> list[int] | None:
        """Wait for signals, at most so long; None once this relay is closed."""
        numbers, self._unread = self._unread, []
        if self._poll.poll(0.0 if numbers else None if timeout_s is None else 1000 * timeout_s):
            data = os.read(self._read, 1 << 16)
            if not data:
                return None
            if (tell := self._tell) is not None:
                for number in data:
                    tell(_said(number, self._ending))
            self.arrived += data
            numbers += data
        return numbers

    def _end(self, number: int) -> None:
        for engine in self._engines():
            engine.first_signal = engine.first_signal or number
        if self.received and number not in self.received:  # within the grace period
            self._forward([number])
        self.received.append(number)
        self._cancel(number, number in _IMPATIENT and sum(each in _IMPATIENT for each in self.received) > 1)

    def _passed_on(self, numbers: list[int]) -> list[int]:
        passed_on = [number for number in numbers if number in _FORWARDED & self._for_command]
        if signal.SIGCONT in passed_on and self._continued_us:
            passed_on.remove(signal.SIGCONT)  # the tree has been continued with us
            self._continued_us = False
        return passed_on

    def _forward(self, numbers: list[int]) -> list[int]:
        """Pass signals on; returns them if no engine can take them yet."""
        told = [engine.signal(numbers) for engine in self._engines() if numbers]  # every engine is asked
        return [] if any(told) else numbers

    def _suspend(self) -> None:
        engines = list(self._engines())
        for engine in engines:
            engine.suspend(_SUSPEND_WITHIN_S)
        # A SIGCONT that has arrived meanwhile was to continue us, and no other one may follow it.
        self._unread = self._take(0.0) or []
        if signal.SIGCONT not in self._unread:
            # Sent to this very thread, which stops here and not some instructions later. SIGSTOP, since SIGTSTP
            # does not stop a process without a shell above it (an orphaned process group).
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._continued_us = True
        for engine in engines:
            engine.resume()


@contextlib.contextmanager
def relayed_to_flow() -> Iterator[SignalRelay]:
    """Relay and suspend while a flow runs in this process; any other ending signal becomes the SIGTERM that cancels it.

    Yields:
        The relay; the signals that it has received have become a SIGTERM.

    Raises:
        SystemExit: with 128+N, for a signal outside the flow.
    """

    def cancel(number: int, at_once: bool) -> None:
        if len(relay.received) == 1:  # a second one would interrupt the writes of the first one's cancellation
            os.kill(os.getpid(), signal.SIGTERM)
        elif at_once:
            for engine in running_engines():
                engine.cancel(signal.Signals(number).name, at_once=True)

    def end(number: int, frame: FrameType | None) -> None:
        # Prefect sends itself SIGTERM again when it has cancelled the run.
        raise SystemExit(128 + (relay.received or [number])[0])

    relay = SignalRelay(running_engines, cancel, ending=ENDING - {signal.SIGTERM})
    if threading.current_thread() is not threading.main_thread():
        yield relay  # signals do not arrive in this thread
        return
    relay.begin()
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, end)
    try:
        yield relay
    finally:
        relay.close()
        signal.signal(signal.SIGTERM, before)


def _said(number: int, ending: frozenset[int]) -> str:
    from prefect_cachewatch.supervise.proc import signal_name  # noqa: PLC0415 - loaded by then, and only for who asks

    what = "ends the run" if number in ending else "suspends it" if number in _SUSPENDING else "is passed on"
    return f"{signal_name(number)} {what}"


def _once(numbers: list[int]) -> list[int]:
    return [*dict.fromkeys(n for n in numbers if n not in _QUEUED), *(n for n in numbers if n in _QUEUED)]


def _last_of(numbers: list[int], wanted: Iterable[int]) -> int:
    return max((at for at, number in enumerate(numbers) if number in wanted), default=-1)
