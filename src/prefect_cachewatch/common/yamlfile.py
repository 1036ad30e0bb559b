"""Reads YAML input safely: refuses duplicate keys and what grows too large.

The caller interprets the keys.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from prefect_cachewatch.common.files import INPUT_MAX_BYTES, read_input
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_MAX_DEPTH = 64
# Limit on the values that a file may stand for through aliases: a multiple of those written in it, and an absolute
# maximum.
_GROWTH, _FREE_VALUES, _MAX_VALUES = 20, 10_000, 2_000_000
_LONG = 100  # characters
_NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))


def read_yaml(path: Path) -> Any:
    """Read one YAML document.

    Args:
        path: the file, at most 4 MiB.

    Returns:
        Its data.

    Raises:
        InputError: it cannot be read, has a duplicate key, or expands to more values than is plausible; the message
            says where and why.
    """
    shown = for_terminal(str(path))
    try:
        raw = read_input(path)
    except (OSError, ValueError) as error:  # a name with NUL in it is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{shown} cannot be read ({reason}): check the path") from None
    if len(raw) > INPUT_MAX_BYTES:
        raise InputError(f"{shown} is larger than 4 MiB, which nobody writes by hand: check the path")
    try:
        loader = _Loader(raw)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = for_terminal(" ".join((error.problem or "not YAML").split()))
        raise InputError(f"{shown}{line}: {problem}: correct the YAML") from None
    except (yaml.reader.ReaderError, UnicodeDecodeError):
        raise InputError(
            f"{shown} is not text in UTF-8, or has control characters in it: check that it is the right file"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise InputError(f"{shown} is not YAML ({type(error).__name__}): check the file") from None


_SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys, of which YAML silently keeps the last, and documents that grow too large.

    Aliases and merge keys let a few lines stand for millions of values. The size of each node, with everything that it
    refers to, is known when the node is composed, before any value is constructed.
    """

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._measures: dict[int, tuple[int, int]] = {}  # node to its size and depth
        self._written = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # of PyYAML's stubs
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._measures:
                raise _refusal("it refers to itself", mark)
            return node
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _refusal(f"nested deeper than {_MAX_DEPTH}", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        assert node is not None
        size, depth = self._measure(node)
        if depth > _MAX_DEPTH:
            raise _refusal(f"nested deeper than {_MAX_DEPTH}", mark)
        if size > _MAX_VALUES or (self._depth == 0 and size > _FREE_VALUES + _GROWTH * self._written):
            raise _refusal("its aliases or merge keys stand for more values than anybody writes", mark)
        return node

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value if isinstance(node, yaml.SequenceNode) else []
        own = 1
        if isinstance(node, yaml.ScalarNode):
            own += len(node.value) // _LONG
            if node.tag in _NUMBERS and len(node.value) > _LONG:  # 1:1:1:... takes minutes to convert to a number
                raise _refusal(f"a number of {len(node.value)} characters", node.start_mark)
            if _SURROGATE.search(node.value):  # no file name, argument or report can hold it
                raise _refusal("\\ud800 to \\udfff are halves of characters and stand for none", node.start_mark)
        measures = [self._measures[id(part)] for part in parts]
        self._written += own
        measured = own + sum(size for size, _ in measures), 1 + max((depth for _, depth in measures), default=0)
        self._measures[id(node)] = measured
        return measured

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError):  # 2020-99-99, !!bool maybe, !!timestamp soon
            value = str(node.value)[:_LONG] or "''"
            raise _refusal(f"{value} is no such value", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # `!!map text` is not a mapping
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise _refusal(f"{key.value} is written twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refusal(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
