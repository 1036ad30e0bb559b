"""Imports modules late, from memory: their compiled code is held, compressed, from the start of the run.

If the package lies on the file system that hangs, it cannot be read at the moment when it is needed most. Importing all
of it early would take megabytes for as long as a generator runs; its compressed code takes a tenth of that. A fork
imports the modules, reports which ones were loaded, and ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import marshal
import os
import sys
import zlib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class PinnedModules:
    """Holds the code of modules and of everything that they import; made before any thread is started.

    Args:
        names: of the modules.

    Example:
        >>> pinned = PinnedModules(["this_module_is_not_there"])
        >>> pinned.hold()
        >>> import this_module_is_not_there
        Traceback (most recent call last):
        ModuleNotFoundError: No module named 'this_module_is_not_there'
        >>> pinned.release()
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._held: dict[str, tuple[str, list[str] | None, bytes]] = {}
        self._absent: frozenset[str] = frozenset()
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if self._child == 0:
            os.close(self._reading)
            _collect_and_end(names, writing)
        os.close(writing)

    def hold(self) -> None:
        """Wait for the code and import from it from now on; if the fork failed, imports work as usual."""
        with open(self._reading, "rb") as file:
            data = file.read()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child, 0)
        if not data:
            return
        held, native, absent = marshal.loads(data)  # noqa: S302 - from our own fork
        self._held = {name: found for name, found in held.items() if name not in sys.modules}
        self._absent = frozenset(absent)
        for name in native:  # a shared object cannot be held in memory: it is loaded now
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        sys.meta_path.insert(0, self)

    def release(self) -> None:
        """Return to normal imports."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module that is held; see importlib.abc.MetaPathFinder."""
        if name in self._absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in self._held:
            return None
        origin, locations, _ = self._held[name]
        loader: Any = self  # a loader by duck typing: importlib.abc costs more than this whole module
        spec = ModuleSpec(name, loader, origin=origin, is_package=locations is not None)
        spec.submodule_search_locations = locations
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Use importlib's default."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a held module."""
        exec(marshal.loads(zlib.decompress(self._held[module.__name__][2])), module.__dict__)  # noqa: S102, S302


class _Missed:
    """The last finder: a module that reaches it does not exist, and is not looked for on disk."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self.names.append(name)


def _collect_and_end(names: Sequence[str], writing: int) -> NoReturn:
    try:
        data = memoryview(marshal.dumps(_collect(names)))
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)
    raise AssertionError("unreachable")


def _collect(names: Sequence[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    before, missed = set(sys.modules), _Missed()
    sys.meta_path.append(missed)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    held: dict[str, Any] = {}
    native = []
    for name in [name for name in sys.modules if name not in before]:
        module = sys.modules[name]
        spec = getattr(module, "__spec__", None)
        loader = getattr(spec, "loader", None)
        if isinstance(loader, importlib.machinery.ExtensionFileLoader):
            native.append(name)
        elif isinstance(loader, importlib.machinery.SourceFileLoader) and spec is not None:
            code = loader.get_code(name)
            locations = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
            held[name] = (spec.origin, locations, zlib.compress(marshal.dumps(code), 1))
    return held, native, [name for name in missed.names if name not in sys.modules]
