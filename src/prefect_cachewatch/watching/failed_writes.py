"""Notes lines of the output that tell of a write or a download that failed: a generator may swallow it and exit with 0.

Each piece is searched for a few words first, so that a gigabyte of other output costs next to nothing.
"""

from __future__ import annotations

import re

from prefect_cachewatch.common.text import for_terminal

_WRITE = re.compile(
    rb"No space left on device|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b|Input/output error|\bEIO\b"
    rb"|\bStorageFull\b|PytorchStreamWriter failed|unexpected pos \d+ vs \d+|\[Errno (?:5|28|122)\]|\bos error (?:5|28|122)\b|\b(?:disk|file ?system|device) is full\b|not enough space on",
    re.IGNORECASE,
)
_WENT_WRONG = rb"(?:fail(?:ed|ure|ures)?\b|error\b|unable to|could ?n[o']t|cannot|can't|incomplete|aborted|timed out)"
_VERB = rb"\b(?:download|fetch)\w*\b"
# A word beside a word; a count of files; and what curl, rsync, aria2, requests and urllib3 say of one that ended too early.
_DOWNLOAD = re.compile(
    rb"(?:" + _VERB + rb".{0,200}" + _WENT_WRONG + rb"|" + _WENT_WRONG + rb".{0,200}" + _VERB
    + rb"|\b[1-9]\d* (?:of|/) ?\d+ (?:files?|shards?|parts?)\b.{0,40}\b(?:failed|missing|skipped|incomplete)\b"
    + rb"|\bcurl: \(\d+\)|\brsync error: |\(ERR\):error occurred|\bIncompleteRead\b|\bChunkedEncodingError\b)",
    re.IGNORECASE,
)  # fmt: skip
# Tried again, or a summary of none.
_NO_FAILURE = re.compile(
    rb"\bretr(?:y|ies|ying)\b|\bresum|\btry(?:ing)? again\b|\b(?:0|no|without) (?:\w+ )?(?:errors?|fail|incomplete)"
    rb"|\b0 (?:of|/) ?\d+ |\b(?:errors?|fail(?:ed|ures?)?|incomplete[\w ]*) ?[:=] ?(?:0\b|no)|\bnone\b",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(
    rb"\bg[ai]v(?:e|ing) up\b|\bafter \d+ (?:retries|attempts|tries)\b|\bretries exceeded\b", re.IGNORECASE
)
_WORDS = (
    b"o space left", b"ENOSPC", b"uota exceeded", b"EDQUOT", b"nput/output error", b"EIO", b"Errno ", b"os error", b" full",
    b"ot enough space", b"torageFull", b"treamWriter", b"nexpected pos", b"ownload", b"OWNLOAD", b"etch", b"ETCH",
    b"curl: (", b"rsync error", b"(ERR)", b"ncompleteRead", b"unkedEncoding", b" files", b" shards", b" parts",
)  # fmt: skip
_LINE_MAX, _REST_MAX, _KEPT = 2000, 8000, 3


class FailedWrites:
    """The lines of one attempt's output that tell of failed writes and downloads; `feed` listens to the output.

    Example:
        >>> told = FailedWrites()
        >>> told.feed(memoryview(b"OSError: [Errno 28] No space left on device\\nall good\\n"))
        >>> told.writes, told.downloads
        (['OSError: [Errno 28] No space left on device'], [])
    """

    def __init__(self) -> None:
        self.writes: list[str] = []
        """The first lines that tell of a failed write."""
        self.downloads: list[str] = []
        """The first lines that tell of a failed download that was not tried again."""
        self._rest = b""
        self._doubted: str | None = None  # a failed download, unless the next line tries again

    def feed(self, data: memoryview) -> None:
        """Take in output."""
        piece = self._rest + bytes(data)
        lines, end, rest = piece.rpartition(b"\n")
        self._rest = rest[-_REST_MAX:]
        if end:
            self._search(lines)

    def finish(self) -> None:
        """Search a last line without an end."""
        self._search(self._rest)
        self._rest = b""
        self._settle()

    def _search(self, text: bytes) -> None:
        if self._doubted is None and not any(word in text for word in _WORDS):
            return
        for line in re.split(rb"[\r\n]+", text):
            if line.strip():
                self._look(line[:_LINE_MAX])

    def _look(self, line: bytes) -> None:
        if self._doubted is not None:
            if _NO_FAILURE.search(line):
                self._doubted = None
            self._settle()
        if _WRITE.search(line):
            if len(self.writes) < _KEPT:
                self.writes.append(_shown(line))
        elif _DOWNLOAD.search(line) and (_GAVE_UP.search(line) or not _NO_FAILURE.search(line)):
            self._doubted = _shown(line)

    def _settle(self) -> None:
        if self._doubted is not None and len(self.downloads) < _KEPT:
            self.downloads.append(self._doubted)
        self._doubted = None


def _shown(line: bytes) -> str:
    return for_terminal(line.decode("utf-8", "replace").strip(), 300)
