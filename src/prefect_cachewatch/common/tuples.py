"""Makes named tuples from annotated classes without `typing`, which costs each scan process a megabyte.

Type checkers read that of `typing`. (dataclasses would cost another one and a half megabytes.)
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - exported

_NOT_COPIED = frozenset({"__annotations__", "__module__", "__qualname__"})


if not TYPE_CHECKING:

    class _Maker(type):
        def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
            if not bases:
                return super().__new__(cls, name, bases, space)
            fields = list(space.get("__annotations__", {}))
            make: Any = namedtuple  # type checkers require a literal list of fields
            made = make(
                name, fields, defaults=[space[field] for field in fields if field in space], module=space["__module__"]
            )
            for key, value in space.items():
                if key not in _NOT_COPIED and key not in fields:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Maker):
        """Base of a class whose annotated names become fields of a tuple, as with `typing.NamedTuple`.

        Example:
            >>> class Point(NamedTuple):
            ...     x: int
            ...     y: int = 2
            >>> Point(1)
            Point(x=1, y=2)
        """
