"""The clock of Prefect's server, as its answers tell it: what runs of many workers compare is told by this one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

_NO_MATTER = timedelta(seconds=5)  # the header has whole seconds, and answers take their time
_ahead = timedelta()


def time_of(answer: httpx.Response) -> datetime | None:
    """Return when the server gave an answer, by its own clock; None where it does not say."""
    try:
        told = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError, TypeError):
        return None
    return told.replace(tzinfo=told.tzinfo or UTC)


def note_time(answer: httpx.Response) -> bool:
    """Learn from an answer, just come, how far the server's clock is ahead; returns whether that was not known."""
    global _ahead  # noqa: PLW0603 - one server, one clock
    told, before = time_of(answer), _ahead
    if told is None:
        return False
    ahead = told - datetime.now(UTC)
    _ahead = ahead if abs(ahead) > _NO_MATTER else timedelta()
    return abs(_ahead - before) > _NO_MATTER


def server_now() -> datetime:
    """Return the time by the server's clock; by this machine's where no answer has told it, or if they are close."""
    return datetime.now(UTC) + _ahead


def occurred_now() -> datetime | None:
    """Return when an event occurs that others are to find by its time; None: as Prefect says itself."""
    return server_now() if _ahead else None
