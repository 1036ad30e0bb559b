"""Profiles of known generators: where they write, which environment they need, and how long they are silent.

Each is a TOML file: those beside this module, and those of the directory that CACHEWATCH_PROFILES names. `definition` says
what such a file holds, `known` finds it by name or by a command line. Code there is only for tt-inference-server, of which a
file of upstream's is read. docs/profiles.md tells how to add one.
"""

from __future__ import annotations

from prefect_cachewatch.config.profiles.known import (
    Profile,
    find_profile,
    known_profiles,
    make_profile,
    read_profile,
    recognize_profile,
)
from prefect_cachewatch.config.profiles.settings import ProfileSettings

__all__ = [
    "Profile",
    "ProfileSettings",
    "find_profile",
    "known_profiles",
    "make_profile",
    "read_profile",
    "recognize_profile",
]
