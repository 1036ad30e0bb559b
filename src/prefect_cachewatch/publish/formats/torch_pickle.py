"""Reads which storages the `data.pkl` of a `torch.save` archive names. The pickle is never loaded: only its opcodes are read."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass

from prefect_cachewatch.publish.formats.reading import Broken, Unjudged

# A tensor takes about twenty. A hostile pickle of as many costs some seconds and 50 MB.
_MAX_OPCODES = 1_000_000
_ITEM_BYTES = {
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "UntypedStorage": 1, "QUInt8Storage": 1, "QInt8Storage": 1,
    "QUInt4x2Storage": 1, "QUInt2x4Storage": 1, "ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2,
    "IntStorage": 4, "FloatStorage": 4, "QInt32Storage": 4, "LongStorage": 8, "DoubleStorage": 8,
    "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16,
}  # fmt: skip
_LITERALS = frozenset(
    name
    for name in (opcode.name for opcode in pickletools.opcodes)
    if name.startswith(("INT", "BININT", "LONG")) or name.endswith(("UNICODE", "UNICODE8"))
) - {"LONG_BINGET", "LONG_BINPUT"}


@dataclass(frozen=True)
class NamedStorage:
    """A storage that a pickle names: the record with its bytes, its elements, and the size of one; 0 if that is not known."""

    key: str
    items: int
    item_bytes: int

    def fits(self, size: int) -> bool:
        """Say whether a record of so many bytes is this storage; less than an element may be left over."""
        return not self.item_bytes or size // self.item_bytes == self.items


class _Global(str):
    """The name of a class, which no text of the pickle equals."""

    __slots__ = ()


_MARK = object()


class _Machine:
    """The stack of a pickle, with texts, numbers, names and tuples; everything else is None."""

    def __init__(self) -> None:
        self.named: list[NamedStorage] = []
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def do(self, opcode: pickletools.OpcodeInfo, given: object) -> None:
        name, stack = opcode.name, self._stack
        if name in _LITERALS:
            stack.append(given)
        elif name == "GLOBAL":
            stack.append(_Global(given))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(_Global(f"{module} {last}") if isinstance(module, str) and isinstance(last, str) else None)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(tuple(self._from_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[_number(given)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[_number(given)])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "BINPERSID":
            self._name(stack.pop())
            stack.append(None)
        else:
            self._pass_over(opcode)

    def _pass_over(self, opcode: pickletools.OpcodeInfo) -> None:
        before = [one.name for one in opcode.stack_before]
        if "mark" in before:
            self._from_mark()
            before = before[: before.index("mark")]
        for _ in before:
            self._stack.pop()
        self._stack += [None] * len(opcode.stack_after)

    def _from_mark(self) -> list[object]:
        taken: list[object] = []
        while (one := self._stack.pop()) is not _MARK:
            taken.append(one)
        return taken[::-1]

    def _name(self, found: object) -> None:
        if not isinstance(found, tuple) or len(found) != 5 or found[0] != "storage":
            return
        _, kind, key, _, items = found
        if isinstance(kind, _Global) and isinstance(key, str) and isinstance(items, int):
            self.named.append(NamedStorage(key, items, _ITEM_BYTES.get(kind.rpartition(" ")[2].rpartition(".")[2], 0)))


def _number(given: object) -> int:
    if not isinstance(given, int):
        raise ValueError("no number")
    return given


def read_storages(data: bytes, check: Callable[[], None] = lambda: None) -> list[NamedStorage]:
    """List the storages that a pickle names.

    Args:
        data: the pickle.
        check: called now and then; raises to stop.

    Raises:
        Broken: it is no pickle, or was cut.
        Unjudged: it has more opcodes than are read here.

    Example:
        >>> read_storages(b"\\x80\\x02(X\\x07\\0\\0\\0storagectorch\\nHalfStorage\\nX\\x01\\0\\0\\x000X\\x03\\0\\0\\0cpuK\\x0ctQ.")
        [NamedStorage(key='0', items=12, item_bytes=2)]
    """
    machine = _Machine()
    try:
        for count, (opcode, given, _) in enumerate(pickletools.genops(data)):
            if count >= _MAX_OPCODES:
                raise Unjudged("has a data.pkl of more opcodes than are read here")
            if not count % 4096:
                check()
            machine.do(opcode, given)
    except (ValueError, LookupError, OverflowError):
        raise Broken("has a data.pkl that is no whole pickle") from None
    return machine.named
