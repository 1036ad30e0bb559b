"""Names of a package that are imported on first use (PEP 562).

A package calls `resolve` from its `__getattr__` and imports this module only there, since helper processes start
through packages that have such names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def resolve(namespace: dict[str, Any], places: Mapping[str, str], name: str) -> Any:
    """Import a name of a package and store it in its namespace; to be called only by its `__getattr__`.

    Args:
        namespace: the package's `globals()`.
        places: maps a module below the package to the names it provides, separated by spaces.
        name: what was asked for.

    Returns:
        The object of that name.

    Raises:
        AttributeError: there is no such name; the message suggests the nearest one.
        ImportError: the same, for a `from` import.

    Example:
        >>> resolve({"__name__": "prefect_cachewatch", "__all__": []}, {"common.units": "format_bytes"}, "format_bytes")(2048)
        '2.00 KiB'
    """
    package: str = namespace["__name__"]
    for module, names in places.items():
        if name in names.split():
            value = namespace[name] = getattr(importlib.import_module(f"{package}.{module}"), name)
            return value
    # `from package import name` asks here first, and drops the message of an AttributeError.
    is_from = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    if name.startswith("__") or (is_from and importlib.util.find_spec(f"{package}.{name}") is not None):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    unknown = _describe_unknown(package, namespace["__all__"], name)
    raise ImportError(unknown, name=package) if is_from else AttributeError(unknown)


def _describe_unknown(package: str, names: Sequence[str], name: str) -> str:
    import difflib  # noqa: PLC0415 - most names are right

    nearest = difflib.get_close_matches(name, names, 1, 0.6)
    then = f"did you mean {nearest[0]!r}?" if nearest else f"dir({package}) lists those that there are"
    return f"module {package!r} has no attribute {name!r} that is public: {then}"
