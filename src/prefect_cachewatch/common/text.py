"""Makes untrusted strings safe to show: file names, command lines, log tails.

File names are bytes, held as `str` with surrogate escapes, which is lossless. Here they become harmless for a terminal,
HTML or Markdown. Secrets are removed before that: see `common.secrets`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence

from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.errors import WORKING_DIRECTORY_GONE


def for_terminal(name: str, limit: int = 255) -> str:
    """Escape a name so that a terminal shows it and obeys no control character in it.

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


def show_argv(argv: Sequence[str], limit: int = 80) -> str:
    """Write a command line for a terminal, without its secrets.

    Args:
        argv: its words.
        limit: the most characters returned.

    Example:
        >>> show_argv(["gen", "--token", "abc"])
        'gen --token ***'
    """
    return for_terminal(" ".join(redact_argv(argv)), limit)


def show_process(pid: int, argv: Sequence[str], limit: int = 80) -> str:
    """Name a process in a sentence.

    Args:
        pid: its pid.
        argv: its words.
        limit: the most characters of its command line.

    Example:
        >>> show_process(4711, ["tar", "-c", "/store"])
        'pid 4711 (tar -c /store)'
    """
    return f"pid {pid} ({show_argv(argv, limit)})"


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
    """Write a name as plain Markdown text that makes no link, emphasis or HTML.

    Example:
        >>> for_markdown("[x](y)*")
        '\\\\[x\\\\](y)\\\\*'
    """
    shown = for_terminal(name, limit)
    shown = re.sub(r"([\\`*_{}\[\]#|~!@])", r"\\\1", shown)
    shown = re.sub(r"(?i)(www)\.|(:)//", lambda m: f"{m[1]}\\." if m[1] else ":\\/\\/", shown)  # no autolink
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_cell(name: str, limit: int = 255) -> str:
    """Write a name for a cell of a table artifact, which one of Prefect's UIs reads as Markdown, the other as plain text.

    Only what would make a link or an element is escaped, since the other one shows the escapes.

    Example:
        >>> for_cell("layers[0].bin"), for_cell("[x](javascript:1)")
        ('layers[0].bin', '[x]\\\\(javascript:1)')
    """
    shown = for_terminal(name, limit)
    if "<" not in shown and "](" not in shown:
        return shown
    return shown.replace("\\", "\\\\").replace("<", "\\<").replace("](", "]\\(")


def markdown_code(name: str, limit: int = 255) -> str:
    """Write a name as a Markdown code span, with a fence longer than any run of backticks in it.

    Example:
        >>> markdown_code("layers.0.w1")
        '`layers.0.w1`'
    """
    shown = for_terminal(name, limit)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def slugify(name: str, *, most: int = 100, other: str = "cache") -> str:
    """Turn a name into a bounded number of lower-case letters, digits and dashes, as Prefect's artifact keys require.

    Example:
        >>> slugify("Llama 3.1/70B (N300)"), slugify("...", other="unnamed")
        ('llama-3-1-70b-n300', 'unnamed')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:most].strip("-") or other


def file_stem(name: str, *, most: int = 80, other: str = "cache") -> str:
    """Turn a name into the stem of a file name; capitals and dots stay.

    Example:
        >>> file_stem("NFS a/v1.2")
        'NFS-a-v1.2'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:most].strip("-.") or other


def describe_refusal(error: OSError) -> str:
    """Say in one sentence what the system refused; without a working directory it is that.

    Example:
        >>> describe_refusal(OSError(36, "File name too long", "/a"))
        'the system refused: File name too long: /a'
    """
    if error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return WORKING_DIRECTORY_GONE
    where = f": {for_terminal(str(error.filename))}" if error.filename else ""
    return f"the system refused: {error.strerror or error}{where}"
