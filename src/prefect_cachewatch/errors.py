"""The errors of the engine; what a stalled generator does is a result, not an error.

CachewatchError
├── InputError                  bad input: nothing was started, nothing was touched
│   ├── CacheDirectoryError     a cache directory that cannot be watched
│   │   └── CacheDirectoryBusy  another job is writing into it
│   ├── CommandError            a command that cannot be run (126, 127)
│   ├── MetricsPortTaken        another process listens where metrics were to be served
│   └── StoreError              a cache store, a build or a manifest that cannot be used as asked
│       ├── StoreBusy           another process is publishing, switching or reading
│       ├── BuildDamaged        a build that is not whole, or a manifest that was cut or edited
│       └── NotEnoughSpace      too few free bytes for another build
├── GuardError                  the guard process could not do its work
└── ScanError                   the scan process could not do its work
    └── ScanTimeout             it did not answer in time
"""

from __future__ import annotations

from typing import Any

WORKING_DIRECTORY_GONE = "the present working directory has been removed: change to another one"


class CachewatchError(Exception):
    """Base of all errors that the engine raises; the message is one sentence for a person."""

    exit_code = 125

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.data))


class InputError(CachewatchError):
    """Input that cannot be acted on."""


class CacheDirectoryError(InputError):
    """A cache directory that cannot be watched; `data["path"]` names it."""


class CacheDirectoryBusy(CacheDirectoryError):
    """Another job holds the cache directory; `data["holder_pid"]` is its process, if known."""


class CommandError(InputError):
    """A command that cannot be run; `exit_code` is 126 or 127 as with env(1)."""

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message, **data)
        self.exit_code = int(data.get("exit_code", 126))


class MetricsPortTaken(InputError):
    """Another process listens where metrics were to be served."""


class StoreError(InputError):
    """A cache store that cannot be used as asked; `data["path"]` names the place, if there is one."""


class StoreBusy(StoreError):
    """Another process holds the lock; `data["holder"]` says who, if known."""


class BuildDamaged(StoreError):
    """A build that is not whole; `data["problems"]` lists what was found."""


class NotEnoughSpace(StoreError):
    """Too little room for another build; `data` has what is needed and what is free."""


class GuardError(CachewatchError):
    """The guard process did not start, or died."""


class ScanError(CachewatchError):
    """The scan process reported a failure or ended."""


class ScanTimeout(ScanError):
    """The scan process did not answer within its deadline."""


def _rebuild(cls: type[CachewatchError], message: str, data: dict[str, Any]) -> CachewatchError:
    return cls(message, **data)
