"""Hides the body of private keys in a log, between `-----BEGIN ... PRIVATE KEY-----` and its end, even if cut."""

from __future__ import annotations

import re

_HIDDEN = "***"
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"[A-Za-z0-9+/]{30,}={0,2}(?=[\"'\s\\]*$)")
_ONLY = re.compile(r"\s*[A-Za-z0-9+/]+={0,2}\s*")
_WORD = re.compile(r"(?:^|\s)[a-z]{1,20}$")
_LONGEST = 400  # lines; a key of 16,384 bits
# The middle of a key whose ends are both missing: three lines of Base64 that are not hexadecimal digests.
_MIDDLE = re.compile(r"(?m)(?:^(?![0-9a-fA-F]+\s*$)[ \t]*+[A-Za-z0-9+/]{60,76}+={0,2}[ \t]*\r?$\n?){3,}")


def hide_private_keys(text: str) -> str:
    """Take the bodies of private keys out of a text; the number of lines stays the same.

    Args:
        text: one or more lines; a key's beginning or end may be cut off, and each line may have a prefix.

    Returns:
        The text.

    Example:
        >>> hide_private_keys("-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----")
        '-----BEGIN PRIVATE KEY-----\\n***\\n-----END PRIVATE KEY-----'
    """
    if "PRIVATE KEY" in text and "-----" in text:
        text = _between(text)
    if text.count("\n") > 1:
        text = _MIDDLE.sub(lambda found: re.sub(r"[^\r\n]+", _HIDDEN, found[0]), text)
    return text


def _between(text: str) -> str:
    lines = text.split("\n")
    inside = 0
    for at, line in enumerate(lines):
        begin, end = _BEGIN.search(line), _END.search(line)
        if begin and end and end.start() > begin.end():
            lines[at] = f"{line[: begin.end()]}{_HIDDEN}{line[end.start() :]}"
            continue
        if end:
            _hide_last(lines, at)
            if not inside:
                _hide_before(lines, at)
            head = line[: end.start()]
            if _ONLY.fullmatch(head) or re.search(r"[A-Za-z0-9+/=]{16,}", head):
                lines[at] = f"{_HIDDEN}{line[end.start() :]}"
            inside = 0
        if begin:
            rest = line[begin.end() :]
            lines[at] = line[: begin.end()] + (_HIDDEN if rest.strip("\"' \r\\") else rest)
            inside = _LONGEST
        elif inside and not end:
            inside -= 1
            if _is_body(line):
                lines[at] = _HIDDEN
            else:
                lines[at] = re.sub(r"[A-Za-z0-9+/]{16,}={0,2}", _HIDDEN, line)
    return "\n".join(lines)


def _hide_before(lines: list[str], end: int) -> None:
    """Hide the lines of a body whose beginning is cut off."""
    for at in range(end - 2, max(-1, end - _LONGEST), -1):
        if _is_body(lines[at]):
            lines[at] = _HIDDEN
        elif _BODY.search(lines[at]):
            lines[at] = _BODY.sub(_HIDDEN, lines[at])
        else:
            return


def _hide_last(lines: list[str], end: int) -> None:
    """Hide the last line of a body, which may be short and may have a prefix."""
    if end > 0 and not _WORD.search(lines[end - 1]):
        lines[end - 1] = re.sub(r"[A-Za-z0-9+/]+={0,2}(?=[\"'\s\\]*$)", _HIDDEN, lines[end - 1])


def _is_body(line: str) -> bool:
    """Say whether a line consists of Base64 alone and is not a word."""
    return bool(_ONLY.fullmatch(line)) and not _WORD.fullmatch(line.strip())
