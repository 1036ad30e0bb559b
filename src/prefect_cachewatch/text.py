"""Strings from strangers made safe to show: file names, command lines, log tails.

File names are bytes, held as `str` with surrogate escapes, lossless. Here they become
harmless for a terminal, HTML or Markdown; and secrets are taken out of argv and logs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

__all__ = ["for_html", "for_markdown", "for_terminal", "markdown_code", "redact", "redact_argv"]

_HIDDEN = "***"
_SECRET_WORD = r"(?:token|secret|pass(?:w|phrase)|api[-_]?key|key|auth|cred|cookie|sig)"
_KEY = re.compile(_SECRET_WORD, re.IGNORECASE)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), _HIDDEN),  # JSON web tokens
    (re.compile(r"\b(?:hf_|ghp_|gho_|ghs_|github_pat_|pnu_|pnb_|sk-|xox[abpr]-)[\w-]{8,}"), _HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), _HIDDEN),
    (re.compile(r"(?<![\w+.-])([\w+.-]++://)[^\s/]+@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*+[:=]\s*+[\"']?)[^\r\n\"']+"), rf"\1{_HIDDEN}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{_HIDDEN}"),
    # Possessive, and from a word's beginning only: a log line of one long word must not take seconds.
    (
        re.compile(rf"(?i)(?<![\w.-])((?=[\w.-]*?{_SECRET_WORD})[\w.-]++[\"']?\s*+[=:]\s*+[\"']?)[^\s\"'&,;]+"),
        rf"\1{_HIDDEN}",
    ),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Take what looks like a secret out of a text.

    Args:
        text: a log line, URL or message.
        secrets: values that are known to be secret, removed wherever they stand.

    Returns:
        The text with each secret replaced by `***`.

    Example:
        >>> redact("GET https://me:pw@host/x?token=abc")
        'GET https://***@host/x?token=***'
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Take secrets out of a command line, by value and by the option before them.

    Args:
        argv: the command and its arguments.
        secrets: values that are known to be secret.

    Returns:
        As many strings, those that look secret replaced.

    Example:
        >>> redact_argv(["curl", "--token", "abc", "--password=x", "f.bin"])
        ['curl', '--token', '***', '--password=***', 'f.bin']
    """
    known = list(secrets)
    shown: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("-"):
            shown.append(_HIDDEN)
            hide_next = False
            continue
        name, equals, _ = word.partition("=")
        if word.startswith("-") and _KEY.search(name):
            shown.append(f"{name}={_HIDDEN}" if equals else word)
            hide_next = not equals
            continue
        hide_next = False
        shown.append(redact(word, known))
    return shown


def for_terminal(name: str, limit: int = 255) -> str:
    """Write a name so that a terminal shows it and obeys none of it.

    Args:
        name: any string, surrogate escapes allowed.
        limit: the most characters returned.

    Returns:
        The name with control, bidirectional, zero-width and undecodable characters as escapes.

    Example:
        >>> for_terminal("a" + chr(27) + "[2Jb" + chr(10))
        'a\\\\x1b[2Jb\\\\n'
    """
    out: list[str] = []
    for char in name:
        code = ord(char)
        if 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 0x20 or 0x7F <= code < 0xA0:
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}"))
        elif unicodedata.category(char) in ("Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            out.append(char)
    shown = "".join(out)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def for_html(name: str, limit: int = 255) -> str:
    """Write a name as HTML text or a quoted attribute.

    Example:
        >>> for_html("<b>&")
        '&lt;b&gt;&amp;'
    """
    shown = for_terminal(name, limit)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        shown = shown.replace(char, entity)
    return shown


def for_markdown(name: str, limit: int = 255) -> str:
    """Write a name as plain Markdown text: no link, no emphasis, no HTML comes of it.

    Example:
        >>> for_markdown("[x](y)*")
        '\\\\[x\\\\](y)\\\\*'
    """
    shown = for_terminal(name, limit)
    shown = re.sub(r"([\\`*_{}\[\]#|~!@])", r"\\\1", shown)
    shown = re.sub(r"(?i)(www)\.|(:)//", lambda m: f"{m[1]}\\." if m[1] else ":\\/\\/", shown)  # no autolink
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_code(name: str, limit: int = 255) -> str:
    """Write a name as a Markdown code span, with a fence longer than any run of backticks in it.

    Example:
        >>> markdown_code("layers.0.w1")
        '`layers.0.w1`'
    """
    # A table's cell ends at a pipe unless a backslash escapes it, and a second one before would undo that.
    shown = re.sub(r"\\\|+", lambda m: "\\" + "\\x7c" * (len(m[0]) - 1), for_terminal(name, limit))
    shown = re.sub(r"\|", r"\\|", shown)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
