"""Profiles of known generators: where they write, by which environment, and how long they are silent.

`TTInferenceServer(...)` and the others make a job (`.job(...)`) and a stall policy (`.stall()`); by name they are made
with `make_profile`. How to add one is in docs/profiles.md.
"""

from __future__ import annotations

from prefect_cachewatch.config.profiles.base import Profile, ProfileSettings
from prefect_cachewatch.config.profiles.compilers import OpenVino, TensorRTLLM, TorchCompile, VllmCompileCache
from prefect_cachewatch.config.profiles.huggingface import HuggingFaceDownload
from prefect_cachewatch.config.profiles.registry import (
    complete_job,
    expand_profile,
    find_profile,
    known_profiles,
    make_profile,
)
from prefect_cachewatch.config.profiles.tt_inference_server import TTInferenceServer

__all__ = [
    "HuggingFaceDownload",
    "OpenVino",
    "Profile",
    "ProfileSettings",
    "TTInferenceServer",
    "TensorRTLLM",
    "TorchCompile",
    "VllmCompileCache",
    "complete_job",
    "expand_profile",
    "find_profile",
    "known_profiles",
    "make_profile",
]
