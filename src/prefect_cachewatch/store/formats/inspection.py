"""Says of one file whether its content can be what its format demands: `inspect`.

It reads headers and a bounded sample, in bounded time and memory, and needs the standard library alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from prefect_cachewatch.store.formats.archive import read_archive
from prefect_cachewatch.store.formats.gguf import read_gguf
from prefect_cachewatch.store.formats.json_text import read_json
from prefect_cachewatch.store.formats.npy import read_npy
from prefect_cachewatch.store.formats.reading import Broken, Source, Unjudged
from prefect_cachewatch.store.formats.safetensors import read_safetensors
from prefect_cachewatch.store.formats.tensorbin import read_tensorbin

_HEAD_BYTES = 64
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class Finding:
    """What one file's content shows; the message is a sentence without its subject, the file."""

    verdict: Literal["whole", "broken", "suspicious", "unknown"]
    message: str
    format: str | None = None


@dataclass(frozen=True)
class _Format:
    name: str
    #: Returns what is unusual and allowed; raises `Broken` or `Unjudged`.
    read: Callable[[Source], list[str]]
    #: How files of the format begin; none if only the name tells.
    magics: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    #: Names that no other format uses: a file of such a name that begins otherwise is broken.
    own_suffixes: tuple[str, ...] = ()


_FORMATS = (
    _Format("npy", read_npy, (b"\x93NUMPY",), (), (".npy",)),
    _Format("GGUF", read_gguf, (b"GGUF",), (), (".gguf",)),
    _Format("zip", read_archive, (b"PK\x03\x04", b"PK\x05\x06"), (".pt", ".pth", ".ckpt", ".pt2", ".zip"), (".npz",)),
    _Format("safetensors", read_safetensors, (), (), (".safetensors",)),
    _Format("tensorbin", read_tensorbin, (), (), (".tensorbin",)),
    _Format("JSON", read_json, (), (".json",)),
)


def inspect(file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> Finding:
    """Inspect one file.

    Args:
        file: a path, or a file open for reading in binary.
        name: whose ending may tell the format; default the path.

    Returns:
        `whole`: the format's own sizes and offsets agree with the file. `broken`: they contradict it. `suspicious`: it
        can be read, and something about it is unusual. `unknown`: nothing can be said.

    Raises:
        OSError: it cannot be read.

    Example:
        >>> import io
        >>> inspect(io.BytesIO(b"GGUF"), "model.gguf").message
        'is cut off: it ends at byte 4, within its header'
    """
    if not isinstance(file, str | os.PathLike):
        return _inspect(file, name or "")
    # A pipe of that name must not be waited for.
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Finding("unknown", "is no regular file")
        return _inspect(opened, os.fspath(file) if name is None else name)


def _inspect(file: BinaryIO, name: str) -> Finding:
    source = Source(file)
    try:
        head = source.head(_HEAD_BYTES)
    except (Broken, Unjudged) as error:  # it is cut meanwhile, or its storage is very slow
        return Finding("unknown", str(error))
    if head.startswith(_LFS):
        how = "is a pointer of Git LFS, and not the file that it stands for: fetch that with git lfs pull"
        return Finding("broken", how, "Git LFS")
    named, is_own = _find_by_name(name)
    begun = next((known for known in _FORMATS if head.startswith(known.magics)), None) if head else None
    chosen = begun or named
    if chosen is None:
        return Finding("unknown", "is of no format that is read here")
    try:
        if not begun:
            _require_begin(head, chosen, is_own)
        doubts = chosen.read(source)
        if is_own and chosen is not named and named is not None:
            doubts.insert(0, f"is named like {named.name}, and is {chosen.name}")
    except Broken as error:
        return Finding("broken", str(error), chosen.name)
    except Unjudged as error:
        return Finding("unknown", str(error), chosen.name)
    if doubts:
        return Finding("suspicious", doubts[0], chosen.name)
    return Finding("whole", "has the sizes and offsets that its header says", chosen.name)


def _find_by_name(name: str) -> tuple[_Format | None, bool]:
    lowered = name.lower()
    for known in _FORMATS:
        if lowered.endswith(known.own_suffixes):
            return known, True
        if lowered.endswith(known.suffixes):
            return known, False
    return None, False


def _require_begin(head: bytes, known: _Format, is_own: bool) -> None:
    if not head:
        raise Broken(f"is empty, and is named like {known.name}")
    if not known.magics:
        return
    if not head.strip(b"\0"):
        raise Broken(f"begins with zeros, and is named like {known.name}")
    if any(magic.startswith(head) for magic in known.magics):
        raise Broken(f"is cut off: it ends at byte {len(head)}, within its header")
    if is_own:
        raise Broken(f"does not begin like {known.name}, as its name says")
    raise Unjudged(f"does not begin like {known.name}, as its name suggests")
