"""YAML that people write: read safely, keys written twice refused, and the line of each part known.

What the keys mean is the caller's matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.text import for_terminal

__all__ = ["YamlFile", "open_yaml", "read_yaml"]

_MAX_BYTES = 4 * 2**20


@dataclass(frozen=True)
class YamlFile:
    """One YAML document: its data, its name made harmless, and its nodes with their lines."""

    shown: str
    data: Any
    root: yaml.Node | None

    def line_of(self, loc: Sequence[str | int]) -> int | None:
        """Say in which line a part stands; for one that is not there, the nearest that holds it.

        Args:
            loc: keys and indices from the top, as in `("jobs", 3, "command")`; a name that stands in no mapping, as
                pydantic's of the kind of a value, is passed over.

        Returns:
            The line, from 1; None for an empty file.
        """
        return self._walk(loc)[0]

    def has(self, loc: Sequence[str | int]) -> bool:
        """Say whether a part was written at all."""
        return self._walk(loc)[1]

    def _walk(self, loc: Sequence[str | int]) -> tuple[int | None, bool]:
        """The line of the last part that is there, and whether that is the last part."""
        node, there = self.root, True
        line = node.start_mark.line + 1 if node is not None else None
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                found = next((pair for pair in node.value if getattr(pair[0], "value", None) == part), None)
                there = found is not None
                if found is not None:
                    line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
                node, there = node.value[part], True
                line = node.start_mark.line + 1
            else:
                return line, False
        return line, there


def open_yaml(path: Path) -> YamlFile:
    """Read one YAML document, and keep where its parts stand.

    Args:
        path: the file, at most 4 MiB.

    Returns:
        The document.

    Raises:
        InputError: if it cannot be read, or a key is written twice; the sentence says where and why.
    """
    shown = for_terminal(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}): check the path") from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{shown} is larger than 4 MiB, which nobody writes by hand: check the path")
    try:
        loader = _Loader(raw)
        try:
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = for_terminal(" ".join((error.problem or "not YAML").split()))
        raise InputError(f"{shown}{line}: {problem}: correct the YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{shown} is not YAML ({type(error).__name__}): check the file") from None
    return YamlFile(shown, data, root)


def read_yaml(path: Path) -> Any:
    """Read one YAML document, refusing a key that is written twice.

    Args:
        path: the file, at most 4 MiB.

    Returns:
        What it holds.

    Raises:
        InputError: if it cannot be read; the sentence says where and why.
    """
    return open_yaml(path).data


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is written twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)
