"""When to ask for a proof that the tree can never run again, and what comes of it.

It asks through a function that it is given, since a watch reads nothing of a process itself: from `prove_after_s` of
silence on, at most once a poll, two looks each time. What the two cost in processor time is paid back before the next
ones: all looks together take at most a hundredth of a core. How long a look waited counts for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_cachewatch.watching.sections import StuckWait

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import StallPolicy

_APART_S = 2.0
_SHARE = 100
# After a look that did not come to an end, of which the cost is not known: so many polls, but not longer than this.
_POLLS_OFF, _LONGEST_OFF_S = 4, 60.0
_EPSILON_S = 1e-3


@dataclass(frozen=True)
class Seen:
    """A look: what the next one is compared with, the proof's waits, or why there is none.

    `cpu_s` is the processor time that it took; None: it did not come to an end.
    """

    seen: bytes = b""
    waits: tuple[StuckWait, ...] = ()
    why: str = ""
    cpu_s: float | None = 0.0


#: Looks at the tree; its argument is what the look before has seen, empty for a first look. Bounded by the caller.
Ask = Callable[[bytes], Seen]


class Proving:
    """Decides when to look at the tree of one attempt.

    Args:
        ask: looks at the tree.
        policy: has `prove_after_s`, a number, and the poll.
        clock: monotonic seconds.

    Example:
        >>> from prefect_cachewatch.config import StallPolicy
        >>> proving = Proving(lambda earlier: Seen(b"seen"), StallPolicy(prove_after_s=20), lambda: 0.0)
        >>> proving.delay_s(12.0), proving.look(20.0), proving.delay_s(20.0)
        (8.0, (), 2.0)
    """

    def __init__(self, ask: Ask, policy: StallPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        assert isinstance(policy.prove_after_s, float | int)
        self._ask, self._after_s, self._poll_s, self._clock = ask, float(policy.prove_after_s), policy.poll_s, clock
        self._earlier = b""
        self._not_before_s = 0.0
        self.why = ""
        """Why the last look was no proof."""

    @property
    def pending(self) -> bool:
        """Whether a first look has been made and the second is due: the measurement before it must be a full one."""
        return bool(self._earlier)

    def delay_s(self, pause_s: float) -> float:
        """Return the delay from the last measurement to the next one that a look depends on; infinite if there is none."""
        if self._earlier:
            return _APART_S
        return self._after_s - pause_s if pause_s < self._after_s - _EPSILON_S else float("inf")

    def look(self, pause_s: float) -> tuple[StuckWait, ...]:
        """Look at the tree if it is time to.

        Args:
            pause_s: how long it has been silent, by a measurement that has just been made.

        Returns:
            The waits, if this and the look before prove that none of them can end.
        """
        earlier, self._earlier = self._earlier, b""
        began_s = self._clock()
        if pause_s < self._after_s - _EPSILON_S or (not earlier and began_s < self._not_before_s):
            return ()
        told = self._ask(earlier)
        self.why = told.why
        if told.cpu_s is None:
            off_s = max(self._poll_s, min(_POLLS_OFF * self._poll_s, _LONGEST_OFF_S))
            self._not_before_s = max(self._not_before_s, began_s + off_s)
        elif earlier:
            self._not_before_s += _SHARE * told.cpu_s
        else:
            self._earlier = told.seen
            self._not_before_s = began_s + max(self._poll_s, _SHARE * told.cpu_s)
        return told.waits if earlier else ()
